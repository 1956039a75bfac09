"""C++ source of the epilogues, for kernels that are compiled at run time.

A plugin includes :func:`source` and supplies what the expressions use: ``gated(x, t)`` is x / (1 + exp(-t)), and
``normal_weighted(x)`` is x times the normal distribution function; both are 0 at minus infinity. ``tanhf`` and ``expf``
are C's.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemmhub.epilogues import EPILOGUES


def numbers(names: Iterable[str]) -> dict[str | None, int]:
    """Return the number of each epilogue among ``names`` in :func:`source`; 0 is none."""
    return {None: 0, **{name: i for i, name in enumerate(names, 1)}}


def source(names: Iterable[str], qualifier: str = "DEVICE") -> str:
    """Return the functions ``activated<number>(x)`` of the elementwise epilogues, or gates, called ``names``.

    ``qualifier`` precedes each function.
    """
    lines = [f"template <int activation> {qualifier} float activated(float x);"]
    lines.append(f"template <> {qualifier} float activated<0>(float x) {{ return x; }}")
    for i, name in enumerate(names, 1):
        expression = EPILOGUES[name].expression
        lines.append(f"template <> {qualifier} float activated<{i}>(float x) {{ return {expression}; }}  // {name}")
    return "\n".join(lines) + "\n"
