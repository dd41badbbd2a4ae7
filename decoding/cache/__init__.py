"""Keys and values in slots, and what a draft may read of the target."""
