"""The same kernel twice, once on 2 % more rows: a slowdown that a comparison has to find."""
