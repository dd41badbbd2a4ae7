"""Measurements; a folder or a file for each question, named in `benchmarks/README.md`."""
