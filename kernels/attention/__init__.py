"""Attention, forward and backward, in Triton: kernels, their variants, and a function."""

from kernel_workbench.kernels.attention.function import attention, attention_with_lse

__all__ = ["attention", "attention_with_lse"]
