"""HTTP itself: reading and writing messages, connections, and headers."""
