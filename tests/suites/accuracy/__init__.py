"""Tests of the accuracy suite."""
