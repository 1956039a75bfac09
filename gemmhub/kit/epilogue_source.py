"""C++ source of the epilogues, for kernels that are compiled at run time.

A plugin includes :func:`source` and supplies what the expressions use: ``gated(x, t)`` is x / (1 + exp(-t)), and
``normal_weighted(x)`` is x times the normal distribution function; both are 0 at minus infinity. ``expf``, ``logf``,
``log1pf``, ``tanhf``, ``erff``, ``sqrtf``, ``fabsf``, ``fminf`` and ``fmaxf`` are C's. Beside their calls an expression
consists of ``x``, float literals such as 0.5f, the operators + - * / < <= > >= == != ! && || ?: and parentheses.

The numbers and the source of kernels without a registered epilogue do not depend on those that a process has
registered: each is compiled into the kernels of its own products alone (:func:`among`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmhub.epilogues import EPILOGUES


def among(names: Sequence[str], activation: str | None) -> tuple[str, ...]:
    """Return ``names``, and after them ``activation`` where it is another epilogue: a registered one."""
    return tuple(names) if activation is None or activation in names else (*names, activation)


def numbers(names: Iterable[str]) -> dict[str | None, int]:
    """Return the number of each epilogue among ``names`` in :func:`source`; 0 is none."""
    return {None: 0, **{name: i for i, name in enumerate(names, 1)}}


def source(names: Iterable[str], qualifier: str = "DEVICE") -> str:
    """Return the functions ``activated<number>(x)`` of the elementwise epilogues, or gates, called ``names``.

    ``qualifier`` precedes each function. Raises ValueError for an epilogue without an expression.
    """
    lines = [f"template <int activation> {qualifier} float activated(float x);"]
    lines.append(f"template <> {qualifier} float activated<0>(float x) {{ return x; }}")
    for i, name in enumerate(names, 1):
        expression = EPILOGUES[name].expression
        if expression is None:
            raise ValueError(f"{name} has no expression in C")
        lines.append(f"template <> {qualifier} float activated<{i}>(float x) {{ return {expression}; }}  // {name}")
    return "\n".join(lines) + "\n"
