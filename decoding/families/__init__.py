"""What the decoder layers of model families compute, as data that one fused layer reads."""
