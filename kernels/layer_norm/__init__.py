"""Our Triton kernels of layer-norm backward, a file per algorithm, and their finalize."""
