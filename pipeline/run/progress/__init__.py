"""A run while it goes on: who drives it, how far it is, what is left to do, and which drafts it was offered."""
