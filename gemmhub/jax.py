"""The public functions for JAX: a product that JAX compiles into its programs.

:func:`gemmhub.matmul` itself takes JAX's arrays, also in traced functions.
"""

from __future__ import annotations

from gemmhub._doors.jax.calls import matmul

__all__ = ["matmul"]
