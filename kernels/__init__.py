"""The kernels under verification, and what a file needs to register one of its own."""

from kernels.registry import Domain, Kernel, KernelError, NoKernelError, all_kernels, choose, kernel
from oracles import (
    ATTENTION_BACKWARD,
    ATTENTION_DELTA,
    ATTENTION_FORWARD,
    ATTENTION_GRADIENTS,
    LAYER_NORM_BACKWARD,
    RMS_NORM_BACKWARD,
    RMS_NORM_FORWARD,
)
from oracles.op import Numerics

__all__ = [
    "ATTENTION_BACKWARD",
    "ATTENTION_DELTA",
    "ATTENTION_FORWARD",
    "ATTENTION_GRADIENTS",
    "LAYER_NORM_BACKWARD",
    "RMS_NORM_BACKWARD",
    "RMS_NORM_FORWARD",
    "Domain",
    "Kernel",
    "KernelError",
    "NoKernelError",
    "Numerics",
    "all_kernels",
    "choose",
    "kernel",
]
