"""COMMANDS: one file per `python -m jobs.<name>`."""
