"""Kernels that a user might bring, for tests that run them as a user does."""
