"""Code that runs on CUDA devices only: kernels and captured graphs."""
