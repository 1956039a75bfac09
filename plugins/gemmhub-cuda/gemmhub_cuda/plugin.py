"""Describes the backend to gemmhub through the entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_cuda.backend import CudaBackend

    return CudaBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    summary = (
        "handwritten kernels for every NVIDIA GPU: float32; from Ampere on 16 bits and int8; from Ada on float8 with "
        "scales; fused epilogues"
    )
    return [BackendDescription("cuda", _load, summary, device_types=("cuda",), contract=2)]
