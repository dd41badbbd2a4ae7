"""What config.json says of quantization, and the packed weights of a folder that says so."""
