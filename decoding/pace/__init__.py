"""How many tokens a row drafts: measured costs, acceptance, and the schedule made of both."""
