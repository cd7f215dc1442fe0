"""A suite on the nodes of a cluster: placed, shipped and survived by Ray or Slurm."""
