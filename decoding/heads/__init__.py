"""HEADS: drafts that read the target's hidden states (EAGLE-3, P-EAGLE, DFlash 1 and 2, DSpark), and their formats."""
