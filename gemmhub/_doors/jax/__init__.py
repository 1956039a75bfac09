"""Arrays of JAX in functions that it traces: products that are part of the compiled program."""

from __future__ import annotations


def register() -> None:
    """Take the calls with tracers; concrete arrays are left to gemmhub."""
    from gemmhub import array_library

    try:
        from jax.core import Tracer

        from gemmhub._doors.jax.calls import take
    except (ImportError, AttributeError):
        return  # an older JAX, whose programs cannot call Python so: arrays of traced functions are refused
    array_library.register_deferring(Tracer, take)
