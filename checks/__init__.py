"""CHECKS: the rules of `make check` that no tool we know holds."""
