"""Bodies of OpenAI's API: one table of fields, by which jobs, batches and the endpoint read them."""
