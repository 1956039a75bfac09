"""The backend of MUTLASS. Its candidates are tiles ("tensor_256x128x32"), each compiled when it is first prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gemmhub_musa.backend import NOTHING, MusaBackend

from gemmhub.backend import Imported, Kernel
from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub.errors import BackendError
from gemmhub.kit.machine import NOTHING_TO_DO
from gemmhub.problem import GemmProblem
from gemmhub_mutlass import lower, model, probe, profiler, proof
from gemmhub_mutlass.choose import Configuration, configurations
from gemmhub_mutlass.launch import Gemm
from gemmhub_mutlass.library import Library
from gemmhub_mutlass.lower import Lowered
from gemmhub_mutlass.probe import Machine

_MAX_TILES = 65535
"""Largest number of tiles along N: they are the second dimension of a launch's grid."""


class CompileError(BackendError):
    """MUTLASS, the compiler or the proof yields no kernel; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Analysis:
    """A problem that MUTLASS should run, as far as that is decided without compiling."""

    lowered: Lowered
    configurations: tuple[Configuration, ...]
    """At least one configuration, the default first."""


class MutlassBackend(MusaBackend[Machine, Analysis]):
    """MUTLASS on Moore Threads GPUs."""

    name = "mutlass"

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proven: dict[tuple[int, Configuration], Refusal | None] = {}

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        """Return None, or the reason why MUTLASS does not run ``problem``.

        Nothing is compiled: a configuration that does not compile is refused from its first use on.
        """
        analysis = self.analysis(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if analysis is None or self._left(problem, analysis):
            return None
        return self._refusal(problem.device.index, analysis.configurations[0])

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal:
        machine = self.machine
        arch, version = machine.archs[problem.device.index], machine.mutlass.version
        maths = lower.maths(problem, arch)
        if isinstance(maths, Refusal):
            return maths
        first_generation = version is not None and version < (0, 2)
        if problem.deterministic and problem.compute_dtype.kind != "i" and not first_generation:
            return Refusal(
                f"nothing is public about whether kernels of {machine.mutlass.name} give the same bits in every run",
                "leave deterministic=True away, or use MUTLASS 0.1, which adds up in one order",
            )
        lowered = lower.lowered(problem)
        if isinstance(lowered, Refusal):
            return lowered
        unaligned = lower.unaligned(problem, lowered, arch)
        if unaligned is not None:
            return unaligned
        form = lowered.form
        # The epilogue of MUTLASS 0.1 stores single elements in any case: fewer kernels to compile.
        result_vectors = form.result_vectors and not first_generation
        found = tuple(
            configuration
            for configuration in configurations(
                arch, maths, problem.a.dtype.name, problem.out.dtype.name, form.a.column, form.b.column, form.vectors,
                result_vectors,
            )
            if -(-form.n // configuration.tile.n) <= _MAX_TILES
        )  # fmt: skip
        if not found:
            return Refusal(f"n is {form.n} here: a launch allows {_MAX_TILES} tiles along N", "multiply in parts")
        return Analysis(lowered, found)

    def _refusal(self, index: int, configuration: Configuration) -> Refusal | None:
        """Return the refusal of a configuration that failed before; None for others."""
        library = self.machine.kernels.outcome(configuration)
        return library if isinstance(library, Refusal) else self._proven.get((index, configuration))

    def _left(self, problem: GemmProblem, analysis: Analysis) -> list[Configuration]:
        """Return the configurations that did not fail before."""
        index = problem.device.index
        return [each for each in analysis.configurations if self._refusal(index, each) is None]

    def _usual(self, problem: GemmProblem) -> tuple[Analysis, Configuration] | None:
        analysis = self.analysis(problem)
        left = self._left(problem, analysis) if isinstance(analysis, Analysis) else []
        return (analysis, left[0]) if isinstance(analysis, Analysis) and left else None

    def estimate(self, problem: GemmProblem) -> float | None:
        """Return the seconds of the usual candidate; None without a known rate."""
        usual = self._usual(problem)
        if usual is None:
            return 0.0 if problem.empty else None
        return model.seconds(usual[1], usual[0].lowered, problem.nbytes)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``."""
        analysis = self.analysis(problem)
        chosen = _named(analysis, candidate) if isinstance(analysis, Analysis) else None
        if chosen is None or not isinstance(analysis, Analysis):
            return ""
        words = [candidate]
        if not chosen.vectors:
            words.append("one element per load, as rows or addresses are not aligned to 16 bytes")
        if len(analysis.lowered.offsets) > 1:
            words.append(f"{len(analysis.lowered.offsets)} launches, as the batch is not evenly spaced")
        if self.machine.kernels.outcome(chosen) is None:
            words.append("the first use compiles it, or loads it from the cache")
        return ", ".join(words + self.machine.cleared.remarks())

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the candidates, the usual one first."""
        analysis = self.analysis(problem)
        if not isinstance(analysis, Analysis):
            return (NOTHING,)
        return [each.name for each in self._left(problem, analysis) or analysis.configurations]

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Compile and prove the configuration where needed: half a minute at a user's first use of it.

        Raises CompileError where that fails, ValueError for what is refused, is no candidate or needs more workspace,
        NotImplementableError where MUTLASS's own check refuses it, AllocationError without device memory.
        """
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        chosen = _named(analysis, candidate)
        if chosen is None:
            allowed = ", ".join(each.name for each in analysis.configurations)
            raise ValueError(f"MUTLASS has no candidate {candidate!r} here; allowed: {allowed}")
        library = self._proved(problem.device.index, chosen)
        gemm = Gemm(self.machine, problem, analysis.lowered, chosen, library, workspace_limit)
        self.check_workspace(gemm.workspace_bytes, workspace_limit, problem)
        return Kernel(gemm.run, f"{self.machine.mutlass.name} {chosen}", gemm.workspace_bytes)

    def import_times(self, path: Path, device: Device) -> Imported | Refusal:
        """Import times from the table that ``mutlass_profiler`` writes."""

        def configurations(problem: GemmProblem) -> tuple[Configuration, ...]:
            analysis = self.analysis(problem)
            return analysis.configurations if isinstance(analysis, Analysis) else ()

        return profiler.read(path, device, self.machine.archs[device.index], configurations)

    def _proved(self, index: int, configuration: Configuration) -> Library:
        """Return the compiled kernel, proven right on the device. Raises CompileError and AllocationError."""
        found: Library | Refusal
        file = self.machine.kernels.build(configuration)
        if isinstance(file, Refusal):
            found = file
        else:
            key = index, configuration
            with self._lock:
                if key not in self._proven:
                    prove = partial(proof.prove, index=index, configuration=configuration)
                    what = f"MUTLASS's {configuration} on musa:{index}"
                    self._proven[key] = self.machine.proven(what, (*key, file), prove)
                found = self._proven[key] or self.machine.kernels.get(configuration)
        if isinstance(found, Library):
            return found
        raise CompileError(f"{found.reason}; {found.remedy}" + (f"\n{found.traceback or ''}".rstrip()))


def _named(analysis: Analysis, candidate: str) -> Configuration | None:
    return next((each for each in analysis.configurations if each.name == candidate), None)
