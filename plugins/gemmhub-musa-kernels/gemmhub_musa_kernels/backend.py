"""Products by the kernels of this plugin. Candidates are kernels and tile policies, with or without copied operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from gemmhub_musa import selftest
from gemmhub_musa.runtime import MusaError

from gemmhub.backend import Array, Kernel
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit.machine import MachineBackend
from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels import choose, copies, library, model, packed
from gemmhub_musa_kernels.choose import Way
from gemmhub_musa_kernels.launch import Product
from gemmhub_musa_kernels.library import Libraries, Library
from gemmhub_musa_kernels.lower import Gemm, lowered
from gemmhub_musa_kernels.probe import Card, Machine, look, ready

_KEPT = 4096
"""Problems whose analyses are remembered."""
_NOTHING = "nothing"
"""The one candidate for a result without elements."""


@dataclass(frozen=True)
class Analysis:
    """A problem that the kernels take."""

    gemm: Gemm
    ways: tuple[Way, ...]
    """At least one, the best guess first."""

    def way(self, name: str) -> Way | None:
        return next((way for way in self.ways if way.name == name), None)


class MusaKernelsBackend(MachineBackend[Machine]):
    """See the module."""

    name = library.NAME

    def __init__(self, look: Callable[[], Machine | Absent] = look) -> None:
        """For tests: another way to come by the machine."""
        super().__init__(look)
        self._libraries: Libraries | None = None
        self._analyses: dict[GemmProblem, Analysis | Refusal] = {}
        self._proven: dict[Hashable, Refusal | None] = {}

    def _ready(self, machine: Machine) -> Ready:
        return ready(machine)

    @property
    def libraries(self) -> Libraries:
        """The compiled kernels of the machine's installation."""
        with self._lock:
            if self._libraries is None:
                self._libraries = Libraries(self.machine.sdk, self.machine.runtime)
            return self._libraries

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self.analysis(problem)
        return answer if isinstance(answer, Refusal) else None

    def analysis(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """None where the result has no elements."""
        card = self.machine.cards.get(problem.device.index) if problem.device.kind == "musa" else None
        if card is None:
            usable = ", ".join(f"musa:{index}" for index in self.machine.cards)
            return Refusal(f"the operands are on {problem.device}", f"copy them to {usable}")
        if problem.empty:
            return None
        known = self._analyses.get(problem)
        if known is None:
            known = _analysed(problem, card)
            with self._lock:
                if len(self._analyses) >= _KEPT:
                    self._analyses.clear()
                self._analyses[problem] = known
        return known

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        analysis = self.analysis(problem)
        return [way.name for way in analysis.ways] if isinstance(analysis, Analysis) else (_NOTHING,)

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        """Those of an untuned call. Candidates without them are named after the same kernels."""
        analysis = self.analysis(problem)
        if not isinstance(analysis, Analysis):
            return ()
        gemm, way = analysis.gemm, analysis.ways[0]
        without = "pack(b) does it once, and there are candidates that read it as it lies"
        why = {
            "deep": f"transposed first in each call, as its elements are neighbours along k; {without}",
            "wide": f"copied first in each call, as its rows are not aligned to 16 bytes; {without}",
            None: "copied first in each call, as neither of its dimensions is dense",
        }
        named = {"a": "b", "b": "a"} if gemm.swapped else {"a": "a", "b": "b"}
        return [Copy(named[x], copies.scratch_bytes(gemm, x), why[gemm.order(x)]) for x in way.transposed]

    def estimate(self, problem: GemmProblem) -> float | None:
        analysis = self.analysis(problem)
        arch = self.machine.cards[problem.device.index].arch
        if not isinstance(analysis, Analysis):
            return model.seconds(problem, arch, choose.SCALAR, 0, 1)
        way = analysis.ways[0]
        copied = sum(copies.scratch_bytes(analysis.gemm, operand) for operand in way.transposed)
        return model.seconds(problem, arch, way.kernel, copied, 1 + len(way.transposed))

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self.analysis(problem)
        way = analysis.way(candidate) if isinstance(analysis, Analysis) else None
        if way is None or not isinstance(analysis, Analysis):
            return ""
        parts = [candidate]
        if analysis.ways[0].transposed and not way.transposed:
            parts.append("which copies nothing")
        cleared = self._libraries.cleared if self._libraries else None
        if cleared is not None and cleared.count:
            parts.append(f"cleared {cleared.last} that other work had left ({cleared.count} times)")
        return ", ".join(parts)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Compiles what was never compiled, and tries it on small products first.

        Raises ValueError for what is refused, does not fit, does not compile or is wrong, and AllocationError.
        """
        analysis = self.analysis(problem)
        if analysis is None:
            return Kernel(_nothing, "nothing to do")
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        way = analysis.way(candidate)
        if way is None:
            raise ValueError(f"there is no {candidate!r} here, but {', '.join(way.name for way in analysis.ways)}")
        needed = sum(copies.scratch_bytes(analysis.gemm, operand) for operand in way.transposed)
        if needed > workspace_limit:
            raise ValueError(
                f"{candidate} copies operands to {needed} bytes of workspace, {workspace_limit} are allowed: raise the "
                "setting workspace_mib, or tune: there are candidates that copy nothing"
            )
        refusal = self._proof(problem, way)
        if refusal is not None:
            raise ValueError(f"{refusal.reason}; {refusal.remedy}\n{refusal.traceback or ''}".rstrip())
        product = self._product(problem, analysis.gemm, way)
        if isinstance(product, Refusal):
            raise ValueError(f"{product.reason}; {product.remedy}")
        return Kernel(product.run, f"{way.name} for {self._arch(problem)}", product.workspace_bytes)

    def _arch(self, problem: GemmProblem) -> str:
        return self.machine.cards[problem.device.index].arch

    def _product(self, problem: GemmProblem, gemm: Gemm, way: Way) -> Product | Refusal:
        arch = self._arch(problem)
        flags = choose.defines(way, arch, problem.a.dtype, problem.out.dtype)
        library = self.libraries.get(way.kernel, arch, flags)
        if isinstance(library, Refusal):
            return library
        copier = self._copier(arch) if way.transposed else None
        if isinstance(copier, Refusal):
            return copier
        return Product(self.machine.runtime, problem, gemm, way, library, copier)

    def _copier(self, arch: str) -> Library | Refusal:
        return self.libraries.get(library.TRANSPOSE, arch, ())

    def _proof(self, problem: GemmProblem, way: Way) -> Refusal | None:
        """None where ``way`` is right for products of these dtypes on this device; tried when it is first asked."""
        index, dtypes = problem.device.index, (problem.a.dtype.name, problem.out.dtype.name)
        key = (index, way.kernel, way.tile, bool(way.transposed), dtypes)

        def prepare(small: GemmProblem) -> Kernel | Refusal:
            gemm = lowered(small)
            if isinstance(gemm, Refusal):
                return gemm
            turned = tuple("ab") if way.transposed else ()
            product = self._product(small, gemm, Way(way.kernel, way.tile, turned))
            return product if isinstance(product, Refusal) else Kernel(product.run, way.name)

        with self._lock:
            if key not in self._proven:
                found = selftest.check(prepare, self.machine.runtime, index, *dtypes)
                if found is None and way.tile is not None:
                    # Partial tiles and all stages; then whole tiles, for which there are kernels of their own.
                    tile, depth = way.tile, way.tile.stages * way.tile.k
                    for sizes in ((tile.m + 8, tile.n + 8, depth + 8), (tile.m, 2 * tile.n, depth)):
                        found = found or selftest.check(prepare, self.machine.runtime, index, *dtypes, sizes)
                self._proven[key] = found
            return self._proven[key]

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Row-major, with rows that start lines: what the pipelined kernel reads best."""
        analysis = self.analysis(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if any(problem.b.layout.batch_strides):
            return Refusal("b is a stack of matrices", "pack them one by one")
        copier = self._copier(self._arch(problem))
        if isinstance(copier, Refusal):
            return copier
        try:
            return packed.pack(self.machine.runtime, problem.device.index, copier, b, problem.b.layout)
        except (KernelError, MusaError) as error:
            return Refusal(f"packing failed: {error}", "see whether other work on the device failed before")


def _analysed(problem: GemmProblem, card: Card) -> Analysis | Refusal:
    gemm = lowered(problem)
    if isinstance(gemm, Refusal):
        return gemm
    if card.arch == "mp_21" and problem.a.dtype.name == "bfloat16":
        return Refusal("mp_21 has no bfloat16", "convert to float16 or float32")
    found = choose.ways(gemm, card.arch, card.multiprocessors, card.shared_bytes, copies.worthwhile(gemm))
    return Analysis(gemm, found)


def _nothing(
    a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: object, beta: object, stream: object
) -> None:
    pass
