"""Code that runs on CUDA devices only: kernels, captured graphs."""
