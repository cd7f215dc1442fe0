"""Compile each kernel for each GPU generation, without a GPU, and inspect the machine code."""
