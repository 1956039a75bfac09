"""The array library torch."""
