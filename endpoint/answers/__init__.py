"""Answers over HTTP, whole or streamed, in the forms of OpenAI's API."""
