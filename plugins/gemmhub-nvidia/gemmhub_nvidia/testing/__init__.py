"""For tests of CUDA plugins: a fake libcuda, tests of a probe, and memory and checks on a card."""
