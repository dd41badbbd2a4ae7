"""From logits to tokens: what may be drawn, which token is drawn, and the judgement which draft tokens stand."""
