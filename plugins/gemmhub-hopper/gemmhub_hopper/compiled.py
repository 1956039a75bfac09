"""The compiled kernels: loaded in this process, or on disk; and which kernels a candidate consists of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gemmhub._base.evicting import keep
from gemmhub.kit import locks, nvrtc
from gemmhub.kit.cuda import Gpu
from gemmhub.kit.native import cache
from gemmhub.kit.nvrtc import Compiler, Source
from gemmhub_hopper import choose, f16_planes, k_passes, prepass, sources
from gemmhub_hopper.candidate import Choice
from gemmhub_hopper.config import Variant
from gemmhub_hopper.gemv import GemvChoice, GemvKernel
from gemmhub_hopper.k_passes import KPasses
from gemmhub_hopper.model import Card

Code = Variant | GemvKernel | int
"""A kernel: of matrices, of vectors, or a pre-pass by its number in ``prepass.KINDS``."""
F16_PREPASS = -1
"""Number of the pre-pass that makes float16 planes."""
_KEPT = 4096
"""The most kernels of which it is kept whether they are on disk."""


def code(choice: Choice | GemvChoice, passes: KPasses | None, card: Card) -> list[Code]:
    """Return the kernels that ``choice`` launches in these K passes, and those for operands that planes do not hold."""
    if isinstance(choice, GemvChoice):
        return [choice.kernel]
    assert passes is not None
    form, found = choice.lowering.form, list[Code](_variants(choice, passes))
    if form.input == f16_planes.INPUT:
        other = choose.by_bfloat16_planes(choice, passes, card)
        return [*found, F16_PREPASS, *_variants(other, passes), prepass.KINDS["split"]]
    return [*found, prepass.KINDS[form.input]] if choice.copied else found


def _variants(choice: Choice, passes: KPasses) -> Sequence[Variant]:
    return k_passes.variants(choice.shape, choice.lowering.form, choice.splits > 1, passes.count)


def _source(what: Code) -> tuple[Source, str, int]:
    """Return the source of a kernel, its name there, and the bytes of its dynamic shared memory."""
    if isinstance(what, Variant):
        return sources.source(what), sources.KERNEL, what.shared_bytes
    if isinstance(what, GemvKernel):
        return sources.gemv(what), sources.GEMV, what.shared_bytes
    if what == F16_PREPASS:
        return sources.f16_prepass(), sources.F16_PREPASS, 0
    kind = next(kind for kind, number in prepass.KINDS.items() if number == what)
    return sources.prepass(kind), sources.PREPASS, 0


class Kernels:
    """The kernels of the devices of a machine, each compiled and loaded once."""

    def __init__(self, compiler: Compiler, gpus: Sequence[Gpu]) -> None:
        self._compiler, self._gpus = compiler, gpus
        self._loading = locks.lock()
        self._functions: dict[tuple[int, Code], int] = {}
        """Handles by device index and kernel."""
        self._there: OrderedDict[Code, bool] = OrderedDict()
        """Whether a kernel was loaded, or on disk when it was first asked for."""
        self._stored: frozenset[str] | None = None
        self._prefixes: frozenset[str] = frozenset()

    def function(self, index: int, what: Code) -> int:
        """Return the handle of a kernel on a device. Raises CompilerError, DriverError."""
        key = index, what
        found = self._functions.get(key)
        if found is not None:
            return found
        with self._loading:  # a lock of its own: analysing other problems need not wait for a compiler
            if key not in self._functions:
                source, name, shared = _source(what)
                image = nvrtc.cubin(self._compiler, source)
                self._functions[key] = self._gpus[index].function(image, name, shared)
                keep(self._there, what, True, _KEPT)
            return self._functions[key]

    def compiled(self, what: Code) -> bool:
        """Return whether a kernel needs no compiler: it is loaded, or on disk. The disk is asked once for a kernel."""
        there = self._there.get(what)
        if there is None:
            there = self._on_disk(what)
            keep(self._there, what, there, _KEPT)
        return there

    def _on_disk(self, what: Code) -> bool:
        stored = self._stored
        if stored is None:  # the folder is read once: listing it takes as long as ranking
            stored = cache.stored()
            self._prefixes = frozenset(name.rpartition("-")[0] for name in stored)
            self._stored = stored
        if _name(what) not in self._prefixes:  # computing the whole name takes a fraction of a millisecond
            return False
        return nvrtc.file_name(self._compiler, _source(what)[0]) in stored


def _name(what: Code) -> str:
    """Return ``Source.name`` of a kernel, by which the names of its files begin."""
    if isinstance(what, Variant):
        return sources.name(what.shape.name)
    if isinstance(what, GemvKernel):
        return sources.name(what.name)
    return _source(what)[0].name
