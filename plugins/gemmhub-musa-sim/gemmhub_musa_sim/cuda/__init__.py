"""The CUDA engine of a simulated home: the same sources, compiled by nvcc and run on an NVIDIA GPU."""
