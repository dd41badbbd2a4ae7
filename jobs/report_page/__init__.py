"""A run as a page to look at: its facts, from the tallies of `pipeline/run`, charts, and samples with their drafts."""
