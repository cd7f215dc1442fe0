"""`nox -s search`: cases that nobody wrote down, drawn until one breaks a kernel, and shrunk."""
