"""Tests of what every suite does."""
