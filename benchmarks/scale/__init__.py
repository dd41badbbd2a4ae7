"""The control plane without models: many actors, many parts."""
