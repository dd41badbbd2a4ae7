"""One forward of the target, and the probe that a model has to pass when it is loaded."""
