"""Tests of the compile suite."""
