"""HEADS: drafts that read the target's hidden states (EAGLE-3, P-EAGLE, DFlash, DSpark), and their formats."""
