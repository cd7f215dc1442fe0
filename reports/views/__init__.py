"""A file for each suite: its record as a document, which knows no form that it is shown in."""
