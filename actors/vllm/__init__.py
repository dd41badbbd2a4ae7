"""vLLM as the second engine: its arguments, its requests, and the probe of its drafts."""
