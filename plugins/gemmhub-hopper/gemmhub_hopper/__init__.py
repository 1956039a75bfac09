"""Matrix products on NVIDIA Hopper GPUs by kernels of our own, for gemmhub."""
