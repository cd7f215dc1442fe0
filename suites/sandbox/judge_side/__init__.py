"""The judge's side of the sandbox: it starts workers, sends messages, and checks every reply."""
