"""What the commands on a run do with it: its state in lines, its publication, its export, a row, and another draft."""
