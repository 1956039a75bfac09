"""Arrays of NumPy."""
