"""From logits to tokens: what may be drawn, which token is drawn, which draft tokens stand."""
