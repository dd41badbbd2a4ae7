"""A run in other forms: compacted files, JSONL, OpenAI batch output, and publications."""
