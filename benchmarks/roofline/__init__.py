"""What a round could take at least on a GPU."""
