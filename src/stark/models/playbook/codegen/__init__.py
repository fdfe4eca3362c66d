"""Writes fused kernels as C++ or Triton candidates."""
