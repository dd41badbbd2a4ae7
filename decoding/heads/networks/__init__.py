"""NETWORKS of heads as modules of torch: what a trainer trains, and what a head that drafts takes its weights from."""
