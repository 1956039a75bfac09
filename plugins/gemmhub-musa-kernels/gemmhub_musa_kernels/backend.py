"""The backend of handwritten MUSA kernels. Its candidates are kernels and tiles, with or without copied operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from gemmhub_musa.backend import Analysis, MusaBackend, short_of_workspace
from gemmhub_musa.runtime import MusaError

from gemmhub.backend import WORKSPACE, Array, Candidate, Kernel, Offer
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import choose, copies, library, model, packed, proof, sources, sqmma
from gemmhub_musa_kernels.launch import copier_of, prepared
from gemmhub_musa_kernels.lower import Gemm, lowered
from gemmhub_musa_kernels.probe import Machine, look, ready


class MusaKernelsBackend(MusaBackend[Machine, Gemm, choose.Candidate]):
    """Handwritten kernels for Moore Threads GPUs."""

    name = library.NAME
    takes = sources.TAKES
    compiles_expressions = True

    def __init__(self, look: Callable[[], Machine | Absent] = look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proven: dict[Hashable, Refusal | None] = {}

    def _ready(self, machine: Machine) -> Ready:
        return ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis[Gemm, choose.Candidate] | Refusal:
        gemm, card = lowered(problem), self.machine.cards[problem.device.index]
        if isinstance(gemm, Refusal):
            return gemm
        if card.arch == "mp_21" and problem.a.dtype.name == "bfloat16":
            return Refusal("mp_21 has no bfloat16", "convert to float16 or float32")
        copied = gemm.unfit if gemm.pinned else copies.worthwhile(gemm)
        stacks = [x for x in copied if gemm.pinned and not (gemm.batch_count == 1 or gemm.shared(x))]
        if stacks and card.arch != "mp_21":
            return Refusal(
                f"the bits of rows are pinned to row-major operands, and {' and '.join(stacks)} is a stack of others",
                "pass a contiguous copy, or multiply the matrices one by one",
            )
        found = choose.candidates(gemm, card.arch, card.shared_bytes, copied)
        found = model.ranked(found, gemm, sources.WARP[card.arch], card.multiprocessors)
        found = (*sqmma.candidates(problem, gemm, card), *found)
        return Analysis(gemm, {each.name: each for each in found})

    def _offered(self, problem: GemmProblem, analysis: Analysis[Gemm, choose.Candidate]) -> Offer:
        gemm, card = analysis.lowered, self.machine.cards[problem.device.index]
        arch, warp = card.arch, sources.WARP[card.arch]

        def candidate(each: choose.Candidate) -> Candidate:
            if each.kernel == sources.SQMMA:
                return Candidate(each.name, sqmma.seconds(problem), (), sqmma.order(gemm))
            copied = copies.listed(gemm, each.transposed)
            nbytes = sum(copy.nbytes for copy in copied)
            counted = model.cycles(each.tile, gemm, warp, card.multiprocessors) if each.tile else 0.0
            seconds = model.seconds(problem, arch, each.kernel, nbytes, 1 + len(copied), counted)
            return Candidate(each.name, seconds, copied, choose.order(each, gemm, arch))

        offered, workspace = [candidate(each) for each in analysis.candidates.values()], WORKSPACE
        if gemm.pinned:  # there is no candidate without its copies
            workspace = max(WORKSPACE, *(sum(copy.nbytes for copy in each.copies) for each in offered))
        return Offer(offered, partial(self._remark, analysis), workspace)

    def _remark(self, analysis: Analysis[Gemm, choose.Candidate], name: str) -> str:
        words, usual = [name], next(iter(analysis.candidates.values()))
        if usual.transposed and not analysis.candidates[name].transposed:
            words.append("without copies")
        return ", ".join(words + self.machine.libraries.cleared.remarks())

    def _prepared(
        self, problem: GemmProblem, lowered: Gemm, candidate: choose.Candidate, workspace_limit: int
    ) -> Kernel | Refusal:
        """Compile the candidate if needed, and prove it by small products first."""
        needed = sum(copies.scratch_bytes(lowered, operand) for operand in candidate.transposed)
        if needed > workspace_limit:  # nothing need be compiled
            return short_of_workspace(candidate.name, needed, workspace_limit)
        refusal = self._proof(problem, candidate)
        if refusal is not None:
            return refusal
        product = prepared(self.machine, problem, lowered, candidate, sources.added(problem.activation))
        if isinstance(product, Refusal):
            return product
        arch = self.machine.cards[problem.device.index].arch
        return Kernel(product.run, f"{candidate.name} for {arch}", product.workspace_bytes)

    def _proof(self, problem: GemmProblem, candidate: choose.Candidate) -> Refusal | None:
        """Return None where ``candidate`` is right for products of these dtypes on this device, else a refusal."""
        index, dtypes = problem.device.index, (problem.a.dtype.name, problem.out.dtype.name)
        pinned, added = problem.pinned and bool(candidate.transposed), sources.added(problem.activation)
        key = (index, candidate.kernel, candidate.tile, bool(candidate.transposed), pinned, dtypes, added)

        with self._lock:
            if key not in self._proven:
                self._proven[key] = proof.proven(self.machine, index, candidate, *dtypes, pinned, added)
            return self._proven[key]

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Pack b row-major, each row at the start of a line, as the pipelined kernel reads it fastest."""
        offer = self.offer(problem)
        if isinstance(offer, Refusal):
            return offer
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
