"""Peers with the same contract, so that one suite judges and times all kernels."""
