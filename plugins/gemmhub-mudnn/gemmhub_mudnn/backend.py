"""Products on Moore Threads GPUs by muDNN's MatMul and BatchMatMul."""

from __future__ import annotations

from collections.abc import Callable

from gemmhub.backend import Array, Kernel
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import MachineBackend
from gemmhub.problem import GemmProblem
from gemmhub_mudnn import library as glue
from gemmhub_mudnn import lower, model, probe, proof
from gemmhub_mudnn.launch import Gemm
from gemmhub_mudnn.library import MudnnError
from gemmhub_mudnn.lower import Form, Lowered
from gemmhub_mudnn.proof import Kind

_KEPT = 4096
"""Problems whose answers are remembered."""


class MudnnBackend(MachineBackend[probe.Machine]):
    """See the module."""

    name = "mudnn"

    def __init__(self, look: Callable[[], probe.Machine | Absent] = probe.look) -> None:
        """For tests: another way to come by the machine."""
        super().__init__(look)
        self._answers: dict[GemmProblem, Lowered | Refusal] = {}
        self._tested: dict[tuple[int, str, str], Refusal | None] = {}
        self._proven: dict[tuple[int, Kind], Refusal | None] = {}

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def _analyse(self, problem: GemmProblem) -> Lowered | Refusal | None:
        """None where the result has no elements."""
        devices = self.machine.musa.count
        if problem.device.kind != "musa" or problem.device.index >= devices:
            return Refusal(f"the operands are on {problem.device}", f"copy them to one of {devices} MUSA devices")
        if problem.empty:
            return lower.check(problem)
        answer = self._answers.get(problem)
        if answer is None:
            answer = lower.lowered(problem)
            if isinstance(answer, Lowered):
                answer = self._lacking(answer.forms[0]) or answer
            with self._lock:
                if len(self._answers) >= _KEPT:
                    self._answers.clear()
                self._answers[problem] = answer
        if isinstance(answer, Refusal):
            return answer
        return self._unproven(problem.device.index, answer) or answer

    def _lacking(self, form: Form) -> Refusal | None:
        """What the installed header has no function for."""
        has = self.machine.library.features
        api = f"the installed muDNN ({self.machine.library.generation.name})"
        if "bfloat16" in (form.dtype, form.result) and not has & glue.BFLOAT16:
            return Refusal(f"{api} has no bfloat16", "convert to float16 or float32")
        if form.deterministic and not has & glue.DETERMINISTIC:
            return Refusal(f"{api} has no known switch for deterministic products", "leave deterministic=True away")
        if form.addend and not has & glue.SEPARATE_ADDEND:
            return Refusal(f"{api} adds no c", "add it to the product afterwards")
        if form.bias and not has & (glue.BIAS_ON_ADDEND if form.addend else glue.BIAS):
            return Refusal(f"{api} adds no bias{' beside c' * form.addend}", "add it to the product afterwards")
        return None

    def _unproven(self, index: int, lowered: Lowered) -> Refusal | None:
        """The first use of each dtype, and of each kind of product, proves it right or refuses it for good."""
        with self._lock:
            try:
                engine = self.machine.engine(index)
            except MudnnError as error:
                return Refusal(f"muDNN makes no handle: {error}", "see that the device has free memory")
            for form in lowered.forms:
                types, kind = (index, form.dtype, form.result), Kind.of(form, lowered.aligned)
                try:
                    if types not in self._tested:
                        self._tested[types] = proof.first(engine, form.dtype, form.result)
                    if self._tested[types] is None and (index, kind) not in self._proven:
                        self._proven[index, kind] = proof.prove(engine, kind)
                except AllocationError as error:
                    return Refusal(f"no memory for muDNN's self-test: {error}", "free some device memory")
                refusal = self._tested[types] or self._proven[index, kind]
                if refusal is not None:
                    return refusal
        return None

    def estimate(self, problem: GemmProblem) -> float:
        answer = self._analyse(problem)
        launches = len(answer.offsets) if isinstance(answer, Lowered) else 0
        return model.seconds(problem, self.machine.arch[problem.device.index], launches)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        answer = self._analyse(problem)
        if not isinstance(answer, Lowered):
            return ""
        form = answer.forms[0]
        parts = ["BatchMatMul" if form.stack else "MatMul"]
        if form.dtype == "float32":
            parts.append("TF32" if form.tensor_math else "no TF32")
        if len(answer.offsets) > 1:
            parts.append(f"{len(answer.offsets)} launches, as the batch is not evenly spaced")
        return ", ".join(parts)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Raises ValueError for what is refused or needs more workspace, AllocationError without device memory, and
        MudnnError where the library takes this kind of product but not this one.
        """
        answer = self._analyse(problem)
        if answer is None:
            return Kernel(_nothing, "nothing to do")
        if isinstance(answer, Refusal):
            raise ValueError(f"{answer.reason}; {answer.remedy}")
        gemm = Gemm(self.machine.engine(problem.device.index), answer, workspace_limit)
        return Kernel(gemm.run, f"muDNN {self.remark(problem, candidate)}", gemm.workspace_bytes)


def _nothing(
    a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: object, beta: object, stream: object
) -> None:
    pass
