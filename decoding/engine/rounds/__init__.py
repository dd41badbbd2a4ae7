"""A round: its three steps, the order in which rounds go, and the rows that advance in them together."""
