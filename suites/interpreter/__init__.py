"""Triton's interpreter on a CPU: repaired to compute as a GPU does, and strict."""
