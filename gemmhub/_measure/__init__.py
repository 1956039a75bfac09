"""Measuring the speed of products: tuning, races, benchmarks."""
