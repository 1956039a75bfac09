"""The figure of README.md: torch's time over gemmhub's for classes of product, from a result file.

python -m benchmarks.pages.figure         # writes docs/figures/h100.svg
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.pages import map as map_page

ROOT = Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs" / "figures" / "h100.svg"
_LABELS, _BAR, _ROW, _TOP = 190, 400, 18, 64
_WIDTH = _LABELS + _BAR + 80


def drawn(file: dict[str, Any]) -> str:
    """Return an SVG with a bar for each class, the geometric mean of untuned products, and a line at torch's speed."""
    kinds = list(dict.fromkeys(row["class"] for row in file["rows"]))
    means = {kind: geometric_mean(map_page.ratios(file["rows"], kind, "hub")) for kind in kinds}
    most = max(means.values())
    height = _TOP + _ROW * len(means) + 16
    one = _LABELS + _BAR / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="22" font-size="15" font-weight="bold">'
        f"Speed of gemmhub over torch.matmul, {escape(file['device'])}</text>",
        '<text x="12" y="42" fill="#555">Geometric means over random products, untuned, timed in CUDA graphs; '
        f"torch {escape(file['torch'])}</text>",
    ]
    for place, (kind, mean) in enumerate(means.items()):
        y = _TOP + _ROW * place
        color = "#2b6cb0" if mean >= 1 else "#c05621"
        lines += [
            f'<text x="{_LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(kind)}</text>',
            f'<rect x="{_LABELS}" y="{y + 2}" width="{_BAR * mean / most:.1f}" height="{_ROW - 7}" fill="{color}"/>',
            f'<text x="{_LABELS + _BAR * mean / most + 6:.1f}" y="{y + 13}">{mean:.2f}</text>',
        ]
    lines += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{height - 12}" '
        'stroke="black" stroke-dasharray="3 3"/>',
        f'<text x="{one:.1f}" y="{_TOP - 8}" text-anchor="middle" font-size="11">torch</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(drawn(map_page.read([map_page.MAPS[0]])[0]), encoding="utf-8")
