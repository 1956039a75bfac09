"""What authors of backends build on: compilers and their cache, the CUDA driver, launches, leases, corrections."""
