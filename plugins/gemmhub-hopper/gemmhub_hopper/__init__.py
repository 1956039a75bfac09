"""Matrix products on NVIDIA Hopper GPUs by handwritten TMA and wgmma kernels, for gemmhub."""
