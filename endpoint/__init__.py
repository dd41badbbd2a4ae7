"""Requests: the OpenAI-compatible HTTP application. Tokens come from `actors`, text from `pipeline`."""
