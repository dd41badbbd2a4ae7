"""What a run would accept of a draft, by the texts alone, and when a draft may replace another."""
