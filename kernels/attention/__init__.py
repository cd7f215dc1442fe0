"""Attention, forward and backward, in Triton: kernels, their variants, and a function of them."""
