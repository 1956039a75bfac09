"""The steps from a naive GEMM kernel to that of gemmhub-cuda; docs/cuda-ladder.md explains them."""
