"""Backends of gemmhub as implementations: every candidate of an offer, through the contract of backends.

Memory of a device comes from a plugin, which names it by the type of the device in the entry-point group
``gemmhub.audit``::

    [project.entry-points."gemmhub.audit"]
    cuda = "gemmhub_nvidia.testing.torch_cuda:TorchMemory"

It is called with the device's index and returns a :class:`gemmhub.testing.Memory`.

A library that a plugin calls can be audited without what the plugin knows of the library's faults, as a backend that is
no candidate for products. It is called without arguments, and returns a :class:`gemmhub.backend.Backend`::

    [project.entry-points."gemmhub.audit.backends"]
    cublaslt = "gemmhub_cublas.every_algorithm:EveryAlgorithm"
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gemmhub._audit.claims import Claims, Products, known_forms
from gemmhub._audit.implementation import Implementation, Refused, Run
from gemmhub._audit.judge import Wrong
from gemmhub._base.guard import guarded
from gemmhub._choice.registry import registry
from gemmhub.backend import Backend, takes_of
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.errors import DependencyError
from gemmhub.operands import OPERANDS
from gemmhub.testing.answers import offered, prepared
from gemmhub.testing.axes import DTYPES
from gemmhub.testing.case import Case
from gemmhub.testing.memory import HOST, Memory
from gemmhub.testing.operands import Operands

GROUP = "gemmhub.audit"
UNFILTERED = "gemmhub.audit.backends"
PREFIX = "gemmhub/"
"""Start of the names of backends in an audit: "gemmhub/cpu"."""

_FEATURES = frozenset({
    "out", "batch", "alpha", "wide scalars", "zero alpha", "c in place", "c and bias", "addend dtypes",
})  # fmt: skip


def claims_of(backend: Backend | None) -> Claims:
    """The claims of a backend, by its ``takes``; None for gemmhub's own call, which takes everything."""
    every: Products = frozenset((x["a_dtype"], x["b_dtype"], x["out_dtype"]) for x in DTYPES)
    if backend is None:
        takes: Mapping[str, frozenset[str] | None] = dict.fromkeys((*OPERANDS, *_OPTIONS))
        features = _FEATURES | {"alias", "zero beta"}
    else:
        takes = {name: taken and taken & {*known_forms(name)} for name, taken in takes_of(backend).items()}
        features = _FEATURES
    promises = takes.get("reproducible", frozenset())
    bits = {"run", "rows", "threads"} if promises is None or "batch" in promises else {"run"} if promises else set()
    return Claims(every, takes=takes, features=features, bits=frozenset(bits), precision=None)


_OPTIONS = ("activation", "precision", "reproducible")


@dataclass(frozen=True)
class BackendImplementation(Implementation):
    """A backend of gemmhub. Every candidate that it offers for a product is one run."""

    backend: Any = None

    def runs(self, operands: Operands) -> Iterator[Run]:
        try:
            offer = offered(self.backend, operands.problem)
            if isinstance(offer, Refusal):
                raise Refused(offer.reason)
            kernels = [(name, prepared(self.backend, operands.problem, name, offer.workspace)) for name in offer.names]
        except AssertionError as error:
            raise Wrong("contract", str(error)) from error
        for name, kernel in kernels if not operands.problem.empty else ():

            def call(kernel: Any = kernel, name: str = name) -> None:
                try:
                    operands.run(kernel)
                except Exception as error:
                    text = f"{name}: a kernel that was offered raised {type(error).__name__}: {error}"
                    raise Wrong("contract", text) from error

            yield Run(name, call)
        if operands.problem.empty:
            yield Run("nothing to compute", lambda: None)

    def writes(self, case: Case) -> bool:
        return True

    def script(self, case: Case, dense: bool, values: bool) -> None:
        """There is none: a candidate is called through gemmhub."""
        return


def backend_implementations(device: Device) -> dict[str, Implementation]:
    """The ready backends that run on ``device``, by name."""
    found: dict[str, Implementation] = {}
    for entry in registry():
        if device.type not in entry.device_types:
            continue
        answer = entry.get()
        if isinstance(answer, Refusal):
            continue
        backend, ready = answer
        if device in ready.devices:
            name = f"{PREFIX}{entry.name}"
            found[name] = implementation(name, backend, ready, _memory(device))
    for point in importlib.metadata.entry_points(group=UNFILTERED):
        unfiltered = guarded(partial(_probed, point), f"probing {point.name}", "leave it out of the audit")
        if not isinstance(unfiltered, Refusal) and device in unfiltered[1].devices:
            found[point.name] = implementation(point.name, *unfiltered, _memory(device))
    return found


def _probed(point: importlib.metadata.EntryPoint) -> tuple[Backend, Ready] | Refusal:
    backend: Backend = point.load()()
    answer = backend.probe()
    return (backend, answer) if isinstance(answer, Ready) else answer


def implementation(name: str, backend: Backend, ready: Ready, memory: Memory = HOST) -> Implementation:
    """A backend that has been probed, as an implementation."""
    versions = dict(ready.versions)
    return BackendImplementation(name, claims_of(backend), str, "", lambda: versions, None, memory, backend=backend)


def _memory(device: Device) -> Memory:
    if device.type == "cpu":
        return HOST
    points = [x for x in importlib.metadata.entry_points(group=GROUP) if x.name == device.type]
    if not points:
        raise DependencyError(
            f"no installed distribution has memory of {device.type} for an audit; install one that names it in the "
            f"entry-point group {GROUP!r}, such as gemmhub-nvidia"
        )
    memory: Memory = points[0].load()(device.index)
    return memory
