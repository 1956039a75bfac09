"""Matrix products on Moore Threads GPUs by MUTLASS's kernels, compiled on first use, for gemmhub."""
