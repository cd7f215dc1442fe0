"""Tests of a suite on the nodes of a cluster."""
