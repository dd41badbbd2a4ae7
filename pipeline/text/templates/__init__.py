"""Chat templates: which messages and variables they take, and what they write."""
