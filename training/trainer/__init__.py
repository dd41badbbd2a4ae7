"""Training on Ray Train: the loop, its checkpoints and its output."""
