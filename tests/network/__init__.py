"""Runs over links that fail: three hosts in network namespaces, joined by a wire of our own. Root is needed."""
