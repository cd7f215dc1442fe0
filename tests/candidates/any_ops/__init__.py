"""Ops of a user with the kernels that are right and wrong for them."""
