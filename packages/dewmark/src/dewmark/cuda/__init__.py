"""Kernels and captured graphs for CUDA devices, and the constants that they share with the torch step."""
