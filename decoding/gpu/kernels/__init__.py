"""Triton kernels. The files here hold nothing else: they can be imported only where Triton is (`decoding/gpu`)."""
