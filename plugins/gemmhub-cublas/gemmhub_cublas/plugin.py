"""Describes the backend to gemmhub through the entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_cublas.backend import CublasBackend

    return CublasBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    summary = "cuBLASLt on NVIDIA GPUs: every dtype it has, fused bias, relu and gelu_tanh"
    return [BackendDescription("cublas", _load, summary, device_types=("cuda",), contract=2)]
