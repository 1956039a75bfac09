"""Describes the backend for gemmhub's entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_mudnn.backend import MudnnBackend

    return MudnnBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    summary = "muDNN on Moore Threads GPUs: float16, bfloat16 and float32, with bias"
    variables = ("GEMMHUB_MCC",)
    return [BackendDescription("mudnn", _load, summary, device_types=("musa",), contract=2, variables=variables)]
