"""The target's texts as a draft learns them: from runs and Parquet, held out by prompt."""
