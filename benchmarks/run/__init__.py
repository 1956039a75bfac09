"""The benchmarks that a reader runs: one command each."""
