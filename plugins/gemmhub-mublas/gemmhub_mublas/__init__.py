"""Matrix products on Moore Threads GPUs by muBLAS and muBLASLt, for gemmhub."""
