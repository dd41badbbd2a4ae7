"""Kernels in C++ for CPUs, and how they are compiled and called."""
