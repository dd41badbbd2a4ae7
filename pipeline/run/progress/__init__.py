"""A run while it goes on: the lease of its only driver, how far it is, and which drafts it was offered."""
