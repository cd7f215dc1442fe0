"""What a folder of records says over time: series of figures, and where they change."""
