"""The judge's side of the sandbox: it starts workers, asks them, and believes nothing unchecked."""
