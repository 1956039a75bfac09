"""Keeping values in a table of limited size: the oldest entry goes when a new one comes.

The table is an OrderedDict: of a dict, the oldest entry takes time proportional to the number of entries removed.

A table that is emptied when it is full decides everything anew from then on, also what repeats.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Put ``value`` under ``key``, and evict the oldest entries of a table of ``limit``. Safe without a lock."""
    while len(table) >= limit and key not in table:
        with suppress(KeyError):  # another thread has emptied it
            table.popitem(last=False)
    table[key] = value
