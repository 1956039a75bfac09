"""JAX's users find here: a product that is part of the programs which JAX compiles.

:func:`gemmhub.matmul` itself takes JAX's arrays, and in traced functions does the same.
"""

from __future__ import annotations

from gemmhub._doors.jax.calls import matmul

__all__ = ["matmul"]
