"""Chats and texts: templates, tokenization, stop strings, thoughts and answers in their parts."""
