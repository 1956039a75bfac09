"""Prepared launches of the kernels and pre-passes."""
