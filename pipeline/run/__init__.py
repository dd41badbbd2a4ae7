"""The run directory: what is committed, what is missing, who holds it, and whether it is whole."""
