"""Rows that advance together, a round at a time: how they get slots, what a round is, and in which order rounds go."""
