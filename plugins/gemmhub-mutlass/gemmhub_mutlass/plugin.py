"""Describes the backend for gemmhub's entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_mutlass.backend import MutlassBackend

    return MutlassBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    return [
        BackendDescription(
            "mutlass",
            _load,
            "MUTLASS on Moore Threads GPUs: its collective builders, compiled on first use; needs MUTLASS_HOME",
            device_types=("musa",),
            contract=2,
            variables=("GEMMHUB_MCC",),
        )
    ]
