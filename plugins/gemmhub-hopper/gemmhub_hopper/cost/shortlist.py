"""The candidates that are offered for a problem: the fastest ones, or first a compiled one that is nearly as fast.

Real calls bring new sizes all the time, and the fastest candidate changes with them, while compiling one takes as long
as thousands of calls. So a candidate that needs no compiler goes before a faster one that does, up to a limit, which is
wider where the wheel has kernels for the product: then nothing compiles while serving. The faster one stays among the
candidates, so that tuning compiles and times it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from gemmhub._base.evicting import keep
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import choose
from gemmhub_hopper.cost.choose import Timed
from gemmhub_hopper.cost.model import Card
from gemmhub_hopper.lowering import k_passes
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.variants.compiled import F16_PREPASS, Code, Kernels
from gemmhub_hopper.variants.config import F16X3, Variant
from gemmhub_hopper.variants.sources import PREPASSES, copier

NEARLY = 1.15
"""Largest estimate of a compiled candidate that goes first, as a multiple of the fastest one's."""
WORTH = 1e-4
"""Seconds that it may be slower: beyond that ten thousand calls repay a compilation, which takes about one."""
SHIPPED = 3.0
"""The same where the kernels of a candidate are in the wheel. Those were selected so that it is hardly ever needed
(benchmarks/run/hopper_shipped.py).
"""
MAX_COMPILED = 12
"""Kernels that M alone compiles for a family in a process; from then on, the fastest compiled candidate runs."""
PROPOSED = 8
"""Number of the fastest candidates, which tuning times; a compiled one that goes first may be one more. None is left
out for it: tuning records of a candidate serve while it is among them.
"""
SMALL = 2**20
"""Bytes of the smallest workspace that a user can set, in which one of the proposed candidates runs if any does."""
_FAMILIES = 1024
"""The number of families whose kernels are counted."""


def code(choice: Choice | GemvChoice, passes: KPasses | None, card: Card) -> list[Code]:
    """Return the kernels that ``choice`` launches in these K passes, and those for operands that planes do not hold."""
    if isinstance(choice, GemvChoice):
        return [choice.kernel]
    assert passes is not None
    form, kernels = choice.lowering.form, list[Code](_variants(choice, passes))
    if form.input == F16X3:
        other = choose.by_bfloat16_planes(choice, passes, card)
        return [*kernels, F16_PREPASS, *_variants(other, passes), PREPASSES["split"]]
    return [*kernels, copier(form)] if choice.copied else kernels


def _variants(choice: Choice, passes: KPasses) -> Sequence[Variant]:
    return k_passes.variants(choice.shape, choice.lowering.form, choice.splits > 1, passes.count)


@dataclass(frozen=True)
class Shortlist:
    """The candidates of a problem that are offered."""

    timed: tuple[Timed, ...]
    """Estimates and candidates. The first runs without tuning; the others are sorted by their estimates."""
    remark: str = ""
    """Why the first is not the fastest; else empty."""


class Shortlists:
    """Shortlists for the problems of a machine. It counts what M alone compiles for each family."""

    def __init__(self) -> None:
        self._families: OrderedDict[Hashable, frozenset[Code]] = OrderedDict()
        """Kernels of winners that were not compiled, by the family."""

    def of(
        self, kernels: Kernels, index: int, lowerings: tuple[Lowering, ...], timed: Sequence[Timed], card: Card,
        workspace: int, only_sizes: bool, parts: int | None = None,
    ) -> Shortlist:  # fmt: skip
        """Return the shortlist for a problem on device ``index`` with these estimates, of which there is at least one.

        ``only_sizes``: sizes alone decide, as bits must not depend on what is compiled. ``parts``: of K, where all
        candidates have this number and share bits, so that a compiled one may go first.
        """
        proposed = _proposed(timed, parts)
        fastest, best = proposed[0]
        needed = [] if only_sizes else _uncompiled(kernels, best, card, workspace)
        if not needed:
            return Shortlist(proposed)
        family = _family(index, lowerings)
        wanted = self._families.get(family, frozenset())
        spent = sum(map(kernels.compiled, wanted)) >= MAX_COMPILED
        reach = SHIPPED if kernels.ships else NEARLY
        ready: Timed | None = None
        for seconds, choice in timed if not spent else _all(timed, lowerings, card, workspace, parts):
            if seconds > reach * fastest and not spent:
                break
            needs = code(choice, _passes(choice, workspace), card)
            if not all(map(kernels.compiled, needs)):
                continue
            ready = ready or (seconds, choice)
            # Another kernel that is compiled goes first too, where one of the wheel would.
            near = seconds <= min(NEARLY * fastest, fastest + WORTH)
            if spent or near or all(map(kernels.shipped, needs)):
                others = [x for x in proposed if x[1] is not ready[1]]
                percent = math.ceil(100 * (ready[0] / fastest - 1))
                remark = f"{best.name} would be {percent} % faster and is not compiled: tune, or gemmhub build"
                return Shortlist((ready, *others), remark)
        wanted = wanted | {what for what in needed if not isinstance(what, int)}  # without pre-passes
        keep(self._families, family, wanted, _FAMILIES)
        return Shortlist(proposed)


def _family(index: int, lowerings: tuple[Lowering, ...]) -> Hashable:
    """Return a key of everything of a problem but M and the alignment of what depends on it."""
    first = lowerings[0]
    return index, first.n, first.k, first.batch, first.form


def _uncompiled(kernels: Kernels, choice: Choice | GemvChoice, card: Card, workspace: int) -> list[Code]:
    """Return the kernels of ``choice`` that a compiler would have to build."""
    return [what for what in code(choice, _passes(choice, workspace), card) if not kernels.compiled(what)]


def _passes(choice: Choice | GemvChoice, workspace: int) -> KPasses | None:
    passes = None if isinstance(choice, GemvChoice) else choice.k_passes(workspace)
    assert not isinstance(passes, str), passes
    return passes


def _all(
    timed: Sequence[Timed], lowerings: tuple[Lowering, ...], card: Card, workspace: int, parts: int | None
) -> Iterator[Timed]:  # fmt: skip
    """Yield ``timed``, and then every other candidate by the model alone."""
    yield from timed
    ranked = (x for some in choose.by_scheme(lowerings) for x in choose.ranked(some, card, workspace, None, parts))
    yield from sorted(((x.seconds, x.choice) for x in ranked), key=lambda x: x[0])


def _proposed(timed: Sequence[Timed], parts: int | None) -> tuple[Timed, ...]:
    """Return the fastest candidates that differ in their shape, one of which runs in a small workspace if any does."""
    distinct = choose.distinct(timed)
    fastest = distinct[:PROPOSED]
    fitting: dict[int, bool] = {}

    def is_small(choice: Choice | GemvChoice) -> bool:
        """Return whether ``choice`` runs in a small workspace."""
        if isinstance(choice, GemvChoice):
            return True
        lowering = choice.lowering
        fits = fitting.get(id(lowering))
        if fits is None:  # where its copies alone do not fit, none of its many candidates runs
            fits = fitting[id(lowering)] = not isinstance(k_passes.fewest(lowering, 0, SMALL), str)
        passes = runnable(choice, SMALL) if fits else ""
        return not isinstance(passes, str) and (parts is None or passes.count == 1)

    if not any(is_small(choice) for _, choice in fastest):
        small = next((x for x in distinct[PROPOSED - 1 :] if is_small(x[1])), None)
        if small is not None:
            fastest[PROPOSED - 1 :] = [small]
    return tuple(fastest)
