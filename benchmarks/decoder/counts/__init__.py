"""COUNTS of a measured run: its rounds, forwards and launches, the work in them, and the seconds they took."""
