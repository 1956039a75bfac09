"""The tables of docs/overhead.md, made of what benchmarks/run/overhead.py measured on a CPU, and that of docs/torch.md
on the host time of recorded products, measured by benchmarks/run/recorded.py on a card."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.lib import results
from benchmarks.pages.tables import rows

_PLAIN = ("matmul", "matmul out=", "plan out=")
"""Calls without options; the mean of the others has a budget of its own."""


def _load() -> dict[str, Any]:
    record: dict[str, Any] = results.load(results.FOLDER / "cpu" / "overhead.json")
    return record


def run() -> list[str]:
    """Return where and how it was measured."""
    record = _load()
    host = record["host"]
    where = f"{host['cpu']} with {host['cores']} cores, Python {record['python']}, NumPy {host['numpy']}"
    return [f"`{record['command']}` on {where}; backends {' and '.join(record['backends'])}."]


def calls() -> list[str]:
    """Return microseconds of each kind of call, of the same by hand, and the difference."""
    sizes = {size: cases for size, cases in _load()["microseconds"].items() if size != "import"}
    body = []
    for name in next(iter(sizes.values())):
        pairs = [(case[name]["gemmhub"], case[name]["by hand"]) for case in sizes.values()]
        body.append((f"`{name}`", *(f"{x:.2f}" for own, other in pairs for x in (own, other, own - other))))
    means = []
    for cases in sizes.values():
        over = [x["gemmhub"] - x["by hand"] for name, x in cases.items() if name not in _PLAIN]
        means += ["", "", f"{sum(over) / len(over):.2f}"]
    head = [
        "float32",
        *(f"{size.replace('x', ' x ')}{word}" for size in sizes for word in (", µs", " by hand", " over")),
    ]
    return rows(head, [*body, ("mean of the calls with options", *means)])


def imports() -> list[str]:
    """Return milliseconds of an import in a fresh interpreter."""
    found = _load()["microseconds"]["import"]["import"]
    own, other = found["gemmhub"] / 1e3, found["by hand"] / 1e3
    head = ("`import gemmhub`, ms", "`import numpy`, ms", "over, ms")
    return rows(head, [(f"{own:.1f}", f"{other:.1f}", f"{own - other:.1f}")])


def ragged() -> list[str]:
    """Return microseconds of calls of new sizes on a CPU, of the same again, and of NumPy's."""
    return _new_sizes("cpu", "NumPy, µs", 1e6, 2)


def ragged_device() -> list[str]:
    """Return the same in milliseconds on an H100, beside torch's."""
    return _new_sizes("h100", "torch, ms", 1e3, 3)


def ragged_model() -> list[str]:
    """Return gemmhub's time over torch's for prefills of new lengths on an H100, with and without compiled kernels."""
    body = []
    for name, where in (("ragged_model_cold.json", "an empty cache"), ("ragged_model.json", "kernels on disk")):
        models = results.load(results.FOLDER / "h100" / name)["models"]
        for dtype, found in models.items():
            longest = max(found["gemmhub"])
            body.append((dtype, where, f"{found['all']:.2f}", f"{found['rest']:.2f}", f"{longest:.2f}"))
    return rows(("model", "from", "all lengths", "after the first 10", "longest prefill, s"), body)


def _new_sizes(card: str, other: str, factor: float, digits: int) -> list[str]:
    kinds = (("other", "median"), ("new", "median"), ("again", "median"), ("new", "mean"))
    seconds = results.load(results.FOLDER / card / "ragged.json")["seconds"]
    body = [(name, *(f"{row[x][kind] * factor:.{digits}f}" for x, kind in kinds)) for name, row in seconds.items()]
    unit = other.rpartition(" ")[2]
    return rows(("sizes", other, f"new size, {unit}", f"again, {unit}", f"mean of new sizes, {unit}"), body)


def first_call() -> list[str]:
    """Return the time of the first call of a process with gemmhub-hopper, of the newest runs."""
    text = (results.FOLDER / "h200" / "hopper_tests.txt").read_text(encoding="utf-8")
    newest = text.partition("test_first_call.py")[2].partition("The same before")[0]
    found: dict[str, list[tuple[float, float]]] = {}
    pattern = r"^(\w+ \w+): cold ([\d.]+) s, with a full cache ([\d.]+) ms$"
    for words, cold, warm in re.findall(pattern, newest, re.MULTILINE):
        found.setdefault(words.replace(" ", ", "), []).append((1e3 * float(cold), float(warm)))
    body = []
    for words, times in found.items():
        cells = [f"{min(x):.0f} to {max(x):.0f}" for x in zip(*times)]
        body.append((words, len(times), *cells))
    return rows(("operands, precision", "runs", "empty cache, ms", "full cache, ms"), body)


def new_products() -> list[str]:
    """Return milliseconds until a plan for a product of a new size is ready, on an H200's host."""
    text = (results.FOLDER / "h200" / "new_products.txt").read_text(encoding="utf-8")
    found = re.findall(r"^(\w+) +(\w+) +(\w+) +median ([\d.]+) ms, ([\d.]+) to ([\d.]+)$", text, re.MULTILINE)
    body: dict[tuple[str, str], list[str]] = {}
    for dtype, precision, backend, median, *_ in found:
        body.setdefault((f"{dtype}, {precision}", "all three" if backend == "all" else backend), []).append(median)
    head = ("operands, precision", "backends asked", "machine 1, ms", "machine 2, ms")
    return rows(head, ((*names, *medians) for names, medians in body.items()))


def recorded() -> list[str]:
    """Return microseconds on a card's host of products that torch's autograd records, compiles, or has in layers."""
    record = results.load(results.FOLDER / "h100" / "recorded.json")
    body = [
        (name, f"{x['torch']:.1f}", f"{x['gemmhub']:.1f}", f"{x['gemmhub'] / x['torch']:.2f}")
        for name, x in record["microseconds"].items()
    ]
    size = " x ".join([str(record["size"])] * 3)
    return rows((f"{record['device'].split()[1]}'s host, us, {size} bfloat16", "torch", "gemmhub", "ratio"), body)
