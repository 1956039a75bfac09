"""The benchmarks for readers, one command each."""
