"""THIS MACHINE and its user: what it has, a file of configuration to begin with, and completion for a shell."""
