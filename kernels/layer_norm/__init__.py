"""Our Triton kernels of layer-norm backward, one file an algorithm; and norms as functions."""

from kernel_workbench.kernels.layer_norm.function import NormError, layer_norm, rms_norm

__all__ = ["NormError", "layer_norm", "rms_norm"]
