"""Symmetric products beside torch's plain ones on an NVIDIA card, by CUDA graphs; and Muon's polynomial as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import gemmhub
from benchmarks.lib.cuda_graphs import Rig, expected
from benchmarks.lib.torch_calls import RATES, call_key

SIZES = (512, 1000, 2048, 4096, 8192, 16384)
DTYPES = ("bfloat16", "float16", "tf32", "float32")
MUON = ((1024, 1024), (1024, 4096), (4096, 4096), (4096, 11008))
"""Shapes of updates, of which the first side is not the longer one."""
COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""The coefficients of Muon's polynomial of degree five (Jordan et al., 2024)."""
STEPS = 5


def products(dtype: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield, for each size, the seconds of x x^T and of beta * c + alpha * s s, with the promise and by torch.

    In the second one s is symmetric, and c is s.
    """
    options = {"precision": "tf32"} if dtype == "tf32" else {}
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    _, beta, alpha = COEFFICIENTS
    for n in SIZES:
        rig = Rig(n, n, n, "nn", call_key(dtype), expected(n, n, n, RATES[dtype]))
        for a, s, _ in rig.sets:
            s.copy_((a + a.t()) / (2 * n) ** 0.5)
        calls: dict[str, Callable[[Any, Any, Any], object]] = {
            "symmetric": lambda a, s, out: gemmhub.matmul(a, a.t(), out=out, symmetric=True, **options),
            "plain": lambda a, s, out: gemmhub.matmul(a, a.t(), out=out, **options),
            "torch": lambda a, s, out: torch.matmul(a, a.t(), out=out),
            "symmetric with c": lambda a, s, out: gemmhub.matmul(
                s, s, out=out, alpha=alpha, beta=beta, c=s, symmetric=True, **options
            ),
            "torch with c": lambda a, s, out: torch.addmm(s, s, s, beta=beta, alpha=alpha, out=out),
        }
        wrong = [name for name, call in calls.items() if name.startswith("symmetric") and not right(call, rig)]
        times = dict(zip(calls, rig.medians([rig.add(call) for call in calls.values()], rounds)))
        yield {
            "dtype": dtype, "n": n, "seconds": times, "wrong": wrong,
            "ratio": times["torch"] / times["symmetric"],
            "ratio with c": times["torch with c"] / times["symmetric with c"],
            "of plain": times["plain"] / times["symmetric"],
        }  # fmt: skip


def right(call: Callable[[Any, Any, Any], object], rig: Rig) -> bool:
    """Return whether the result of a call is equal to its transpose in all bits, and finite."""
    a, s, out = rig.sets[0]
    out.fill_(float("nan"))
    call(a, s, out)
    return bool(torch.equal(out, out.t()) and torch.isfinite(out).all())


def polynomials(x: Any, step: Callable[[Any], Any]) -> Any:
    """Return ``x`` after Muon's steps."""
    for _ in range(STEPS):
        x = step(x)
    return x


def by_gemmhub(x: Any) -> Any:
    """Return one step, by two symmetric products of three."""
    first, beta, alpha = COEFFICIENTS
    square = gemmhub.matmul(x, x.t(), symmetric=True)
    sums = gemmhub.matmul(square, square, alpha=alpha, beta=beta, c=square, symmetric=True)
    return gemmhub.matmul(sums, x, beta=first, c=x)


def by_torch(x: Any) -> Any:
    """Return one step as torch users write it."""
    first, beta, alpha = COEFFICIENTS
    square = x @ x.t()
    return first * x + (beta * square + alpha * square @ square) @ x


def muon(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield, for each shape of an update in bfloat16, the seconds of all steps, by gemmhub and by torch.compile."""
    compiled = torch.compile(by_torch)
    for m, n in MUON:
        rig = Rig(m, n, m, "nn", torch.bfloat16, STEPS * 3 * expected(m, n, m))
        for _, b, _ in rig.sets:
            b.div_(b.float().norm())
        calls: dict[str, Callable[[Any, Any, Any], object]] = {
            "gemmhub": lambda a, b, out: out.copy_(polynomials(b, by_gemmhub)),
            "torch.compile": lambda a, b, out: out.copy_(polynomials(b, compiled)),
        }
        times = dict(zip(calls, rig.medians([rig.add(call) for call in calls.values()], rounds)))
        yield {"m": m, "n": n, "seconds": times, "ratio": times["torch.compile"] / times["gemmhub"]}
