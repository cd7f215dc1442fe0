"""The worker's side of the sandbox: code that is loaded into the process of a candidate."""
