"""The driver of a run: its plan, its progress, its signals and its summary."""
