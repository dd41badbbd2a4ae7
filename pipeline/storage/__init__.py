"""Local and remote files: what is retried, and files that appear whole or not at all."""
