"""The backend for NVIDIA GPUs by cuBLASLt.

Its candidates are the library's algorithms, named by their configuration. The first one, which runs untuned, is the
library's own first choice.
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
"""Bytes of workspace that candidates may need: gemmhub's default limit."""
_USUAL_WORKSPACE = 32 * 2**20
"""Bytes of workspace for which the library first proposes algorithms, as torch.matmul does.

With more it ranks slower ones first: 2 % of random products lost more than 3 %, up to 37 %.
"""
_ANSWERS = (0, 7, 8, 15)
"""Statuses that depend on the problem only: success, INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED."""
_LARGEST = 2**33
"""Largest number of elements of a result for which algorithms are checked that the library did not propose.

Above it, the library's check crashes where the number of tiles overflows.
"""
_NOTHING = "nothing"
"""Name of the only candidate for a result without elements."""


@dataclass
class Analysis:
    """A lowered problem with the algorithms for its forms."""

    lowered: Lowered
    algorithms: dict[Form, list[Algorithm]]
    """At least one algorithm for each of ``lowered.forms``, the library's first choice first."""

    @property
    def form(self) -> Form:
        """The form whose algorithms are the candidates."""
        return self.lowered.forms[0]

    @property
    def candidates(self) -> list[str]:
        """The names of the candidates, the library's first choice first."""
        return [algorithm.config for algorithm in self.algorithms[self.form]]


class CublasBackend(MachineBackend[probe.Machine]):
    """cuBLASLt on NVIDIA GPUs."""

    name = "cublas"
    by_bucket = True

    def __init__(
        self,
        open_driver: Callable[[], Driver] = cuda.load,
        open_library: Callable[[int], Library] = library.load,
    ) -> None:
        """Tests pass other functions that open the driver and the library."""
        super().__init__(lambda: probe.look(open_driver, open_library))

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        """Return None, or the reason why the library does not run ``problem``."""
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """Return the analysis or refusal of ``problem``, made once; None where the result has no elements."""
        return self.remembered(problem, lambda: self._choose(problem))

    def _lower(self, problem: GemmProblem) -> Lowered | Refusal | None:
        """Return the lowered problem or a refusal; None where the result has no elements."""
        devices = len(self.machine.gpus)
        if problem.device.kind != "cuda" or problem.device.index >= devices:
            return Refusal(f"the operands are on {problem.device}", f"copy them to one of {devices} CUDA devices")
        return lower.check_types(problem) if problem.empty else lower.lowered(problem)

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal | None:
        lowered = self._lower(problem)
        return self._ask(problem, lowered) if isinstance(lowered, Lowered) else lowered

    def _ask(self, problem: GemmProblem, lowered: Lowered) -> Analysis | Refusal:
        """Return the library's algorithms for every form that calls may need."""
        analysis = Analysis(lowered, {})
        with self.machine.gpus[problem.device.index]:
            for form in lowered.forms:
                chooser = self._chooser(problem, form)
                proposed, status = chooser.proposed(_USUAL_WORKSPACE)
                if form is analysis.form or not proposed:
                    _add(proposed, chooser.proposed(WORKSPACE)[0])
                if status not in _ANSWERS:
                    raise StatusError("cublasLtMatmulAlgoGetHeuristic", status)
                if not proposed:
                    return self._no_algorithm(problem, form, status)
                analysis.algorithms[form] = proposed
            chooser, proposed = self._chooser(problem, analysis.form), analysis.algorithms[analysis.form]
            if analysis.form.d.rows * analysis.form.d.cols <= _LARGEST:
                _add(proposed, [chooser.swizzled(algorithm) for algorithm in proposed])
        return analysis

    def _chooser(self, problem: GemmProblem, form: Form) -> Chooser:
        return Chooser(self.machine, problem.device.index, form)

    def _no_algorithm(self, problem: GemmProblem, form: Form, status: int) -> Refusal:
        machine = self.machine
        why = words(status) if status else "it proposes none"
        gpu = machine.gpus[problem.device.index]
        return Refusal(
            f"cuBLASLt {machine.library.version} has no algorithm for this on {gpu.name}, {why}; {lower.stored(form)}",
            lower.advice(problem, form),
        )

    def estimate(self, problem: GemmProblem) -> float | None:
        """Return the seconds of the library's first choice; None where the device's rates are not reported."""
        analysis = self._analyse(problem)
        gpu = self.machine.gpus[problem.device.index]
        if not isinstance(analysis, Analysis):
            return model.LAUNCH if model.rated(gpu) else None
        return corrections.seconds(problem, analysis.lowered, gpu, self.machine.library.version)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``: algorithm, launches, fused epilogue."""
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
        """Return the names of the algorithms, the library's first choice first."""
        analysis = self._analyse(problem)
        return analysis.candidates if isinstance(analysis, Analysis) else (_NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run, or another algorithm where it does not fit into the workspace.

        Raises ValueError where the library does not run it or none fits, and MemoryError without device memory.
        """
        analysis = self._checked(problem, candidate, workspace_limit) or self._analyse(problem)
        if analysis is None:
            return NOTHING_TO_DO
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        lowered = analysis.lowered
        limit = workspace_limit - lowered.zero_bytes
        chosen = [
            self._fitting(problem, analysis, form, None if i else candidate, limit)
            for i, form in enumerate(lowered.forms)
        ]
        first, workspace = chosen[0], max(algorithm.workspace for algorithm in chosen)
        if workspace:
            self.machine.workspaces[problem.device.index].reserve(workspace, limit)
        gemm = Gemm(self.machine, problem, lowered, chosen, limit)
        description = f"cuBLASLt {self.machine.library.version} algorithm {first.config}"
        if first.config != candidate:
            description += f" ({candidate} needs more workspace than {workspace_limit} bytes)"
        return Kernel(gemm.run, description, workspace + lowered.zero_bytes)

    def _checked(self, problem: GemmProblem, config: str, workspace_limit: int) -> Analysis | None:
        """Return an analysis with the algorithm called ``config`` alone, which the library has checked for ``problem``.

        None where more has to be asked: a result that is too large for the check, an algorithm that the library does
        not run. So a new size of a known bucket needs proposals, which take a millisecond, for other forms alone.
        """
        lowered = self._lower(problem)
        if not isinstance(lowered, Lowered):
            return None
        form, *others = lowered.forms
        if form.d.rows * form.d.cols > _LARGEST:
            return None
        with self.machine.gpus[problem.device.index]:
            algorithm = self._chooser(problem, form).rebuilt(config)
            if algorithm is None or algorithm.workspace + lowered.zero_bytes > workspace_limit:
                return None
            algorithms = {form: [algorithm]}
            for other in others:
                algorithms[other] = self._chooser(problem, other).proposed(_USUAL_WORKSPACE)[0]
        return Analysis(lowered, algorithms) if all(algorithms.values()) else None

    def _fitting(
        self, problem: GemmProblem, analysis: Analysis, form: Form, config: str | None, limit: int
    ) -> Algorithm:
        """Return the algorithm called ``config``, else the best one, within ``limit`` bytes of workspace."""
        known = False
        for algorithm in analysis.algorithms[form]:
            if config is None or algorithm.config == config:
                known = True
                if algorithm.workspace <= limit:
                    return algorithm
        fitting: list[Algorithm] = []
        with self.machine.gpus[problem.device.index]:
            chooser = self._chooser(problem, form)
            if config is not None and not known:
                rebuilt = chooser.rebuilt(config)
                if rebuilt is None:
                    raise ValueError(f"cuBLASLt does not run algorithm {config} on {problem}")
                fitting = [rebuilt] if rebuilt.workspace <= limit else []
            if not fitting and limit >= 0:
                fitting = chooser.proposed(limit)[0]
        if not fitting:
            raise ValueError(f"cuBLASLt needs more workspace for {problem}: raise the setting workspace_mib")
        return fitting[0]


def _add(algorithms: list[Algorithm], found: Sequence[Algorithm | None]) -> None:
    """Append the algorithms that exist, fit and are new."""
    configs = {algorithm.config for algorithm in algorithms}
    algorithms += [x for x in found if x is not None and x.workspace <= WORKSPACE and x.config not in configs]
