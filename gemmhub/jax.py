"""The public functions for JAX: products that JAX compiles into its programs.

:func:`gemmhub.matmul` itself takes JAX's arrays, also in traced functions.
"""

from __future__ import annotations

from gemmhub.kit import install

try:
    from gemmhub._doors.jax.calls import matmul
    from gemmhub._doors.jax.grouped import ragged_dot
except ModuleNotFoundError as error:
    raise install.missing(error, __name__, "jax", "jax") from None

__all__ = ["matmul", "ragged_dot"]


def __dir__() -> list[str]:
    return sorted(__all__)
