"""The fast forward: fused layers over packed rows, and CUDA graphs that are recorded and replayed."""
