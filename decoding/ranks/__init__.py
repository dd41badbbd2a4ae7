"""Layers that several processes share out, with sums whose order the number of processes alone decides."""
