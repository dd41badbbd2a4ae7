"""Rows: from input files to prompts, and from generations to Parquet parts. No torch, no ray."""
