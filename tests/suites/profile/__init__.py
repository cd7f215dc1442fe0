"""Tests of the profile suite."""
