"""Decided calls, kept by call signature, so that nothing is decided twice.

A call of a known signature (:mod:`gemmhub._call.keys`) checks nothing again; one of new sizes is looked up
by its family (:mod:`gemmhub._call.family`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmhub._base.evicting import keep
from gemmhub._call.keys import STRIDE_DEPENDENT, call_key

if TYPE_CHECKING:
    from gemmhub._call.family import Families
    from gemmhub._call.observe import Observer
    from gemmhub._choice.decide import Winner
    from gemmhub.array_library import FastPath

_MAX_BUCKETS = 4096
"""Maximum number of buckets whose winners are kept."""
_MAX_ENTRIES = 12_288
"""Maximum number of keys: of 4096 sizes on a CPU, three each, which take about 14 MB."""


class CallCache:
    """The decided calls of the process, or of one plan.

    When settings or records change, it is not emptied but replaced: a call that another thread is deciding
    keeps the cache that it began with, so that decisions by old records and settings are dropped with them.
    """

    __slots__ = ("_entries", "families", "fast", "find", "grouped", "keyed", "observer", "winners")

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer
        """The object that counts products, each of which is then described: no function of a call is kept."""
        self._entries: OrderedDict[Any, Any] = OrderedDict()
        self.find = self._entries.get
        """The function, or the decision, that was put under a key; None where there is none. TypeError for a key that
        cannot be hashed."""
        self.families: Families | None = None
        """The functions that run new sizes of families, once one was met. They have a table of their own: many sizes
        evict none."""
        self.grouped: OrderedDict[Any, Any] = OrderedDict()
        """The signatures of grouped calls (:mod:`gemmhub._grouped.repeated`), which bounds them."""
        self.winners: OrderedDict[Any, Winner] = OrderedDict()
        """The winners of buckets, by representative and settings."""
        self.fast: dict[type, FastPath] = {}
        """The fast path of each type of arrays that was met and has one."""
        self.keyed: dict[type, OrderedDict[Any, Any]] = {}
        """The tables of the fast paths by keys (:mod:`gemmhub._call.library_paths`), by the type of ``a``."""

    def __len__(self) -> int:
        return len(self._entries)

    def look_up(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, Any]:
        """The key of a call (None where it has none), and what is kept under it."""
        key = call_key(a, b, out, options)
        try:
            value = self.find(key)
        except TypeError:  # unhashable: an object whose shape is a list, for example
            return None, None
        if value is STRIDE_DEPENDENT:
            key = call_key(a, b, out, options, with_strides=True)
            value = self.find(key)
        return key, value

    def put(self, key: Any, value: Any) -> None:
        """Keep ``value`` under ``key``; where the cache is full, the oldest entry goes."""
        keep(self._entries, key, value, _MAX_ENTRIES)

    def put_keyed(self, cls: type, key: Any, value: Any) -> None:
        """Keep the function of a call whose ``a`` is of this type, where that has a fast path by keys."""
        if cls in self.keyed:
            keep(self.keyed[cls], key, value, _MAX_ENTRIES)

    def put_winner(self, key: Any, value: Winner) -> None:
        keep(self.winners, key, value, _MAX_BUCKETS)
