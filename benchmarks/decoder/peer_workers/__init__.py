"""Workers that run other engines in environments of their own."""
