"""Measurements of gemmhub: what benchmarks/README.md lists, run as ``python -m benchmarks.run.NAME`` from a clone."""
