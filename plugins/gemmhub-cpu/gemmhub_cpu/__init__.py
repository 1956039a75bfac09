"""Fast half, bfloat16 and int8 GEMM on CPUs, for gemmhub."""
