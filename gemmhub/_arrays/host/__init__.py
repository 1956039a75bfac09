"""The array library NumPy."""
