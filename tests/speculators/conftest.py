"""Tests with speculators itself: make test-speculators. Where it is not installed, none of them is collected."""

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("speculators") is None else []
