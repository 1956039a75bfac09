"""The deferring library for JAX's traced functions: products become part of the compiled program."""

from __future__ import annotations


def register() -> None:
    """Register for calls with tracers; concrete arrays are left to gemmhub."""
    from gemmhub import array_library

    try:
        from jax.core import Tracer

        from gemmhub._doors.jax.calls import take
    except (ImportError, AttributeError):
        return  # an older JAX without this interface to Python: arrays of traced functions are refused
    array_library.register_deferring(Tracer, take)
