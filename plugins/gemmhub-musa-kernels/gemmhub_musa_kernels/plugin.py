"""Describes the backend for gemmhub's entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_musa_kernels.backend import MusaKernelsBackend

    return MusaKernelsBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    return [
        BackendDescription(
            "musa-kernels",
            _load,
            "handwritten kernels for Moore Threads GPUs: float16, bfloat16; any strides, epilogue and batch",
            device_types=("musa",),
            contract=2,
            variables=("GEMMHUB_MCC",),
        )
    ]
