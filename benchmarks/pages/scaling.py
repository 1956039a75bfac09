"""The figures of docs/many-devices.md: forecasts of gemmhub.distributed.predict.

python -m benchmarks.pages.scaling         # writes docs/figures/scaling.svg and docs/figures/algorithms.svg
"""

from __future__ import annotations

from pathlib import Path

from gemmhub.distributed import predict

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "figures"
RATE = 1e11
"""Operations a second of one device; the network has 10 Gbit/s."""
COUNTS = tuple(2**i for i in range(11))
COLORS = {
    "1D rows": "#2b6cb0", "1D columns": "#63b3ed", "1D k": "#c05621", "SUMMA": "#2f855a", "2.5D": "#b794f4",
}  # fmt: skip
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="sans-serif" '
    'font-size="12"><rect width="{0}" height="{1}" fill="white"/>'
)


def scaling() -> str:
    """Draw the efficiency on 1 to 1024 devices: of one product (strong scaling), and of one that grows (weak)."""
    lines = [_HEAD.format(720, 300)]
    strong = [(f"{size} cubed", [size] * len(COUNTS)) for size in (4096, 16384, 65536)]
    weak = [(f"{size} cubed each", [round(size * p ** (1 / 3)) for p in COUNTS]) for size in (1024, 4096, 16384)]
    for left, title, curves in ((50, "Strong scaling", strong), (410, "Weak scaling", weak)):
        lines.append(f'<text x="{left}" y="20" font-size="14" font-weight="bold">{title}: efficiency</text>')
        for percent in (0, 25, 50, 75, 100):
            y = 250 - 2 * percent
            lines.append(f'<line x1="{left}" x2="{left + 270}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            lines.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{percent}%</text>')
        for i, count in enumerate(COUNTS[::2]):
            lines.append(f'<text x="{left + 54 * i}" y="268" text-anchor="middle">{count}</text>')
        lines.append(f'<text x="{left + 135}" y="288" text-anchor="middle">devices</text>')
        for color, (name, sizes) in zip(COLORS.values(), curves):
            found = [predict(n, n, n, p, rate=RATE).best.efficiency for n, p in zip(sizes, COUNTS)]
            points = " ".join(f"{left + 27 * i},{250 - 200 * min(1.0, x):.1f}" for i, x in enumerate(found))
            lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
            y = 190 + 18 * list(COLORS.values()).index(color)
            lines.append(
                f'<line x1="{left + 8}" x2="{left + 28}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>'
            )
            lines.append(f'<text x="{left + 34}" y="{y + 4}">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def algorithms() -> str:
    """Draw the algorithm with the least time, by the sizes of a product, on 16 and on 256 devices."""
    lines = [_HEAD.format(720, 330)]
    exponents = range(8, 18)
    for left, devices in ((60, 16), (400, 256)):
        lines.append(
            f'<text x="{left}" y="20" font-size="14" font-weight="bold">{devices} devices: fewest seconds</text>'
        )
        for i, rows in enumerate(exponents):
            for j, depth in enumerate(exponents):
                best = predict(2**rows, 2**rows, 2**depth, devices, rate=RATE).best.algorithm
                x, y = left + 25 * i, 255 - 25 * j
                lines.append(f'<rect x="{x}" y="{y}" width="24" height="24" fill="{COLORS[best]}"/>')
        for i, exponent in enumerate(exponents):
            if i % 3 == 0:
                lines.append(f'<text x="{left + 25 * i + 12}" y="294" text-anchor="middle">{2**exponent}</text>')
                lines.append(f'<text x="{left - 4}" y="{271 - 25 * i}" text-anchor="end">{2**exponent}</text>')
    lines.append('<text x="60" y="318">across: rows and columns; upwards: k</text>')
    for i, (name, color) in enumerate(COLORS.items()):
        x = 262 + 94 * i
        lines.append(f'<rect x="{x}" y="308" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 16}" y="318">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    (FOLDER / "scaling.svg").write_text(scaling(), encoding="utf-8")
    (FOLDER / "algorithms.svg").write_text(algorithms(), encoding="utf-8")
