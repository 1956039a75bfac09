"""The rig that the benchmarks share: random products, timing on a card and on the host, result files."""
