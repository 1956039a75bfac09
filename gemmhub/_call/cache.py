"""Decided calls, kept by their kind, so that nothing is decided twice.

A call of a kind that was seen before (:mod:`gemmhub._call.kinds`) checks nothing again; one of new sizes is looked up
by its family (:mod:`gemmhub._call.family`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmhub._base.evicting import keep
from gemmhub._call.family import Families
from gemmhub._call.kinds import LOOK_CLOSELY, kind_of

if TYPE_CHECKING:
    from gemmhub._choice.decide import Winner
    from gemmhub.array_library import FastPath

_MOST_BUCKETS = 4096
"""The most buckets whose winners are kept."""
_MOST = 12_288
"""The most keys: of 4096 sizes on a CPU, three each, which take about 14 MB."""


class CallCache:
    """The decided calls of the process, or of one plan.

    When settings or records change, it is not emptied but replaced as a whole: a call that another thread is deciding
    keeps the cache that it began with, so that what it decides by old records and settings is forgotten with them.
    """

    __slots__ = ("_found", "families", "fast", "find", "winners")

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self.find = self._found.get
        """The function, or the decision, that was put under a key; None where there is none. TypeError for a key that
        cannot be hashed."""
        self.families: Families | None = None
        """The functions that run new sizes of families, once one was met. They have a table of their own: many sizes
        evict none."""
        self.winners: OrderedDict[Any, Winner] = OrderedDict()
        """The winners of buckets, by representative and settings."""
        self.fast: dict[type, FastPath] = {}
        """The fast path of each type of device arrays that was met."""

    def __len__(self) -> int:
        return len(self._found)

    def look_up(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, Any]:
        """The key of a call (None where it has none), and what is kept under it."""
        key = kind_of(a, b, out, options)
        try:
            found = self.find(key)
        except TypeError:  # unhashable: an object whose shape is a list, for example
            return None, None
        if found is LOOK_CLOSELY:
            key = kind_of(a, b, out, options, closely=True)
            found = self.find(key)
        return key, found

    def put(self, key: Any, value: Any) -> None:
        """Keep ``value`` under ``key``; where the cache is full, the oldest entry goes."""
        keep(self._found, key, value, _MOST)

    def put_winner(self, key: Any, value: Winner) -> None:
        keep(self.winners, key, value, _MOST_BUCKETS)
