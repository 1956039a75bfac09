"""The array library cupy, on CUDA devices."""
