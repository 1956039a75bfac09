"""Measurements of gemmhub, run as ``python -m benchmarks.run.NAME`` from a clone; benchmarks/README.md lists them."""
