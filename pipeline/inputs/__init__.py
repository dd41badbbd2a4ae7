"""Input files: their formats, work units, and what makes a line an error row."""
