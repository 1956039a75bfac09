"""Matrix products on NVIDIA GPUs by handwritten CUDA kernels, for gemmhub."""
