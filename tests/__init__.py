"""The workbench's own tests."""
