"""What the server that forks processes imports, once for all of them."""

from kernels.registry import all_kernels
from suites.resources import worker

all_kernels()

__all__ = ["worker"]
