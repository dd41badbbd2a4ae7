"""The actors that Ray starts: those of runs, of retries, of batches and of the endpoint."""
