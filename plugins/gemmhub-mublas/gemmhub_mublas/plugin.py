"""Describes the plugin's two backends for gemmhub's entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load_mublas() -> Backend:
    from gemmhub_mublas.backend import MublasBackend

    return MublasBackend()


def _load_mublaslt() -> Backend:
    from gemmhub_mublas.lt.backend import MublasLtBackend

    return MublasLtBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    return [
        BackendDescription(
            "mublas",
            _load_mublas,
            "muBLAS on Moore Threads GPUs: floats, complex, int8; any batch",
            device_types=("musa",),
            contract=2,
            variables=("GEMMHUB_MCC",),
        ),
        BackendDescription(
            "mublaslt",
            _load_mublaslt,
            "muBLASLt on Moore Threads GPUs (SDK 4.2 or later): floats, int8, fused bias, relu and gelu_tanh",
            device_types=("musa",),
            contract=2,
            variables=("GEMMHUB_MCC",),
        ),
    ]
