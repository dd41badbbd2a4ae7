"""Proofs that texts are equal token by token, and what is asked of their rows."""
