"""A draft model on actors of its own (`placement: split`), and the link over which engines ask it."""
