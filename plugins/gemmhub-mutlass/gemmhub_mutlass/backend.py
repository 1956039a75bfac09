"""The backend of MUTLASS. Its candidates are tiles ("tensor_256x128x32"), each compiled when it is first prepared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from gemmhub_musa.backend import Analysis, MusaBackend, library_order

from gemmhub.backend import BASIC, Candidate, Imported, Kernel, Offer
from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mutlass import lower, model, probe, profiler, proof
from gemmhub_mutlass.launch import Gemm, NotImplementableError
from gemmhub_mutlass.library import Library
from gemmhub_mutlass.lower import Lowered
from gemmhub_mutlass.probe import Machine
from gemmhub_mutlass.variants import Configuration, configurations

_MAX_TILES = 65535
"""Largest number of tiles along N: they are the second dimension of a launch's grid."""


class MutlassBackend(MusaBackend[Machine, Lowered, Configuration]):
    """MUTLASS on Moore Threads GPUs."""

    name = "mutlass"
    takes: ClassVar = {"c": BASIC["c"], "precision": BASIC["precision"], "reproducible": BASIC["reproducible"]}

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proven: dict[tuple[int, Configuration], Refusal | None] = {}

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis[Lowered, Configuration] | Refusal:
        machine = self.machine
        arch, version = machine.archs[problem.device.index], machine.mutlass.version
        maths = lower.maths(problem, arch)
        if isinstance(maths, Refusal):
            return maths
        first_generation = version is not None and version < (0, 2)
        if problem.reproducible and problem.compute_dtype.kind != "i" and not first_generation:
            return Refusal(
                f"nothing is public about whether kernels of {machine.mutlass.name} give the same bits in every run",
                "leave reproducible= out, or use MUTLASS 0.1, which adds up in one order",
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
        found = {
            configuration.name: configuration
            for configuration in configurations(
                arch, maths, problem.a.dtype.name, problem.out.dtype.name, form.a.column, form.b.column, form.vectors,
                result_vectors,
            )
            if -(-form.n // configuration.tile.n) <= _MAX_TILES
        }  # fmt: skip
        if not found:
            return Refusal(f"n is {form.n} here: a launch allows {_MAX_TILES} tiles along N", "multiply in parts")
        return Analysis(lowered, found)

    def _refusal(self, index: int, configuration: Configuration) -> Refusal | None:
        """Return the refusal of a configuration that failed before; None for others."""
        library = self.machine.kernels.outcome(configuration)
        return library if isinstance(library, Refusal) else self._proven.get((index, configuration))

    def _offered(self, problem: GemmProblem, analysis: Analysis[Lowered, Configuration]) -> Offer | Refusal:
        """Offer the configurations that did not fail before. Nothing is compiled."""
        lowered, order = analysis.lowered, library_order(problem)
        candidates: list[Candidate] = []
        failures: list[Refusal] = []
        for name, each in analysis.candidates.items():
            failure = self._refusal(problem.device.index, each)
            if failure is None:
                candidates.append(Candidate(name, model.seconds(each, lowered, problem.nbytes), order=order))
            else:
                failures.append(failure)
        return Offer(candidates, partial(self._remark, analysis)) if candidates else failures[0]

    def _remark(self, analysis: Analysis[Lowered, Configuration], name: str) -> str:
        chosen, launches, words = analysis.candidates[name], len(analysis.lowered.offsets), [name]
        if not chosen.vectors:
            words.append("one element per load, as rows or addresses are not aligned to 16 bytes")
        if launches > 1:
            words.append(f"{launches} launches, as the batch is not evenly spaced")
        if self.machine.kernels.outcome(chosen) is None:
            words.append("the first use compiles it, or loads it from the cache")
        return ", ".join(words + self.machine.cleared.remarks())

    def _prepared(
        self, problem: GemmProblem, lowered: Lowered, candidate: Configuration, workspace_limit: int
    ) -> Kernel | Refusal:
        """Compile and prove the configuration where needed: half a minute at a user's first use of it."""
        library = self._proved(problem.device.index, candidate)
        if isinstance(library, Refusal):
            return library
        try:
            gemm = Gemm(self.machine, problem, lowered, candidate, library, workspace_limit)
        except NotImplementableError as error:
            return Refusal(str(error), "leave the candidate's name out, or use another backend (mublas)")
        return Kernel(gemm.run, f"{self.machine.mutlass.name} {candidate}", gemm.workspace_bytes)

    def import_times(self, path: Path, device: Device) -> Imported | Refusal:
        """Import times from the table that ``mutlass_profiler`` writes."""
        refusal = self.machine.refusal(device)
        if refusal is not None:
            return refusal

        def configurations(problem: GemmProblem) -> tuple[Configuration, ...]:
            analysis = self._analyse(problem)
            return () if isinstance(analysis, Refusal) else tuple(analysis.candidates.values())

        return profiler.read(path, device, self.machine.archs[device.index], configurations)

    def _proved(self, index: int, configuration: Configuration) -> Library | Refusal:
        """Return the compiled kernel, proven right on the device. Raises AllocationError."""
        file = self.machine.kernels.build(configuration)
        if isinstance(file, Refusal):
            return file
        key = index, configuration
        with self._lock:
            if key not in self._proven:
                prove = partial(proof.prove, index=index, configuration=configuration)
                what = f"MUTLASS's {configuration} on musa:{index}"
                self._proven[key] = self.machine.proven(what, (*key, file), prove)
            return self._proven[key] or self.machine.kernels.get(configuration)
