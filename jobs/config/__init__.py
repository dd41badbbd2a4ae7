"""Configuration from YAML, environment and flags."""
