"""The bench suite: device time of kernels, and what it comes to in bytes a second."""
