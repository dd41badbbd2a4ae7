"""Work units: who does one, how it is done, and what happens when a process dies over it."""
