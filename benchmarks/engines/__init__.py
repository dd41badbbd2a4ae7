"""Our engine and vLLM in the same run."""
