"""Rounds that overlap on a GPU: the next one is started before the last one is read."""
