"""The module of the entry point: it describes the backend and imports nothing heavy."""

from __future__ import annotations

from gemmhub import Backend, BackendDescription, hookimpl


def _load() -> Backend:
    from gemmhub_example_good.backend import ExampleBackend

    return ExampleBackend()


@hookimpl
def gemmhub_backends() -> list[BackendDescription]:
    variables = ("GEMMHUB_EXAMPLE_MODE",)
    return [BackendDescription("example", _load, "float32 in blocks, an example", contract=2, variables=variables)]
