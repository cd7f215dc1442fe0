"""Tests of kernel_workbench.oracles.analysis."""
