"""Linear layers with FP8 weights: their exact definition, and the layer."""
