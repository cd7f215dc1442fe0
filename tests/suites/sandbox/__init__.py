"""Tests of how code runs that is not ours."""
