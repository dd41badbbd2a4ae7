"""Structured output: what is asked for, its compiled grammar, and which tokens may come next."""
