"""`search`: draw cases that no list has until one breaks a kernel, and shrink it."""
