"""A run as a page to look at: facts, charts, and samples with what was drafted in them."""
