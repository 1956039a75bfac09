"""Matrix products on Moore Threads GPUs by muDNN, for gemmhub."""
