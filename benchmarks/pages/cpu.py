"""The tables and the figure of docs/cpu.md.

python -m benchmarks.pages.cpu         # writes docs/figures/cpu.svg
"""

from __future__ import annotations

from math import log2
from statistics import geometric_mean
from xml.sax.saxutils import escape

from benchmarks.lib import results
from benchmarks.lib.cpu_products import SGEMM, Rows, scores
from benchmarks.pages import tables

FIGURE = results.ROOT / "docs" / "figures" / "cpu.svg"
FILES = sorted((results.FOLDER / "cpu").glob("products_*.json"))
_LABELS, _BAR, _ROW, _TOP = 200, 340, 16, 64


def runs() -> list[tuple[str, Rows]]:
    """Return the rows of each run of each file, with the processor and its threads."""
    named = []
    for path in FILES:
        file = results.load(path)
        for run in file["runs"]:
            count = run["threads"]
            name = f"{path.stem.partition('_')[2].title()}, {count} thread{'s' * (count > 1)}"
            named.append((name, [*run["rows"], *run["llama"]]))
    return named


def classes() -> list[str]:
    """Return a row for each class: the fastest other library's time over gemmhub's, and the speed over SGEMM."""
    every = runs()
    names = list(dict.fromkeys(row["class"] for _, rows in every for row in rows))
    head, columns = ["class"], []
    for name, rows in every:
        head += [f"{name}: mean", "lowest", "products", "over SGEMM"]
        columns.append((scores(rows), _over_sgemm(rows)))
    body = []
    for name in sorted(names):
        line = [name]
        for ratios, sgemm in columns:
            mean, low, _, count = ratios.get(name, (None, None, None, 0))
            line += [_text(mean), _text(low), str(count), _text(sgemm.get(name))]
        body.append(line)
    return tables.rows(head, body)


def reproducible() -> list[str]:
    """Return a row for each dtype and number of threads: NumPy's time over that of products with pinned bits."""
    body = []
    for path in sorted((results.FOLDER / "cpu").glob("reproducible_*.json")):
        file = results.load(path)
        for dtype in ("float32", "float64"):
            ratios = [row["ratio"] for row in file["rows"] if row["dtype"] == dtype]
            body.append((dtype, file["threads"], _text(geometric_mean(ratios)), _text(min(ratios)), len(ratios)))
    return tables.rows(("dtype", "threads", "mean", "lowest", "products"), body)


def quantized() -> list[str]:
    """Return a row for each scaled product, and for the products of random sizes of each kind their mean ratio."""
    files = [results.load(path) for path in sorted((results.FOLDER / "cpu").glob("scaled_*.json"))]
    every: dict[tuple[str, str], dict[int, str]] = {}
    for file in files:
        drawn: dict[str, list[float]] = {}
        for row in file["rows"]:
            if row["drawn"]:
                drawn.setdefault(row["operands"], []).append(row["ratio"])
                continue
            sizes = f"{row['m']} x {row['n']} x {row['k']}" + ("" if row["packed"] else ", b itself")
            times = ", ".join(f"{name} {us:.0f}" for name, us in row["us"].items())
            every.setdefault((row["operands"], sizes), {})[file["threads"]] = f"{times}: {row['ratio']:.2f}"
        for operands, ratios in drawn.items():
            text = f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            every.setdefault((operands, f"{len(ratios)} random sizes"), {})[file["threads"]] = text
    threads = [file["threads"] for file in files]
    head = ("operands", "product", *(f"{count} thread{'s' * (count > 1)}: us, ratio" for count in threads))
    return tables.rows(head, [(*key, *(found.get(x, "-") for x in threads)) for key, found in sorted(every.items())])


def symmetric() -> list[str]:
    """Return a row for each dtype: the backend, and the plain product's time over the symmetric one's, by size."""
    products = results.load(results.FOLDER / "cpu" / "symmetric.json")["products"]
    sizes = sorted({row["n"] for row in products})
    ratios: dict[tuple[str, str], dict[int, str]] = {}
    for row in products:
        cell = f"{1e3 * row['symmetric']:.1f} ms, {row['ratio']:.2f}"
        ratios.setdefault((row["dtype"], row["backend"]), {})[row["n"]] = cell
    head = ("dtype", "backend", *(f"n = {n}: symmetric, speedup" for n in sizes))
    return tables.rows(head, [(*key, *(found.get(n, "-") for n in sizes)) for key, found in ratios.items()])


def _text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _over_sgemm(rows: Rows) -> dict[str, float]:
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if SGEMM in row["us"]:
            ratios.setdefault(row["class"], []).append(row["us"][SGEMM] / row["us"]["gemmhub"])
    return {name: geometric_mean(x) for name, x in ratios.items()}


def drawn() -> str:
    """Return an SVG with a bar for each class and run, on a logarithmic scale from 1/4 to 64, and a line at 1."""
    bars = [(f"{name}", run, mean) for run, rows in runs() for name, (mean, *_) in sorted(scores(rows).items())]
    height, width = _TOP + _ROW * len(bars) + 16, _LABELS + _BAR + 140
    one = _LABELS + _at(1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="12" y="22" font-size="15" font-weight="bold">Speed of gemmhub over the fastest other library</text>',
        '<text x="12" y="42" fill="#555">Geometric means by class, untuned; logarithmic scale</text>',
    ]
    for index, (name, run, mean) in enumerate(bars):
        y, end = _TOP + _ROW * index, _LABELS + _at(mean)
        color = "#2b6cb0" if mean >= 1 else "#c05621"
        lines += [
            f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{min(one, end):.1f}" y="{y + 2}" width="{abs(end - one):.1f}" height="{_ROW - 6}" '
            f'fill="{color}"/>',
            f'<text x="{max(one, end) + 6:.1f}" y="{y + 12}">{mean:.2f}, {escape(run)}</text>',
        ]
    lines += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{height - 12}" '
        'stroke="black" stroke-dasharray="3 3"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _at(ratio: float) -> float:
    """The position of a ratio on the scale."""

    return _BAR * (log2(min(64, max(0.25, ratio))) + 2) / 8


if __name__ == "__main__":
    FIGURE.write_text(drawn(), encoding="utf-8")
