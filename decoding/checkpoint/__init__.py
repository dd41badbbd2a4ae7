"""Model folders and GGUF files: what is supported, and how weights are loaded, divided and merged."""
