"""A small, correct backend: float32 products in blocks, by NumPy."""
