"""A backend whose answers can be replaced by wrong ones, one at a time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np

from gemmhub import (
    Absent,
    Backend,
    BackendDescription,
    Candidate,
    Device,
    GemmProblem,
    Kernel,
    Offer,
    Ready,
    Refusal,
    hookimpl,
)
from gemmhub.backend import WORKSPACE
from gemmhub.operands import OPERANDS


class Scripted(Backend):
    """Plain products by NumPy; an estimate that beats every other backend. Each answer can be replaced.

    A replacement is the answer itself, a function of what the method is given, or an exception to raise.
    ``calls`` counts how often each method was called.
    """

    takes = dict.fromkeys((*OPERANDS, "activation", "precision", "reproducible"))

    def __init__(self, name: str, layout_sensitive: bool = False, **answers: Any) -> None:
        self.name = name
        self.layout_sensitive = layout_sensitive
        self.answers = answers
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _answer(self, method: str, right: Any, *given: Any) -> Any:
        with self._lock:
            self.calls[method] += 1
        answer = self.answers.get(method, right)
        if isinstance(answer, BaseException):
            raise type(answer)(*answer.args)  # a new one: an exception raised again carries its old traceback
        return answer(*given) if callable(answer) else answer

    def probe(self) -> Ready | Absent:
        return self._answer("probe", Ready((Device("cpu"),), {"example": "1.0"}))

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        return self._answer("offer", self._offer, problem)

    def _offer(self, problem: GemmProblem) -> Offer | Refusal:
        right = None if problem.plain else Refusal("it knows no epilogue", "leave alpha, beta and bias away")
        refusal = self._answer("refusal", right, problem)
        if refusal is not None:
            return refusal
        names = self._answer("candidates", ("default",), problem)
        if isinstance(names, str):
            return Offer(names)  # type: ignore[arg-type]
        seconds, copies = self._answer("seconds", 1e-9, problem), self._answer("copies", (), problem)
        return Offer(
            tuple(Candidate(name, seconds, copies) for name in names),
            lambda candidate: self._answer("remark", "", problem, candidate),
            self._answer("workspace", WORKSPACE, problem),
        )

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        return self._answer("prepare", self._kernel, problem, candidate, workspace_limit)

    def _kernel(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        def run(a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, **operands: Any) -> None:
            np.matmul(a, b, out=out)
            self._answer("run", None, a, b, out, candidate)

        return Kernel(run, f"numpy.matmul as {candidate}")


_CPU = (Device("cpu"),)

LOADING_FAULTS: dict[str, dict[str, Any]] = {
    "load_raises": {"load": ImportError("libexample.so: cannot open shared object file")},
    "load_exits": {"load": SystemExit(1)},
    "load_gives_class": {"load": Scripted},
    "probe_raises": {"probe": RuntimeError("driver version is insufficient")},
    "probe_exits": {"probe": SystemExit("no device")},
    "probe_gives_true": {"probe": True},
    "probe_gives_none": {"probe": None},
    "probe_names_devices": {"probe": Ready(("cpu",))},  # type: ignore[arg-type]
    "probe_lacks_devices": {"probe": Ready(None)},  # type: ignore[arg-type]
    "probe_gives_version_numbers": {"probe": Ready(_CPU, {"driver": 12.4})},  # type: ignore[dict-item]
    "probe_lacks_features": {"probe": Ready(_CPU, {}, None)},  # type: ignore[arg-type]
    "probe_gives_features_as_text": {"probe": Ready(_CPU, {}, "avx")},  # type: ignore[arg-type]
    "probe_absent": {"probe": Absent("no example card in this machine", "plug one in")},
}
"""Answers that are wrong, by name: those that keep the backend from being loaded and probed."""

ASKING_FAULTS: dict[str, dict[str, Any]] = {
    "offer_raises": {"offer": ZeroDivisionError("division by zero")},
    "offer_exits": {"offer": SystemExit(1)},
    "offer_gives_true": {"offer": True},
    "offer_is_empty": {"candidates": ()},
    "offer_has_text": {"candidates": "default"},
    "offer_has_names": {"offer": Offer(("default",))},  # type: ignore[arg-type]
    "offer_has_workspace_in_words": {"workspace": "64 MiB"},
    "remark_raises": {"remark": UnicodeError("surrogates")},
    "prepare_raises": {"prepare": RuntimeError("nvrtc: compilation failed")},
    "prepare_lacks_memory": {"prepare": MemoryError("workspace")},
    "prepare_gives_none": {"prepare": lambda problem, candidate, limit: None},
    "prepare_refuses": {"prepare": lambda problem, candidate, limit: Refusal("no algorithm found", "pad k to 8")},
    "run_raises": {"run": ValueError("illegal instruction")},
    "run_lacks_memory": {"run": MemoryError("4 GiB")},
}
"""Those that show when it is asked about a problem, prepares or runs it."""

FAULTS = {**LOADING_FAULTS, **ASKING_FAULTS}


class Faulty:
    """The plugin of one fault; its backend is called like the fault, with hyphens."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    @hookimpl
    def gemmhub_backends(self) -> list[BackendDescription]:
        name = self._fault.replace("_", "-")
        return [BackendDescription(name, self._load, f"has the fault {self._fault}", contract=2)]

    def _load(self) -> Any:
        answers = dict(FAULTS[self._fault])
        load = answers.pop("load", None)
        if isinstance(load, BaseException):
            raise load
        return load or Scripted(self._fault.replace("_", "-"), **answers)


def __getattr__(fault: str) -> Faulty:
    if fault not in FAULTS:
        raise AttributeError(fault)
    return Faulty(fault)
