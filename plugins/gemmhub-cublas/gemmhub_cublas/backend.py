"""The backend for NVIDIA GPUs by cuBLASLt.

Its candidates are the library's algorithms, named by their configuration. The first one, which runs untuned, is the
library's own first choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from gemmhub_nvidia import driver
from gemmhub_nvidia.driver import Driver

from gemmhub.backend import BASIC, Candidate, Kernel, Offer
from gemmhub.capability import Ready, Refusal
from gemmhub.kit.corrections import NOTE
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend, nothing_to_do
from gemmhub.problem import GemmProblem
from gemmhub_cublas import corrections, library, lower, model, probe, scales
from gemmhub_cublas.algorithm_proof import COPIES
from gemmhub_cublas.choose import WORKSPACE, Algorithm, Chooser
from gemmhub_cublas.launch import Gemm
from gemmhub_cublas.library import Library, words
from gemmhub_cublas.lower import Form, Lowered

_MORE_WORKSPACE = "raise the setting workspace_mib"
_UNNAMED = "leave the candidate's name out"


def _load_driver() -> Driver:
    """Load libcuda, with the functions that copy memory."""
    return driver.load(COPIES)


class CublasBackend(MachineBackend[probe.Machine]):
    """cuBLASLt on NVIDIA GPUs."""

    name = "cublas"
    by_bucket = True
    takes: ClassVar = {
        **BASIC,
        "activation": frozenset(lower.ACTIVATIONS),
        "scale_a": frozenset({"tensor", "row", "1x128", "tensor x 128"}),
        "scale_b": frozenset({"tensor", "column", "128x1", "128x128", "column blocks", "tensor x 128"}),
        "scale_out": frozenset({"tensor"}),
        "amax": frozenset({"tensor"}),
    }

    def __init__(
        self,
        open_driver: Callable[[], Driver] = _load_driver,
        open_library: Callable[[int], Library] = library.load,
    ) -> None:
        """Tests pass other functions that open the driver and the library."""
        super().__init__(lambda: probe.look(open_driver, open_library))

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        """Offer the library's algorithms, its first choice first, or say why the library does not run ``problem``."""
        lowered = self._lower(problem)
        if isinstance(lowered, Refusal):
            return lowered
        gpu = self.machine.gpus[problem.device.index]
        if lowered is None:
            return nothing_to_do(model.LAUNCH if model.rated(gpu) else None)
        first, *others = lowered.forms
        limit = max(0, WORKSPACE - lowered.extra_bytes)
        with gpu:
            chooser = self._chooser(problem, first)
            algorithms, status = chooser.candidates(limit)
            if not algorithms:
                return self._no_algorithm(problem, first, status, chooser.wrong)
            for form in others:
                chooser = self._chooser(problem, form)
                algorithm, status = chooser.first(limit)
                if algorithm is None:
                    return self._no_algorithm(problem, form, status, chooser.wrong)
        seconds = corrections.seconds(problem, lowered, gpu, self.machine.library.version)
        order = "exact" if first.scale == lower.TYPE["int32"] else None
        names = [algorithm.config for algorithm in algorithms]
        candidates = [Candidate(name, None if i else seconds, order=order) for i, name in enumerate(names)]
        return Offer(candidates, lambda name: self._remark(problem, lowered, name), WORKSPACE)

    def _lower(self, problem: GemmProblem) -> Lowered | Refusal | None:
        """Return the lowered problem or a refusal; None where the result has no elements."""
        devices = len(self.machine.gpus)
        if problem.device.type != "cuda" or problem.device.index >= devices:
            return Refusal(f"the operands are on {problem.device}", f"copy them to one of {devices} CUDA devices")
        if problem.empty:
            return lower.check_types(problem)
        lowered = lower.lowered(problem)
        scaling = None if isinstance(lowered, Refusal) else lowered.forms[0].scaling
        if scaling is None:
            return lowered
        capability = self.machine.gpus[problem.device.index].capability
        return scales.unsupported(scaling, capability, self.machine.library.version) or lowered

    def _chooser(self, problem: GemmProblem, form: Form) -> Chooser:
        return Chooser(self.machine, problem.device.index, form)

    def _no_algorithm(self, problem: GemmProblem, form: Form, status: int, wrong: Collection[str]) -> Refusal:
        machine = self.machine
        gpu = machine.gpus[problem.device.index]
        if wrong:
            others = f" and {len(wrong) - 1} others" * (len(wrong) > 1)
            return Refusal(
                f"cuBLASLt {machine.library.version} is not used for these scales on {gpu.name}: algorithm "
                f"{min(wrong)}{others} failed a proof, a small product whose result is known",
                "use another backend, another granularity, or another version of cuBLAS",
            )
        why = words(status) if status else "it proposes none"
        return Refusal(
            f"cuBLASLt {machine.library.version} has no algorithm for this on {gpu.name}, {why}; {lower.stored(form)}",
            lower.advice(problem, form),
        )

    def _remark(self, problem: GemmProblem, lowered: Lowered, candidate: str) -> str:
        """Return a description of ``candidate``: algorithm, launches, fused epilogue."""
        parts = [f"algorithm {candidate}"]
        launches = len(lowered.offsets)
        if launches > 1:
            parts.append(f"{launches} launches, as the batch is not evenly spaced")
        if lowered.forms[0].epilogue != lower.NO_EPILOGUE:
            parts.append("epilogue fused")
        if lowered.forms[0].scaling is not None:
            parts.append("scales fused, proved on this card")
        gpu = self.machine.gpus[problem.device.index]
        if corrections.find(problem, gpu, self.machine.library.version) is None:
            parts.append(NOTE)
        return ", ".join(parts)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        """Return the algorithm ``candidate`` ready to run, or why it does not run ``problem``.

        The library checks it, and proposes algorithms for the other forms alone. Raises AllocationError without device
        memory.
        """
        lowered = self._lower(problem)
        if isinstance(lowered, Refusal):
            return lowered
        if lowered is None:
            return NOTHING_TO_DO
        limit = workspace_limit - lowered.extra_bytes
        chosen: list[Algorithm] = []
        with self.machine.gpus[problem.device.index]:
            for form in lowered.forms:
                algorithm = self._other(problem, form, limit) if chosen else self._named(problem, form, candidate)
                if isinstance(algorithm, Refusal):
                    return algorithm
                if algorithm.workspace > limit:
                    needed = f"{algorithm.workspace + lowered.extra_bytes} bytes of workspace"
                    if lowered.copy_bytes:
                        needed += f" ({lowered.copy_bytes} to copy a bias that is not aligned to 16 bytes)"
                    why = f"algorithm {algorithm.config} needs {needed}, {workspace_limit} are allowed"
                    return Refusal(why, _MORE_WORKSPACE)
                chosen.append(algorithm)
        gemm = Gemm(self.machine, problem, lowered, chosen, limit)
        return Kernel(
            gemm.run,
            f"cuBLASLt {self.machine.library.version} algorithm {candidate}",
            gemm.workspace_bytes + lowered.zero_bytes,
            with_rows=None if problem.batch else gemm.with_rows,
        )

    def _named(self, problem: GemmProblem, form: Form, config: str) -> Algorithm | Refusal:
        """Return the algorithm called ``config``."""
        chooser = self._chooser(problem, form)
        try:
            algorithm = chooser.named(config)
        except ValueError as error:
            return Refusal(str(error), _UNNAMED)
        if algorithm is None and chooser.wrong:
            return self._no_algorithm(problem, form, 0, chooser.wrong)
        if algorithm is None:
            library = f"cuBLASLt {self.machine.library.version}"
            return Refusal(f"{library} does not run algorithm {config} on this; {lower.stored(form)}", _UNNAMED)
        return algorithm

    def _other(self, problem: GemmProblem, form: Form, limit: int) -> Algorithm | Refusal:
        """Return the library's first choice for a form that only some calls need."""
        chooser = self._chooser(problem, form)
        algorithm, status = chooser.first(limit)
        if algorithm is None and limit < WORKSPACE:
            why = f"cuBLASLt has no algorithm in {limit} bytes of workspace for a form of this; {lower.stored(form)}"
            return Refusal(why, _MORE_WORKSPACE)
        return algorithm or self._no_algorithm(problem, form, status, chooser.wrong)
