"""What learns, a draft model or a head, over packed rows by a loss."""
