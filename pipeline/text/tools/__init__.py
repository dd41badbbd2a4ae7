"""Tools: what is asked for, each family's format of calls, and what reads and forces calls."""
