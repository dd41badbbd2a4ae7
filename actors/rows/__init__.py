"""Rows that are prompts with their samples: each text is written once, or until it passes a check."""
