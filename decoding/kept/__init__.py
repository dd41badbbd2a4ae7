"""Kept weights: a model that is laid out for this machine is kept on disk, and later engines map it."""
