"""What old texts bring as drafts: rows that are written again, and rows after a change of their prompt."""
