"""The built-in backend: NumPy's own BLAS where it is fast, blocked conversion to it where NumPy is not."""
