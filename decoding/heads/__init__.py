"""HEADS: drafts that read the target's hidden states, of EAGLE-3, DFlash, MTP and Gemma, and their formats."""
