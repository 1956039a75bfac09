"""The decisions of a grouped product: one for each different product of its groups, and how unequal the groups are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from gemmhub import api
from gemmhub._base import registered
from gemmhub._base.guard import memory_errors
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.wording import counted
from gemmhub._call.options import signature
from gemmhub._grouped import call as calls
from gemmhub._grouped import device, overlaps
from gemmhub._grouped import offsets as ends_of
from gemmhub._grouped.call import OPERANDS, GroupedOptions
from gemmhub.errors import InputError
from gemmhub.verdict import Decision

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any
Sizes = tuple[int, int, int]
"""m, n and k of one group's product."""


@dataclass(frozen=True, repr=False)
class GroupedDecision(Report):
    """The backends that run the groups of a product, as :func:`explain_grouped` returns it. Print it."""

    form: str
    """ "ragged m", "ragged k", "ragged n", "dense" or "lists"."""
    sizes: tuple[Sizes, ...]
    """m, n and k of each group's product; by offsets on a device those of the whole arrays alone."""
    decisions: tuple[Decision | None, ...]
    """The decision for each group's product; None for a group without a result. One by offsets on a device."""
    unassigned: int = 0
    """Rows or columns beyond the last end, which are zeros in the result."""
    stacked: bool = False
    """Whether all groups are one product of stacks, with one decision."""
    on_device: int | None = None
    """Number of groups of a product by offsets on a device, which are not read; None for others."""

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.sizes) if self.on_device is None else self.on_device

    @property
    def empty(self) -> int | None:
        """Number of groups without multiplications; None by offsets on a device."""
        return sum(0 in size for size in self.sizes) if self.on_device is None else None

    @property
    def imbalance(self) -> float | None:
        """Multiplications of the largest group over the mean of all groups: 1 where all are equal. None by offsets on a
        device."""
        if self.on_device is not None:
            return None
        products = [m * n * k for m, n, k in self.sizes]
        total = sum(products)
        return max(products) * len(products) / total if total else 1.0

    @property
    def chosen(self) -> tuple[str | None, ...]:
        """The backends that run groups, that of the largest product first; None where no backend can run one."""
        return tuple(dict.fromkeys(decision.chosen for _, decision, _ in self._products()))

    @property
    def seconds(self) -> float | None:
        """Sum of the times of all products, measured or estimated, in seconds; None where one is unknown."""
        total = 0.0
        for _, decision, groups in self._products():
            seconds = None if decision.chosen is None else decision[decision.chosen].seconds
            if seconds is None:
                return None
            total += seconds * (1 if self.stacked else groups)
        return total

    def _products(self) -> list[tuple[Sizes, Decision, int]]:
        """Sizes, decision and number of groups of each different product, the largest first."""
        counts = Counter(map(id, self.decisions))
        different = {id(decision): (size, decision) for size, decision in zip(self.sizes, self.decisions)}
        products = [
            (size, decision, counts[key]) for key, (size, decision) in different.items() if decision is not None
        ]
        return sorted(products, key=lambda product: -prod(product[0]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "form": self.form,
            "sizes": [list(size) for size in self.sizes],
            "imbalance": self.imbalance,
            "unassigned": self.unassigned,
            "stacked": self.stacked,
            "on_device": self.on_device,
            "seconds": self.seconds,
            "decisions": [
                {"sizes": [*size], "groups": groups, **decision.to_dict()}
                for size, decision, groups in self._products()
            ],
        }

    def _parts(self) -> Iterator[Part]:
        products = self._products()
        computed = (
            f"{counted(sum(groups for *_, groups in products), 'product')}, {len(products)} different, one by one"
        )
        if self.stacked:
            computed = "one product of stacks"
        if self.on_device is not None:
            computed = "one product by offsets on the device, which are not read"
        rows = [("product", f"{counted(self.groups, 'group')}, {self.form}"), ("computed", computed)]
        if self.imbalance is not None:
            equal = f"{self.imbalance:.3g} (largest group over the mean), {self.empty} without multiplications"
            rows.append(("imbalance", equal))
        rows += [("unassigned", f"{self.unassigned} beyond the last end: zeros")] if self.unassigned else []
        yield Facts(rows)
        table = []
        for size, decision, groups in products:
            verdict = None if decision.chosen is None else decision[decision.chosen]
            cells = ("none", "-") if verdict is None else (verdict.backend, verdict.duration)
            table.append(("x".join(map(str, size)), str(groups), *cells, decision.why))
        if self.on_device is not None:
            for _, decision, _ in products:
                yield from decision._parts()
        elif table:
            yield Table(("m x n x k", "groups", "backend", "time", "reason"), table, right=("m x n x k", "groups"))


@signature(GroupedOptions)
@memory_errors
def explain_grouped(
    a: Array, b: Array, /, offsets: Array | None = None, *, out: Array | None = None, **options: Unpack[GroupedOptions]
) -> GroupedDecision:
    """Report the backends that :func:`grouped_matmul` would choose for the groups, and how unequal these are.

    Nothing is prepared or computed.

    Parameters
    ----------
    a, b, offsets, out, options : as of :func:`grouped_matmul`.

    Returns
    -------
    A :class:`GroupedDecision`. Print it, or use it as data: ``decisions`` has a :class:`Decision` for each group.

    Raises
    ------
    The errors of :func:`grouped_matmul` but NoBackendError for a product that no backend can run.

    See Also
    --------
    grouped_matmul : the products.
    explain : the decision for one product.

    Examples
    --------
    >>> tokens, experts = np.ones((6, 2), np.float32), np.ones((3, 2, 4), np.float32)
    >>> decision = gemmhub.explain_grouped(tokens, experts, np.array([4, 4, 6], np.int32), backend="numpy")
    >>> decision.imbalance, decision.empty, decision.sizes, decision.chosen
    (2.0, 1, ((4, 4, 2), (0, 4, 2), (2, 4, 2)), ('numpy',))
    """
    values: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        if out is not None:
            overlaps.check(calls.read_lists(a, b, offsets, out, values)[0])
        return _of_lists(a, b, offsets, out, values)
    if registered.deferring or registered.doors:
        arguments = values if out is None else {"out": out, **values}
        arrays = (a, b, offsets, out, *map(values.get, OPERANDS))
        deferred = registered.deferred("explain_grouped", (a, b, offsets), arguments, arrays)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    if ends_of.on_device(offsets):
        one = device.describe(a, b, offsets, out, values)
        problem = one.problem
        decision = None if problem.empty else device.decide(one)
        whole = (problem.m, problem.n, problem.k)
        return GroupedDecision(one.form.name, (whole,), (decision,), on_device=one.groups.count)
    call = calls.describe(a, b, offsets, out, values)
    if out is not None:
        out = calls.target(call, out) if call.arrays.device.type == "cpu" else out
    decided: dict[Sizes, Decision] = {}
    for part in call.parts:
        if part.sizes not in decided and not part.empty:
            into = None if out is None else call.cut(out)(part.group, part.span)
            try:
                decided[part.sizes] = api.explain(part.a, part.b, out=into, **part.options)
            except InputError as error:
                raise calls.named(error, None if call.stacked else part.group) from error
    unassigned = call.extent - (call.ends[-1] if call.ends else 0)
    sizes = tuple(part.sizes for part in call.parts) * (call.groups if call.stacked else 1)
    return GroupedDecision(call.form.name, sizes, tuple(map(decided.get, sizes)), unassigned, call.stacked)


def _of_lists(a: Any, b: Any, offsets: Any, out: Any, options: dict[str, Any]) -> GroupedDecision:
    decided: dict[Any, Decision] = {}
    sizes: list[Sizes] = []
    decisions: list[Decision | None] = []
    for i, left, right, into, own in calls.each(a, b, offsets, out, options):
        try:
            decision = api.explain(left, right, out=into, **own)
        except InputError as error:
            raise calls.named(error, i) from error
        problem = decision.problem
        sizes.append((problem.m * problem.batch_count, problem.n, problem.k))
        decisions.append(None if problem.empty else decided.setdefault(problem.key, decision))
    return GroupedDecision("lists", tuple(sizes), tuple(decisions))
