"""The check of a grouped result: each group's part by its own product, and the zeros beyond the last end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import accuracy
from gemmhub._arrays.find import arrays_of
from gemmhub._base import registered
from gemmhub._base.guard import memory_errors
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part
from gemmhub._base.wording import counted
from gemmhub._call.options import signature
from gemmhub._check.spot_check import SpotCheck, spot_check
from gemmhub._grouped import call as calls
from gemmhub._grouped import offsets as ends_of
from gemmhub._grouped.call import OPERANDS, Grouped, GroupedOptions
from gemmhub.errors import InputError, ShapeError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any


@dataclass(frozen=True, repr=False)
class GroupedCheck(Report):
    """The verdict of :func:`spot_check_grouped`; true where ``ok``."""

    ok: bool
    checks: tuple[SpotCheck | None, ...]
    """The verdict of each group; None for a group without elements, and after the first wrong one. One alone of stacks
    that are one product."""
    group: int | None
    """The wrong group; None where none is wrong."""
    reason: str
    """Reason for the verdict."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def worst(self) -> float:
        """Largest error over its bound among the recomputed elements of all groups; beyond 1 is wrong."""
        return max((check.worst for check in self.checks if check is not None), default=0.0)

    def _parts(self) -> Iterator[Part]:
        done = [check for check in self.checks if check is not None]
        examined = f"{counted(len(done), 'group')}, {sum(check.checked for check in done)} elements recomputed"
        verdict = "passed" if self.ok else "failed"
        yield Facts([("verdict", f"{verdict} ({examined})"), ("reason", self.reason)], marked=("verdict",))


@signature(GroupedOptions)
@memory_errors
def spot_check_grouped(
    a: Array, b: Array, offsets: Array | None, result: Array, /, *, seed: int | None = None,
    **options: Unpack[GroupedOptions],
) -> GroupedCheck:  # fmt: skip
    """Check that ``result`` is ``gemmhub.grouped_matmul(a, b, offsets, **options)`` within the bound of each group.

    Each group's part is checked by :func:`spot_check`, and what is beyond the last end must be zeros. Offsets on a
    device are copied to the host, which waits for it, and are checked.

    Parameters
    ----------
    a, b, offsets, options : as of :func:`grouped_matmul`, without ``out``; offsets None for stacks and lists.
        ``precision`` is "ieee" where it is absent, whatever the settings are.
    result : the claimed result, in any dtype that ``out_dtype`` may have; a list where a and b are.
    seed : makes the random choices repeatable.

    Returns
    -------
    A :class:`GroupedCheck`, true where ``result`` is right, with the reason and the first wrong group. Print it.

    Raises
    ------
    The errors of :func:`spot_check` and of the arguments of :func:`grouped_matmul`.

    See Also
    --------
    grouped_matmul : the products.
    spot_check : the check of one product, and what it detects.

    Examples
    --------
    >>> tokens, experts = np.ones((6, 2), np.float32), np.ones((3, 2, 4), np.float32)
    >>> ends = np.array([3, 3, 5], np.int32)
    >>> result = gemmhub.grouped_matmul(tokens, experts, ends)
    >>> gemmhub.spot_check_grouped(tokens, experts, ends, result).ok
    True
    >>> result[5] = 1  # beyond the last end
    >>> gemmhub.spot_check_grouped(tokens, experts, ends, result).reason
    'element (5, 0) is 1.0, beyond the last end, 5; expected 0'
    """
    values: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
    if "out" in values:
        raise InputError("out", "given to spot_check_grouped", "options of grouped_matmul but out", "pass the result")
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return _of_lists(a, b, offsets, result, seed, values)
    if registered.deferring or registered.doors:
        arrays = (a, b, offsets, result, *map(values.get, OPERANDS))
        deferred = registered.deferred("spot_check_grouped", (a, b, offsets, result), {"seed": seed, **values}, arrays)
        if deferred is not NotImplemented:
            return deferred  # type: ignore[no-any-return]
    call = calls.describe(a, b, ends_of.on_host(offsets), None, values)
    claimed = arrays_of(result, "result").view(result, "result") if call.arrays.device.type == "cpu" else result
    if tuple(claimed.shape) != call.shape:
        raise ShapeError("result", f"shape {tuple(claimed.shape)}", f"shape {call.shape}, that of the product")
    checks: list[SpotCheck | None] = []
    cut = call.cut(claimed)
    for part in call.parts:
        checks.append(None)
        if part.empty:
            continue
        try:
            checks[-1] = spot_check(part.a, part.b, cut(part.group, part.span), seed=seed, **part.options)
        except InputError as error:
            raise calls.named(error, None if call.stacked else part.group) from error
        if not checks[-1]:
            return _verdict(checks, call)
    beyond = call.beyond(claimed)
    wrong = None if beyond is None else _nonzero(call, beyond)
    if wrong is not None:
        return GroupedCheck(False, tuple(checks), None, wrong)
    return _verdict(checks, call)


def _nonzero(call: Grouped, beyond: Array) -> str | None:
    """The first element beyond the last end that is not zero, as a reason; None where all are."""
    rest = np.asarray(beyond if isinstance(beyond, np.ndarray) else call.arrays.to_host(beyond))
    strange = np.argwhere(rest != 0)
    if not len(strange):
        return None
    place, end = strange[0].tolist(), call.ends[-1] if call.ends else 0
    value = accuracy.widen(rest[tuple(place)]).item()
    place[call.form.out or 0] += end
    return f"element {tuple(place)} is {value}, beyond the last end, {end}; expected 0"


def _of_lists(a: Any, b: Any, offsets: Any, result: Any, seed: int | None, options: dict[str, Any]) -> GroupedCheck:
    checks: list[SpotCheck | None] = []
    for i, left, right, claimed, own in calls.each(a, b, offsets, result, options, into="result"):
        try:
            checks.append(spot_check(left, right, claimed, seed=seed, **own))
        except InputError as error:
            raise calls.named(error, i) from error
        if not checks[-1]:
            break
    return _verdict(checks + [None] * (len(a) - len(checks)))


def _verdict(checks: list[SpotCheck | None], call: Grouped | None = None) -> GroupedCheck:
    """The verdict of the groups that were checked, of which the last may be wrong."""
    stacked = call is not None and call.stacked
    if call is not None:
        checks = checks + [None] * (len(call.spans) - len(checks))
    for i, check in enumerate(checks):
        if check is not None and not check:
            group = check.where[0] if stacked and check.where else i
            return GroupedCheck(False, tuple(checks), group, check.reason if stacked else f"group {i}: {check.reason}")
    worst = max((check.worst for check in checks if check is not None), default=0.0)
    reason = f"every recomputed element is within its bound, the worst at {worst:.3g} of it"
    return GroupedCheck(True, tuple(checks), None, reason)
