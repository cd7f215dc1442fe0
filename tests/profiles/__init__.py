"""Tests of profiles/."""
