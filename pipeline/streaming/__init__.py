"""Ray Data, which streams units to the actors and their receipts back."""
