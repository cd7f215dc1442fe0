"""Tests of the bench suite."""
