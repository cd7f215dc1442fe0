"""Run a suite on the nodes of a cluster, by Ray or Slurm, and survive the loss of a node."""
