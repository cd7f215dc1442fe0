"""KernelBench problems and solutions of them, right and wrong."""
