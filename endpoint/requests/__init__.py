"""Requests over HTTP as prompts and parameters; `pipeline/requests` reads their bodies."""
