"""MTP heads: the multi-token-prediction modules that a target's own files carry, by their families' published names."""
