"""float8 products with quantization scales against torch._scaled_mm on an NVIDIA GPU, by CUDA graphs.

    python -m benchmarks.run.scaled [--seed N] [--products 48] [--seconds 300] [--rounds 5] [--backend cublas]
                                    [--json FILE]

Needs torch and a card with float8. Each class has its granularity: one factor for an operand ("tensor"), rows of a by
columns of b ("row"), or blocks of 1 x 128 of a by 128 x 128 of b ("block"). m is drawn from 1 to 8, from 1 to 64, or
from 64 to 8192, n and k log-uniformly from 512 to 16384, multiples of 128, k at times with a remainder of 16 elements;
b is column-major, the result bfloat16, of one class float8. Scales lie in memory as cuBLASLt reads them. Timed in one
run are torch's call with slow accumulation, which keeps the bound of gemmhub's products, with fast accumulation, which
torch refuses for blocks, and a plan of gemmhub, by one backend alone with ``--backend``. What torch or a backend
refuses is printed and left out. torch 2.11 takes scales of 128 x 128 without the padding that cuBLASLt reads, and is
then wrong in the same time: that is printed, and no failure. No records are used; what is fastest by the estimates is
compiled. Some rows of every result are compared with float64. Geometric means are printed last, by class.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cuda_graphs import Call, Rig
from benchmarks.lib.drawn import FP8, power
from benchmarks.lib.torch_calls import RATES, chosen, scaled, scales, without_records

GRANULARITIES = ("tensor", "row", "block")
ROWS = {
    "m 1 to 8": (0, 3, torch.bfloat16), "m 1 to 64": (0, 6, torch.bfloat16), "m 64 to 8192": (6, 13, torch.bfloat16),
    "m 64 to 8192, float8 result": (6, 13, torch.float8_e4m3fn),
}  # fmt: skip
"""Powers of 2 between which m is drawn, and the dtype of the result."""
SLOW, FAST, OURS = "torch", "torch fast", "gemmhub"
RATIOS = ((SLOW, OURS), (FAST, OURS), (SLOW, FAST))
"""The pairs whose times are compared: the first over the second."""
_BLOCK = 128
_CHECKED_ROWS = 8


class Product(NamedTuple):
    granularity: str
    rows: str
    m: int
    n: int
    k: int


def drawn(seed: int, count: int) -> Iterator[Product]:
    """Yield ``count`` products, the classes in turn."""
    classes = [(granularity, rows) for rows in ROWS for granularity in GRANULARITIES]
    for i in range(count):
        granularity, rows = classes[i % len(classes)]
        rng = np.random.default_rng((seed, i))
        low, high, _ = ROWS[rows]
        m = power(rng, low, high, 4 if granularity == "block" and high > 3 else 1)
        n, k = power(rng, 9, 14, _BLOCK), power(rng, 9, 14, _BLOCK)
        yield Product(granularity, rows, m, n, k + 16 * int(rng.integers(0, 3) == 0))


class Setup(Rig):
    """A rig of one product, whose scales are the same for all sets of operands."""

    def __init__(self, product: Product) -> None:
        _, _, m, n, k = self.product = product
        self.out_dtype = ROWS[product.rows][2]
        seconds = max(4e-6, 2.0 * m * n * k / RATES[FP8])
        super().__init__(m, n, k, "nt", torch.float8_e4m3fn, seconds)
        self.scale_a, self.scale_b = scales(m, n, k, product.granularity)
        # torch 2.11 refuses the padding that blocks of 128 x 128 have unless 4 divides their number along K; without
        # it, what cuBLASLt reads is wrong, in the same time.
        padded = product.granularity == "block" and self.scale_b.stride(1) != self.scale_b.shape[0]
        self.scale_b_of_torch = self.scale_b.t().contiguous().t() if padded else self.scale_b

    def _operands(self, m: int, n: int, k: int, order: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
        a, b = (torch.randn(size, k, device="cuda").to(dtype) for size in (m, n))
        return a, b.t(), torch.empty(m, n, device="cuda", dtype=self.out_dtype)


def torch_call(rig: Setup, fast: bool) -> Call:
    """Return torch's call."""

    def call(a: Any, b: Any, out: Any) -> None:
        torch._scaled_mm(a, b, rig.scale_a, rig.scale_b_of_torch, out_dtype=out.dtype, use_fast_accum=fast, out=out)

    return call


def right(rig: Setup, call: Call, fast: bool) -> bool:
    """Compare some rows of the result with float64's. Fast accumulation keeps about 14 bits of the sums."""
    a, b, out = rig.sets[0]
    out.view(torch.uint8).fill_(0x7F if out.itemsize == 1 else 0xFF)  # NaN
    call(a, b, out)
    rows = torch.linspace(0, rig.product.m - 1, min(_CHECKED_ROWS, rig.product.m), device="cuda").long()
    exact = torch.matmul(*scaled(a, b, {"scale_a": rig.scale_a, "scale_b": rig.scale_b}, rows))
    size = exact.square().mean().sqrt()
    tolerance = 0.02 if fast else 0.004
    if out.itemsize == 1:  # rounded to four bits, within the range
        exact, tolerance = exact.clip(-448, 448), tolerance + 2**-4
    result = out.view(torch.uint8)[rows].view(out.dtype).double()
    return bool(((result - exact).abs() <= tolerance * (size + exact.abs())).all())


def measure(product: Product, options: argparse.Namespace) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    rig = Setup(product)
    a, b, out = rig.sets[0]
    calls: dict[str, Call] = {}
    given = {"scale_a": rig.scale_a, "scale_b": rig.scale_b}
    refused = {}
    try:
        plan = gemmhub.plan(a, b, out=out, backend=options.backend, **given)
        calls[OURS] = lambda a, b, out: plan(a, b, out, **given)
        name = chosen(plan)
    except gemmhub.GemmhubError as error:
        refused[OURS], name = str(error), "refused"
    for contender, fast in ((SLOW, False), (FAST, True)):
        call = torch_call(rig, fast)
        try:
            call(a, b, out)
            calls[contender] = call
        except (RuntimeError, ValueError) as error:
            refused[contender] = str(error)
    wrong = [contender for contender, call in calls.items() if not right(rig, call, contender == FAST)]
    numbers = {contender: rig.add(call) for contender, call in calls.items()}
    times = dict(zip(numbers, rig.medians(list(numbers.values()), options.rounds))) if numbers else {}
    words = "  ".join(f"{contender} {t * 1e6:.1f}" for contender, t in times.items())
    for contender in refused:
        words += f"  {contender} refused: {refused[contender].splitlines()[0][:100]}"
    line = f"{product.granularity:7}{(product.m, product.n, product.k)}  {words} us  ({name})"
    print(line + (f"  WRONG: {', '.join(wrong)}" if wrong else ""), flush=True)
    return {
        **product._asdict(), "us": {x: t * 1e6 for x, t in times.items()}, "chosen": name, "wrong": wrong,
        "refused": refused,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines: for each class, geometric means of the ratios of RATIOS, and the smallest."""
    lines = [f"{'class':36}{'n':>4}" + "".join(f"{f'{x} / {y}':>26}" for x, y in RATIOS)]
    classes = [(g, r) for g in GRANULARITIES for r in ROWS] + [("", r) for r in ROWS]
    classes += [(g, "") for g in GRANULARITIES] + [("", "")]
    for granularity, words in classes:
        mine = [
            row["us"] for row in rows if granularity in ("", row["granularity"]) and words in ("", row["rows"])
        ]  # fmt: skip
        cells, name = "", f"{granularity or 'all'} {words}".strip()
        for x, y in RATIOS:
            ratios = [us[x] / us[y] for us in mine if x in us and y in us]
            cell = f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})" if ratios else "-"
            cells += f"{cell:>26}"
        lines.append(f"{name:36}{len(mine):4}{cells}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--products", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no product after this time")
    parser.add_argument("--backend", help="run gemmhub's products by this backend alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records(compiling=True)
    begin = time.monotonic()
    rows = []
    for product in drawn(options.seed, options.products):
        if time.monotonic() < begin + options.seconds:
            rows.append(measure(product, options))
            torch.cuda.empty_cache()
    if options.json:
        ready = {name: s.versions for name, s in gemmhub.backends().items() if s.state == "ready"}
        results.save(options.json, seed=options.seed, backends=ready, rows=rows)
    print("\n".join(table(rows)))
    return int(any(OURS in row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
