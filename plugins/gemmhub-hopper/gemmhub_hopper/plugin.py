"""Describes the backend to gemmhub through the entry point, without heavy imports."""

from __future__ import annotations

from gemmhub.backend import Backend, BackendDescription
from gemmhub.hookspecs import hookimpl


def _load() -> Backend:
    from gemmhub_hopper.backend import HopperBackend

    return HopperBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    summary = "TMA and wgmma kernels for Hopper GPUs: float16, bfloat16, float32, tf32, fp8, int8; fused epilogues"
    variables = ("GEMMHUB_HOPPER_PDL",)
    return [BackendDescription("hopper", _load, summary, device_types=("cuda",), contract=2, variables=variables)]
