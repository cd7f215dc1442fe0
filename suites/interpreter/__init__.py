"""Triton's interpreter on a CPU: repaired where it computes otherwise than a GPU, and strict."""
