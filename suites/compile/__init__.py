"""What a compiler makes of each kernel on each GPU generation, found out with no GPU."""
