"""Keys and values of rows, in slots, and what a draft may read of the target."""
