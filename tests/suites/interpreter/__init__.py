"""Tests of Triton's interpreter, repaired and strict."""
