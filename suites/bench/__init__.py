"""The bench suite: device times of kernels, and the rates in bytes and operations a second."""
