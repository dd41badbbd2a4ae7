"""LEARNING: what a draft learns from a run's text, and how well it then drafts. No pydantic."""
