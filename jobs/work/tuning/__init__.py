"""What makes a run fast on this machine: engines with other drafters, slots, threads and dtypes write in turns."""
