"""Our Triton kernels of layer-norm backward, a file per algorithm; norms as functions of them."""

from kernel_workbench.kernels.layer_norm.function import NormError, layer_norm, rms_norm

__all__ = ["NormError", "layer_norm", "rms_norm"]
