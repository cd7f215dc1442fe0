"""The kernels under verification, and the names that a kernel's file needs."""

from kernel_workbench import oracles
from kernel_workbench.bare_names import check_name
from kernel_workbench.kernels.builds import BuildError, built
from kernel_workbench.kernels.configurations import configuration
from kernel_workbench.kernels.expectation import Expectation, Fits, Loads, Spills, Stores, Uses
from kernel_workbench.kernels.registry import (
    Domain,
    Kernel,
    KernelError,
    NoKernelError,
    all_kernels,
    choose,
    kernel,
)
from kernel_workbench.oracles import *  # noqa: F403 (an op is named there, and nowhere else)
from kernel_workbench.oracles.cases.sizes import COLUMNS, ROWS, WIDTHS, Sizes
from kernel_workbench.oracles.reference import op
from kernel_workbench.oracles.reference.modules import op_of

check_name(__name__)

__all__ = [
    "COLUMNS",
    "ROWS",
    "WIDTHS",
    "BuildError",
    "Domain",
    "Expectation",
    "Fits",
    "Kernel",
    "KernelError",
    "Loads",
    "NoKernelError",
    "Sizes",
    "Spills",
    "Stores",
    "Uses",
    "all_kernels",
    "built",
    "choose",
    "configuration",
    "kernel",
    "op",
    "op_of",
]
__all__ += oracles.__all__
