"""Handwritten GEMM kernels for Moore Threads GPUs, compiled by the installed SDK on first use."""
