"""The backend of muDNN: products by its MatMul and BatchMatMul."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from gemmhub_musa.backend import Analysis, MusaBackend

from gemmhub.backend import BASIC, Candidate, Kernel, Offer
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mudnn import library as glue
from gemmhub_mudnn import lower, model, probe, proof
from gemmhub_mudnn.launch import Gemm
from gemmhub_mudnn.library import MudnnError
from gemmhub_mudnn.lower import Form, Lowered
from gemmhub_mudnn.proof import Kind

_NAME = "default"
"""Name of the only candidate."""


class MudnnBackend(MusaBackend[probe.Machine, Lowered, None]):
    """muDNN on Moore Threads GPUs."""

    name = "mudnn"
    takes: ClassVar = {
        "c": BASIC["c"],
        "bias": BASIC["bias"],
        "precision": BASIC["precision"],
        "reproducible": BASIC["reproducible"],
    }

    def __init__(self, look: Callable[[], probe.Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._tested: dict[tuple[int, str, str], Refusal | None] = {}
        self._proven: dict[tuple[int, Kind], Refusal | None] = {}

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis[Lowered, None] | Refusal:
        found = lower.lowered(problem)
        if isinstance(found, Refusal):
            return found
        refusal = self._lacking(found.forms[0]) or self._unproven(problem.device.index, found)
        return refusal or Analysis(found, {_NAME: None})

    def _lacking(self, form: Form) -> Refusal | None:
        """Return a refusal where the installed header has no function for ``form``."""
        has = self.machine.library.features
        api = f"the installed muDNN ({self.machine.library.generation.name})"
        if "bfloat16" in (form.dtype, form.result) and not has & glue.BFLOAT16:
            return Refusal(f"{api} has no bfloat16", "convert to float16 or float32")
        if form.deterministic and not has & glue.DETERMINISTIC:
            return Refusal(f"{api} has no documented switch for deterministic products", "leave reproducible= out")
        if form.addend and not has & glue.SEPARATE_ADDEND:
            return Refusal(f"{api} adds no c", "add it to the product afterwards")
        if form.bias and not has & (glue.BIAS_ON_ADDEND if form.addend else glue.BIAS):
            return Refusal(f"{api} adds no bias{' together with c' * form.addend}", "add it to the product afterwards")
        return None

    def _unproven(self, index: int, lowered: Lowered) -> Refusal | None:
        """Prove the first product of each dtype and of each kind right, or refuse it for good."""
        with self._lock:
            for form in lowered.forms:
                types, kind = (index, form.dtype, form.result), Kind.of(form, lowered.aligned)
                if types not in self._tested:
                    self._tested[types] = self.machine.proven(
                        f"muDNN's {form.dtype} to {form.result} on musa:{index}", types, partial(_first, types=types)
                    )
                if self._tested[types] is None and (index, kind) not in self._proven:
                    self._proven[index, kind] = self.machine.proven(
                        f"muDNN's {kind} on musa:{index}", (index, kind), partial(_prove, index=index, kind=kind)
                    )
                refusal = self._tested[types] or self._proven[index, kind]
                if refusal is not None:
                    return refusal
        return None

    def _offered(self, problem: GemmProblem, analysis: Analysis[Lowered, None]) -> Offer:
        arch = self.machine.arch[problem.device.index]
        seconds = model.seconds(problem, arch, len(analysis.lowered.offsets))
        return Offer([Candidate(_NAME, seconds)], lambda name: _remark(analysis.lowered))

    def _prepared(
        self, problem: GemmProblem, lowered: Lowered, candidate: None, workspace_limit: int
    ) -> Kernel | Refusal:
        try:
            gemm = Gemm(self.machine.engine(problem.device.index), lowered, workspace_limit)
        except MudnnError as error:
            return Refusal(f"muDNN takes this kind of product, but not this one: {error}", proof.OTHER)
        return Kernel(gemm.run, f"muDNN {_remark(lowered)}", gemm.workspace_bytes)


def _remark(lowered: Lowered) -> str:
    form = lowered.forms[0]
    words = ["BatchMatMul" if form.stack else "MatMul"]
    if form.dtype == "float32":
        words.append("TF32" if form.tensor_math else "no TF32")
    if len(lowered.offsets) > 1:
        words.append(f"{len(lowered.offsets)} launches, as the batch is not evenly spaced")
    return ", ".join(words)


def _first(machine: probe.Machine, types: tuple[int, str, str]) -> Refusal | None:
    index, dtype, result = types
    return proof.first(machine.engine(index), dtype, result)


def _prove(machine: probe.Machine, index: int, kind: Kind) -> Refusal | None:
    return proof.prove(machine.engine(index), kind)
