"""The tables of docs/hopper.md besides that of benchmarks/pages/map.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.lib.drawn import LARGE
from benchmarks.pages import map as map_page
from benchmarks.pages import tables

_CARDS = ("h100", "h200")
_KINDS = {
    "half large": "16 bits, large", "half small": "16 bits, small", "odd large": "16 bits, misaligned, large",
    "odd small": "16 bits, misaligned, small", "tf32 large": "tf32, large", "tf32 small": "tf32, small",
    "float32 large": "float32, large", "float32 small": "float32, small",
    "few small": "few rows, skinny, long k; small", "batches small": "batches, small", "all": "all",
}  # fmt: skip
_DATA = {"normal": "normal", "positive": "positive", "wide": "exponents over 2^60", "cancelling": "cancelling in pairs",
         "worst": "worst for bfloat16 planes"}  # fmt: skip


def cuda_l2() -> list[str]:
    """Return speeds over torch of the 1000 products of CUDA-L2's table."""
    rows = results.load(results.FOLDER / "h100" / "cuda_l2.json.xz")["rows"]
    groups: dict[str, list[dict[str, Any]]] = {
        "all": rows,
        "large, from 1e10 operations on": [x for x in rows if 2 * x["m"] * x["n"] * x["k"] >= LARGE],
        "in the data of the corrections": [x for x in rows if x["fitted"]],
        "not in the data of the corrections": [x for x in rows if not x["fitted"]],
    }
    body = [
        (words, len(some), *(map_page.cell(map_page.ratios(some, "cuda-l2", name)) for name in map_page.NAMES))
        for words, some in groups.items()
    ]
    return tables.rows(("products", "number", "untuned", "raced"), body)


def held_out() -> list[str]:
    """Return what the corrections are worth on products that were held out of the fit, on both cards."""
    by_card = [dict(_choices(card, "held_out.txt")) for card in _CARDS]
    found = {kind: [cell for some in by_card for cell in some.get(kind, ["-"] * 4)] for kind in _KINDS}
    heads = ["model alone", "corrected", "fastest timed"]
    head = ["products", *(word for card in _CARDS for word in (f"{card.upper()}: number", *heads))]
    return tables.rows(head, ((_KINDS[kind], *cells) for kind, cells in found.items()))


def cross_validated() -> list[str]:
    """Return the same for kinds that were fitted apart, each product judged by networks of other folds."""
    body = []
    for card, file, of in (
        ("h100", "held_out_odd.txt", "odd"),
        ("h200", "held_out_odd.txt", "odd"),
        ("h100", "held_out_f16x3_rows.txt", "float32"),
        ("h200", "held_out_f16x3_rows.txt", "float32"),
    ):
        body += [(_KINDS[kind], card.upper(), *cells) for kind, cells in _choices(card, file) if kind.startswith(of)]
    return tables.rows(("products", "card", "number", "model alone", "corrected", "fastest timed"), body)


def _choices(card: str, file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the kinds of products of a report with number, and torch's time over that of three choices."""
    for line in (results.FOLDER / card / file).read_text(encoding="utf-8").splitlines():
        kind, cells = line[:22].strip(), line[22:].split()
        if len(cells) == 8 and kind in _KINDS:
            yield kind, [cells[0], *cells[3:6]]


def errors() -> list[str]:
    """Return the largest error of float32 products as a fraction of the same element of |A| |B|, beside cuBLAS."""
    text = (results.FOLDER / "h200" / "hopper_errors.txt").read_text(encoding="utf-8")
    found = {(x[0], x[1]): x[2:] for x in re.findall(r"^(\w+) (\S+): (\S+), cuBLAS (\S+)$", text, re.MULTILINE)}
    sizes = sorted({size for _, size in found}, key=lambda size: [int(x) for x in size.split("x")][::-1])
    head = ["data", *(word for size in sizes for word in (size.replace("x", " x "), "cuBLAS"))]
    body = [[words, *(cell for size in sizes for cell in found[kind, size])] for kind, words in _DATA.items()]
    return tables.rows(head, body)


def few_rows() -> list[str]:
    """Return float32 products of few rows on the H100: bandwidth, torch's time over gemmhub's, host times."""
    found = results.load(results.FOLDER / "h100" / "hopper_rows.json.xz")["products"]
    body = []
    for rows in sorted({x["m"] for x in found}):
        some = [x for x in found if x["m"] == rows]
        bandwidth, ratios = [x["terabytes"] for x in some], [x["ratio"] for x in some]
        host = [f"{geometric_mean(x[name] for x in some):.0f}" for name in ("host_us", "torch_host_us")]
        body.append((
            str(rows), f"{min(bandwidth):.2f} to {max(bandwidth):.2f}", f"{geometric_mean(ratios):.2f}",
            f"{min(ratios):.2f}", *host,
        ))  # fmt: skip
    return tables.rows(("rows", "TB/s", "torch / gemmhub", "worst", "host, µs", "torch's"), body)


def odd_sizes() -> list[str]:
    """Return what odd sizes cost 16-bit products, by card."""
    body = []
    for card in ("h100", "h200"):
        found = results.load(results.FOLDER / card / "hopper_odd.json.xz")["rows"]
        for words, is_large in (("large", True), ("small", False)):
            some = [x for x in found if (2 * x["m"] * x["n"] * x["k"] >= LARGE) == is_large]
            shares = [x["aligned"]["us"] / x["odd"]["us"] for x in some]
            ratios = [x["odd"]["torch_us"] / x["odd"]["us"] for x in some]
            body.append((
                card.upper(), words, str(len(some)), f"{geometric_mean(shares):.2f}", f"{min(shares):.2f}",
                f"{geometric_mean(ratios):.2f}", str(sum("r" in x["odd"]["chosen"] for x in some)),
            ))  # fmt: skip
    head = "card", "operations", "products", "of the aligned speed", "worst", "torch / gemmhub"
    return tables.rows((*head, "through registers"), body)


def vectors() -> list[str]:
    """Return the share of the memory bandwidth that a kernel which only reads has, by the size of the matrix."""
    rows = results.load(results.FOLDER / "h200" / "hopper_read.json.xz")["rows"]
    body = []
    for words, low, high in (("below 50", 0, 50), ("50 to 100", 50, 100), ("100 to 200", 100, 200), ("more", 200, 1e9)):
        speeds, own, torch = [], [], []
        for row in rows:
            sizes = sorted((row["m"], row["n"]))
            size = 2e-6 * sizes[1] * row["k"]
            if low <= size < high:
                read = min(us for name, us in row["us"].items() if " x " in name)
                speeds.append(size / read)
                own.append(read / row["us"]["hopper"])
                torch.append(read / row["us"]["torch"])
        means = [geometric_mean(x) for x in (speeds, own, torch)]
        body.append(
            (words, len(speeds), f"{means[0]:.2f}", f"{means[1]:.3f}", f"{min(own):.3f}", f"{means[2]:.3f}")
        )  # fmt: skip
    head = ("matrix, MB", "products", "read at, TB/s", "share of gemmhub-hopper", "least", "share of torch")
    return tables.rows(head, body)
