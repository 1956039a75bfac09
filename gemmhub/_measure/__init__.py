"""How fast a product is: tuning, races, benchmarks."""
