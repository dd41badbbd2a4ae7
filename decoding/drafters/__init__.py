"""The drafters: each proposes the next tokens of rows. The losslessness tests run over every name of `DRAFTERS`."""
