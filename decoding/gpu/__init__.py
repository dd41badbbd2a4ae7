"""Operations on GPUs in which no row depends on the batch: their kernels in Triton, and who may use them."""
