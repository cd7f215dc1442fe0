"""The kernels under verification, and what a file needs to register one of its own."""

import oracles
from kernels.configurations import configuration
from kernels.registry import Domain, Kernel, KernelError, NoKernelError, all_kernels, choose, kernel
from oracles import *  # noqa: F403 (an op is named there, and nowhere else)

__all__ = [
    "Domain",
    "Kernel",
    "KernelError",
    "NoKernelError",
    "all_kernels",
    "choose",
    "configuration",
    "kernel",
]
__all__ += oracles.__all__
