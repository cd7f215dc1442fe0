"""The worker's side of the sandbox: what is loaded into the process that a candidate runs in."""
