"""Tests of oracles/."""
