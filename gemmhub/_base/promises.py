"""Promises on the bits of a result: the values of ``reproducible=``."""

from __future__ import annotations

import re

ALLOWED = "'run', 'batch', the name of an order of sums (explain() prints them), or 'off'"
"""Values of ``reproducible=``, in words."""
_ORDER = re.compile(r"exact|[a-z0-9_-]+(\.[a-z0-9_-]+)+(/[a-z0-9_-]+)*")


def is_order(name: object) -> bool:
    """Return whether ``name`` can be the name of an order of sums: "exact", or words with dots such as "fma.f32"."""
    return isinstance(name, str) and _ORDER.fullmatch(name) is not None


def pins_rows(promise: str | None) -> bool:
    """Return whether a promise pins the bits of a row to that row and b alone: "batch", or an order of sums."""
    return promise not in (None, "run", "off")


def promise(value: object) -> str | None:
    """Return the promise that ``value`` names, None for "off". Raises ValueError where it names none."""
    if value == "off":
        return None
    if isinstance(value, str) and (value in ("run", "batch") or is_order(value)):
        return value
    raise ValueError(value)
