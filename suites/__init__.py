"""The suites that users run."""
