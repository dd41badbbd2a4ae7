"""One engine in one process: the loop that many callers share, what it does when memory runs out, and rows as texts."""
