"""Scoring: log-probabilities of given texts, many at a time, in forwards that write nothing."""
