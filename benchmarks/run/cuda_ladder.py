"""The steps from a naive kernel to that of gemmhub-cuda: float32 without tensor cores, bfloat16 with them.

    python -m benchmarks.run.cuda_ladder [--only sgemm] [--size 4096] [--rounds 7] [--json FILE]
    python -m benchmarks.run.cuda_ladder --count [--json FILE]
    python -m benchmarks.run.cuda_ladder --write

The steps are the files of benchmarks/ladder, explained in docs/cuda-ladder.md. On a card (torch and gemmhub-cuda are
needed) each is compiled, checked by gemmhub.spot_check on a small product and against torch on the timed one, and timed
by CUDA graphs (benchmarks/lib/cuda_graphs.py), in turn with torch.matmul and the plugin's own kernel. ``--count`` needs
g++ and no card: it prints the compiler's figures, and accesses of shared memory on the tests' emulator. ``--write``
writes the records of benchmarks/results, which come from ``--json``, to the docs page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from ctypes import addressof, c_uint, c_void_p
from pathlib import Path
from typing import Any

from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.driver import KERNELS, Driver, DriverError, Gpu, load
from rich.console import Console
from rich.table import Table

from benchmarks.ladder import counts
from benchmarks.ladder.steps import FAMILIES, KERNEL, Params, Step, steps
from benchmarks.lib import results
from benchmarks.pages import ladder as ladder_page
from benchmarks.pages import tables
from gemmhub.capability import Absent

_LAUNCH = {"cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)}
_CHECKED = (2304, 384, 512)
"""Sizes m, n, k of the spot-checked product: more rows of tiles than a group, with a smaller last group."""
_RATES = {"sgemm": 4e13, "mma": 6e14}
"""Approximate FLOP a second."""
PLUGIN = "cuda"
"""Name of the backend of gemmhub-cuda."""

Call = Callable[[Any, Any, Any], object]


class Card:
    """The current device of torch, with the compiler and the driver for steps."""

    def __init__(self, index: int) -> None:
        """Raise OSError, AttributeError or DriverError without a driver; CompilerError without an NVRTC for it."""
        self.driver = load({**KERNELS, **_LAUNCH})
        self.gpu = Gpu(self.driver, index)
        found = nvrtc.look(nvrtc.load, self.driver)
        if isinstance(found, Absent):
            raise nvrtc.CompilerError(found.reason, found.remedy)
        self.compiler = found

    def function(self, step: Step) -> int:
        image = nvrtc.cubin(self.compiler, step.source(self.gpu.capability))
        return self.gpu.function(image, KERNEL, step.shared_bytes)


def launch(driver: Driver, function: int, step: Step, params: Params, stream: int) -> None:
    """Launch a step; ValueError for a product that it does not take."""
    m, n, k = params.m, params.n, params.k
    refusal = step.refusal(m, n, k)
    if refusal is not None:
        raise ValueError(refusal)
    arguments = (c_void_p * 1)(addressof(params))
    driver.call(
        "cuLaunchKernel", function, *step.grid(m, n), step.threads, 1, 1, step.shared_bytes, stream, arguments, None
    )  # fmt: skip


def caller(card: Card, step: Step) -> Call:
    """Return the step as a function of tensors a (m x k), b (k x n; a view of n x k for bfloat16 steps) and out."""
    import torch

    function = card.function(step)

    def call(a: Any, b: Any, out: Any) -> None:
        params = Params(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape[0], b.shape[1], a.shape[1])
        launch(card.driver, function, step, params, torch.cuda.current_stream().cuda_stream)

    return call


def plugin(rig: Any, checked: Any) -> tuple[Call, str] | str:
    """Return gemmhub-cuda's kernels for both rigs' products as one call, and the name of the first; or the refusal.

    A plan serves operands of one size: there is one for each.
    """
    import gemmhub

    plans = {}
    try:
        for a, b, out in (rig.sets[0], checked.sets[0]):
            plans[a.shape, b.shape] = gemmhub.plan(a, b, out=out, backend=PLUGIN)
    except gemmhub.GemmhubError as error:
        return str(error)

    def call(a: Any, b: Any, out: Any) -> None:
        plans[a.shape, b.shape](a, b, out)

    first = next(iter(plans.values()))
    return call, first.decision[PLUGIN].candidate


def wrong(call: Call, rig: Any, checked: Any) -> str:
    """Return the error of a kernel's result; "" where it is correct."""
    import torch

    import gemmhub

    a, b, out = checked.sets[0]
    out.fill_(float("nan"))
    call(a, b, out)
    found = gemmhub.spot_check(a, b, out)
    if not found:
        return str(found)
    a, b, out = rig.sets[0]
    reference = torch.matmul(a, b).float()
    out.fill_(float("nan"))
    call(a, b, out)
    scale = reference.square().mean().sqrt()
    relative, absolute = (0.0, 1e-4) if out.dtype == torch.float32 else (0.02, 0.02)
    close = (out.float() - reference).abs() <= absolute * scale + relative * reference.abs()
    return "" if bool(close.all()) else f"{int((~close).sum())} elements differ from torch's"


def measured(card: Card, family: str, size: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each step, then the plugin's kernel, then torch's."""
    import torch

    from benchmarks.lib.cuda_graphs import Rig

    dtype, order, _ = FAMILIES[family]
    kind = getattr(torch, dtype)
    rig = Rig(size, size, size, order, kind, 2 * size**3 / _RATES[family])
    checked = Rig(*_CHECKED, order, kind, 1.0)
    ladder: list[tuple[str, str, Call]] = []
    for step in steps(family):
        refusal = step.refusal(size, size, size)
        if refusal is not None:
            raise SystemExit(f"{refusal}: choose another --size")
        ladder.append((step.name, step.idea, caller(card, step)))
    own = plugin(rig, checked)
    if isinstance(own, str):
        print(f"without the plugin's kernel: {own}")
    else:
        ladder.append(("gemmhub-cuda", own[1], own[0]))
    rows: list[dict[str, Any]] = [
        {"step": name, "idea": idea, "wrong": wrong(call, rig, checked)} for name, idea, call in ladder
    ]
    rows.append({"step": "torch", "idea": "torch.matmul", "wrong": ""})
    calls = [call for _, _, call in ladder] + [lambda a, b, out: torch.matmul(a, b, out=out)]
    times = rig.medians([rig.add(call) for call in calls], rounds)
    before = None
    for row, seconds in zip(rows, times):
        row["us"], row["tflops"], row["ratio"] = 1e6 * seconds, 2e-12 * size**3 / seconds, times[-1] / seconds
        row["gain"] = before / seconds if before is not None and row["step"] != "torch" else None
        before = seconds
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table("step", "idea")
    for column in ("TFLOPS", "gain", "of torch"):
        shown.add_column(column, justify="right")
    for row in rows:
        gain = "" if row["gain"] is None else f"{row['gain']:.2f}x"
        idea = f"[red]WRONG: {row['wrong']}" if row["wrong"] else row["idea"]
        shown.add_row(row["step"], idea, f"{row['tflops']:.1f}", gain, f"{row['ratio']:.1%}")
    return shown


def measure(options: argparse.Namespace) -> dict[str, Any] | str:
    """Return the record of a run; or the reason why there is none."""
    try:
        import torch
    except ImportError:
        return "there is no torch here: install it, or ask for --count"
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU here; --count needs none"
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        card = Card(torch.cuda.current_device())
    except (OSError, AttributeError, DriverError, nvrtc.CompilerError) as error:
        return str(error)
    families: dict[str, list[dict[str, Any]]] = {}
    for family in [options.only] if options.only else FAMILIES:
        families[family] = measured(card, family, options.size, options.rounds)
        Console(width=110).print(table(families[family]))
    return {
        "kind": "times", "device": card.gpu.name, "size": options.size, "rounds": options.rounds,
        "versions": {
            "CUDA of the driver": "{}.{}".format(*card.driver.cuda_version),
            "NVRTC": "{}.{}".format(*card.compiler.version), "torch": torch.__version__,
        },
        "families": families,
    }  # fmt: skip


def count() -> dict[str, Any] | str:
    """Return the record of the counts without a card; or the reason why there is none."""
    try:
        return counts.counted(counts.emulator())
    except (ImportError, nvrtc.CompilerError) as error:
        return f"counting needs gemmhub-cuda with NVRTC: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=tuple(FAMILIES))
    parser.add_argument("--size", type=int, default=4096, help="m, n and k: a multiple of 128")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", action="store_true", help="counts without a card")
    parser.add_argument("--write", action="store_true", help="the records of benchmarks/results into the docs page")
    options = parser.parse_args()
    if options.write:
        tables.write(ladder_page.PAGE)
        return 0
    record = count() if options.count else measure(options)
    if isinstance(record, str):
        print(record)
        return 1
    if options.json:
        results.save(options.json, **record)
    if options.count:
        print(ladder_page.counted(record))
    return int(any(row.get("wrong") for rows in record["families"].values() for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
