"""The backend of handwritten MUSA kernels. Its candidates are kernels and tiles, with or without copied operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from gemmhub_musa.backend import NOTHING, MusaBackend
from gemmhub_musa.runtime import MusaError

from gemmhub.backend import Array, Kernel
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit.machine import NOTHING_TO_DO
from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import choose, copies, library, model, packed, proof
from gemmhub_musa_kernels.choose import Candidate
from gemmhub_musa_kernels.launch import copier_of, prepared
from gemmhub_musa_kernels.lower import Gemm, lowered
from gemmhub_musa_kernels.probe import Machine, look, ready


@dataclass(frozen=True)
class Analysis:
    """A problem that the kernels run."""

    gemm: Gemm
    candidates: tuple[Candidate, ...]
    """At least one, the best guess first."""

    def named(self, name: str) -> Candidate | None:
        """Return the candidate of that name."""
        return next((each for each in self.candidates if each.name == name), None)


class MusaKernelsBackend(MusaBackend[Machine, Analysis]):
    """Handwritten kernels for Moore Threads GPUs."""

    name = library.NAME

    def __init__(self, look: Callable[[], Machine | Absent] = look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proven: dict[Hashable, Refusal | None] = {}

    def _ready(self, machine: Machine) -> Ready:
        return ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal:
        gemm, card = lowered(problem), self.machine.cards[problem.device.index]
        if isinstance(gemm, Refusal):
            return gemm
        if card.arch == "mp_21" and problem.a.dtype.name == "bfloat16":
            return Refusal("mp_21 has no bfloat16", "convert to float16 or float32")
        copied = copies.worthwhile(gemm)
        return Analysis(gemm, choose.candidates(gemm, card.arch, card.multiprocessors, card.shared_bytes, copied))

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the candidates, the usual one first."""
        analysis = self.analysis(problem)
        return [each.name for each in analysis.candidates] if isinstance(analysis, Analysis) else (NOTHING,)

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        """Return the copies of an untuned call. Candidates without them are named after the same kernels."""
        analysis = self.analysis(problem)
        if not isinstance(analysis, Analysis):
            return ()
        gemm, chosen = analysis.gemm, analysis.candidates[0]
        without = "pack(b) does it once, and there are candidates that read it in place"
        why = {
            "deep": f"transposed first in each call, as it is contiguous along K; {without}",
            "wide": f"copied first in each call, as its rows are not aligned to 16 bytes; {without}",
            None: "copied first in each call, as it is contiguous along neither dimension",
        }
        named = {"a": "b", "b": "a"} if gemm.swapped else {"a": "a", "b": "b"}
        return [Copy(named[x], copies.scratch_bytes(gemm, x), why[gemm.order(x)]) for x in chosen.transposed]

    def estimate(self, problem: GemmProblem) -> float | None:
        """Return the seconds of the usual candidate; None without a known rate."""
        analysis = self.analysis(problem)
        arch = self.machine.cards[problem.device.index].arch
        if not isinstance(analysis, Analysis):
            return model.seconds(problem, arch, choose.SCALAR, 0, 1)
        chosen = analysis.candidates[0]
        copied = sum(copies.scratch_bytes(analysis.gemm, operand) for operand in chosen.transposed)
        return model.seconds(problem, arch, chosen.kernel, copied, 1 + len(chosen.transposed))

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``."""
        analysis = self.analysis(problem)
        chosen = analysis.named(candidate) if isinstance(analysis, Analysis) else None
        if chosen is None or not isinstance(analysis, Analysis):
            return ""
        words = [candidate]
        if analysis.candidates[0].transposed and not chosen.transposed:
            words.append("without copies")
        return ", ".join(words + self.machine.libraries.cleared.remarks())

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Compile the candidate if needed, and prove it by small products first.

        Raises ValueError for what is refused, does not fit, does not compile or is wrong, and AllocationError.
        """
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        chosen = analysis.named(candidate)
        if chosen is None:
            raise ValueError(
                f"there is no candidate {candidate!r}; allowed: {', '.join(each.name for each in analysis.candidates)}"
            )
        needed = sum(copies.scratch_bytes(analysis.gemm, operand) for operand in chosen.transposed)
        if needed > workspace_limit:
            raise ValueError(
                f"{candidate} copies operands to {needed} bytes of workspace: {workspace_limit} are allowed; raise the "
                "setting workspace_mib, or tune, as there are candidates that copy nothing"
            )
        refusal = self._proof(problem, chosen)
        if refusal is not None:
            raise ValueError(f"{refusal.reason}; {refusal.remedy}\n{refusal.traceback or ''}".rstrip())
        product = prepared(self.machine, problem, analysis.gemm, chosen)
        if isinstance(product, Refusal):
            raise ValueError(f"{product.reason}; {product.remedy}")
        arch = self.machine.cards[problem.device.index].arch
        return Kernel(product.run, f"{chosen.name} for {arch}", product.workspace_bytes)

    def _proof(self, problem: GemmProblem, candidate: Candidate) -> Refusal | None:
        """Return None where ``candidate`` is right for products of these dtypes on this device, else a refusal."""
        index, dtypes = problem.device.index, (problem.a.dtype.name, problem.out.dtype.name)
        key = (index, candidate.kernel, candidate.tile, bool(candidate.transposed), dtypes)

        with self._lock:
            if key not in self._proven:
                self._proven[key] = proof.proven(self.machine, index, candidate, *dtypes)
            return self._proven[key]

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Pack b row-major, each row at the start of a line, as the pipelined kernel reads it fastest."""
        analysis = self.analysis(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if any(problem.b.layout.batch_strides):
            return Refusal("b is a stack of matrices", "pack them one by one")
        index = problem.device.index
        with self._lock:
            if index not in self._proven:
                self._proven[index] = proof.copier_proven(self.machine, index)
            refusal = self._proven[index]
        copier = refusal or copier_of(self.machine, index)
        if isinstance(copier, Refusal):
            return copier
        try:
            return packed.pack(self.machine.runtime, index, copier, b, problem.b.layout)
        except (KernelError, MusaError) as error:
            return Refusal(f"packing failed: {error}", "check whether earlier work on the device failed")
