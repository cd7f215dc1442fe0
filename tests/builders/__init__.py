"""Builders of records, traces, kernels and calls for tests."""
