"""A draft with another tokenizer: which tokens are the same, and a row's text in the draft's own tokens."""
