"""Groups traced operations into kernels and tiles them."""
