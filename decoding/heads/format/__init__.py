"""FORMAT of a folder of heads: its configuration, tensors and vocabulary, as speculators and as EAGLE write them."""
