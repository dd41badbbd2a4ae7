"""Weights of 4 and 8 bits as files have them: what a packed weight is, and the readers that make one of a file."""
