"""PROCESSES: where rows and tokens meet. Engines in Ray actors."""
