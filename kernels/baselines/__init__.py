"""Peers behind the same contract, so that one suite judges and times them all."""
