"""The built-in backend: NumPy's BLAS, with blocked conversion for dtypes that it lacks."""
