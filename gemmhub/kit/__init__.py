"""Building blocks for backends: compilers and their cache, the CUDA driver, launches, leases, corrections."""
