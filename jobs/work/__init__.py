"""The work of the commands that need torch or Ray: what comes after their arguments and their configuration."""
