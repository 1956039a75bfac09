"""What gemmhub finds through the entry point: a description, nothing heavy."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_cpu.backend import CpuBackend

    return CpuBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    summary = "fast half, bfloat16 and int8: AMX and VNNI, threaded conversion"
    return [BackendDescription("cpu", _load, summary, contract=2)]
