"""Follow the figures of a folder of records over time, and find where they change."""
