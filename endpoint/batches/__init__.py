"""The Batch API: files, a batch from its check to its results, and the process that drives them."""
