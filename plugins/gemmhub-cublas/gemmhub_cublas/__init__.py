"""Matrix products on NVIDIA GPUs by cuBLASLt, for gemmhub."""
