"""Generators of the documentation's tables and figures from result files."""
