"""Records laid beside one another: what got faster, slower, less accurate, or costs more energy."""
