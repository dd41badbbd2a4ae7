"""One engine in one process: the loop that many callers share, and how rows become texts."""
