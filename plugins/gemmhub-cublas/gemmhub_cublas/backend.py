"""Products on NVIDIA GPUs by cuBLASLt.

Candidates are its algorithms, named by their configuration. The first one, which runs untuned, is the library's own
first choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmhub.backend import Kernel
from gemmhub.capability import Ready, Refusal
from gemmhub.kit import cuda
from gemmhub.kit.corrections import NOTE
from gemmhub.kit.cuda import Driver
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend
from gemmhub.problem import GemmProblem
from gemmhub_cublas import corrections, library, lower, model, probe
from gemmhub_cublas.choose import Algorithm, Chooser
from gemmhub_cublas.launch import Gemm
from gemmhub_cublas.library import Library, StatusError, words
from gemmhub_cublas.lower import Form, Lowered

WORKSPACE = 64 * 2**20
"""Bytes of workspace that candidates may ask for: gemmhub's default limit."""
_USUAL_WORKSPACE = 32 * 2**20
"""What the library is asked to propose algorithms for first: told of more it was seen to begin with slower ones (2 % of
random products lost more than 3 %, up to 37 %). It is what torch.matmul grants it."""
_ANSWERS = (0, 7, 8, 15)
"""Statuses that speak of the problem (success, INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED), not of the moment."""
_LARGEST = 2**33
"""Elements of a result for which the library is asked about algorithms that it did not propose: beyond, its check
was seen to crash where the number of tiles overflows."""
_NOTHING = "nothing"
"""The one candidate for a result without elements."""


@dataclass
class Analysis:
    """A problem that the library runs."""

    lowered: Lowered
    algorithms: dict[Form, list[Algorithm]]
    """At least one for each of ``lowered.forms``, the library's first choice first."""

    @property
    def form(self) -> Form:
        """The form that the candidates are for."""
        return self.lowered.forms[0]

    @property
    def candidates(self) -> list[str]:
        return [algorithm.config for algorithm in self.algorithms[self.form]]


class CublasBackend(MachineBackend[probe.Machine]):
    """See the module."""

    name = "cublas"

    def __init__(
        self,
        open_driver: Callable[[], Driver] = cuda.load,
        open_library: Callable[[int], Library] = library.load,
    ) -> None:
        """For tests: other ways to come by the driver and the library."""
        super().__init__(lambda: probe.look(open_driver, open_library))

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """None where the result has no elements. The library is asked once for a problem."""
        devices = len(self.machine.gpus)
        if problem.device.kind != "cuda" or problem.device.index >= devices:
            return Refusal(f"the operands are on {problem.device}", f"copy them to one of {devices} CUDA devices")
        if problem.empty:
            return lower.check_types(problem)
        return self.remembered(problem, lambda: self._choose(problem))

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal:
        lowered = lower.lowered(problem)
        return lowered if isinstance(lowered, Refusal) else self._ask(problem, lowered)

    def _ask(self, problem: GemmProblem, lowered: Lowered) -> Analysis | Refusal:
        """The library's algorithms for every form that calls may need."""
        analysis = Analysis(lowered, {})
        with self.machine.gpus[problem.device.index]:
            for form in lowered.forms:
                chooser = self._chooser(problem, form)
                proposed, status = chooser.proposed(_USUAL_WORKSPACE)
                _add(proposed, chooser.proposed(WORKSPACE)[0])
                if status not in _ANSWERS:
                    raise StatusError("cublasLtMatmulAlgoGetHeuristic", status)
                if not proposed:
                    return self._no_algorithm(problem, form, status)
                analysis.algorithms[form] = proposed
            chooser, known = self._chooser(problem, analysis.form), analysis.algorithms[analysis.form]
            if analysis.form.d.rows * analysis.form.d.cols <= _LARGEST:
                _add(known, [chooser.swizzled(algorithm) for algorithm in known])
        return analysis

    def _chooser(self, problem: GemmProblem, form: Form) -> Chooser:
        return Chooser(self.machine.library, self.machine.handle(problem.device.index), form)

    def _no_algorithm(self, problem: GemmProblem, form: Form, status: int) -> Refusal:
        machine = self.machine
        why = words(status) if status else "it proposes none"
        gpu = machine.gpus[problem.device.index]
        return Refusal(
            f"cuBLASLt {machine.library.version} has no algorithm for this on {gpu.name}, {why}; {lower.stored(form)}",
            lower.advice(problem, form),
        )

    def estimate(self, problem: GemmProblem) -> float | None:
        analysis = self._analyse(problem)
        gpu = self.machine.gpus[problem.device.index]
        if not isinstance(analysis, Analysis):
            return model.LAUNCH if model.rated(gpu) else None
        return corrections.seconds(problem, analysis.lowered, gpu, self.machine.library.version)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        parts = [f"algorithm {candidate}"]
        launches = len(analysis.lowered.offsets)
        if launches > 1:
            parts.append(f"{launches} launches, as the batch is not evenly spaced")
        if analysis.form.epilogue != lower.NO_EPILOGUE:
            parts.append("epilogue fused")
        gpu = self.machine.gpus[problem.device.index]
        if corrections.find(problem, gpu, self.machine.library.version) is None:
            parts.append(NOTE)
        return ", ".join(parts)

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        analysis = self._analyse(problem)
        return analysis.candidates if isinstance(analysis, Analysis) else (_NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Raises ValueError for a candidate that is none, or does not fit, and MemoryError without device memory."""
        analysis = self._analyse(problem)
        if analysis is None:
            return NOTHING_TO_DO
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        lowered = analysis.lowered
        limit = workspace_limit - lowered.zero_bytes
        chosen = {form: self._fitting(problem, analysis, form, None, limit) for form in lowered.forms}
        chosen[analysis.form] = first = self._fitting(problem, analysis, analysis.form, candidate, limit)
        workspace = max(algorithm.workspace for algorithm in chosen.values())
        if workspace:
            self.machine.workspaces[problem.device.index].reserve(workspace, limit)
        gemm = Gemm(self.machine, problem, lowered, chosen, limit)
        description = f"cuBLASLt {self.machine.library.version} algorithm {first.config}"
        if first.config != candidate:
            description += f" ({candidate} needs more workspace than {workspace_limit} bytes)"
        return Kernel(gemm.run, description, workspace + lowered.zero_bytes)

    def _fitting(
        self, problem: GemmProblem, analysis: Analysis, form: Form, config: str | None, limit: int
    ) -> Algorithm:
        """The algorithm called ``config``, else the best one, with at most ``limit`` bytes of workspace."""
        known = analysis.algorithms[form]
        wanted = [algorithm for algorithm in known if config in (None, algorithm.config)]
        with self.machine.gpus[problem.device.index]:
            if config is not None and not wanted:
                rebuilt = self._chooser(problem, form).rebuilt(config)
                if rebuilt is None:
                    raise ValueError(f"cuBLASLt does not run algorithm {config} on {problem}")
                wanted = [rebuilt]
            fitting = [algorithm for algorithm in wanted if algorithm.workspace <= limit]
            if not fitting and limit >= 0:
                fitting = self._chooser(problem, form).proposed(limit)[0]
        if not fitting:
            raise ValueError(f"cuBLASLt needs more workspace for {problem}: raise the setting workspace_mib")
        return fitting[0]


def _add(known: list[Algorithm], found: Sequence[Algorithm | None]) -> None:
    """Append those that exist, fit and are new."""
    configs = {algorithm.config for algorithm in known}
    known += [x for x in found if x is not None and x.workspace <= WORKSPACE and x.config not in configs]
