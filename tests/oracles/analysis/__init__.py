"""Tests of oracles.analysis."""
