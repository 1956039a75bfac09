"""Keeping values in a table of limited size: the oldest entry goes when a new one comes.

A table that is emptied when it is full decides everything anew from then on, also what repeats.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep(table: dict[K, V], key: K, value: V, limit: int) -> None:
    """Put ``value`` under ``key``, and evict the oldest entries of a table of ``limit``. Safe without a lock."""
    while len(table) >= limit and key not in table:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread evicts, too, or adds an entry
            del table[next(iter(table))]
    table[key] = value
