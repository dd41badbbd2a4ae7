"""Trees of drafted tokens beside chains, and drafts with noise and without, by texts that are written already."""
