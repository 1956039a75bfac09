"""The tables of docs/cuda-ladder.md, from records of benchmarks/run/cuda_ladder.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cuda-ladder.md"
COUNTS = ROOT / "benchmarks" / "results" / "cpu" / "cuda_ladder_counts.json"
TIMES = ROOT / "benchmarks" / "results" / "h200" / "cuda_ladder.json"
NOT_YET = "**No card has run these steps yet**, so there is no figure of speed on this page, and none is guessed."


_TITLES = {"sgemm": "float32, row-major a and b", "mma": "bfloat16 on tensor cores, b stored as n x k"}


def counted(record: dict[str, Any]) -> str:
    """Return the table of the counts without a card."""
    lines = []
    spilled = sum(row["spilled"] for rows in record["families"].values() for row in rows)
    for family, rows in record["families"].items():
        lines += [
            f"**{_TITLES[family]}**",
            "",
            "| step | idea | tile, threads | registers | shared memory | FLOP a byte of L2 | FLOP a cycle of shared "
            "memory | cycles lost to conflicts |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            tile = "x".join(map(str, row["tile"]))
            shared = f"{row['flop_per_shared_cycle']:.0f} | {row['conflicts']:.0%}" if "conflicts" in row else "- | -"
            lines.append(
                f"| `{row['step']}` | {row['idea']} | {tile}, {row['threads']} | {row['registers']} "
                f"| {row['shared_bytes'] / 1024:.4g} KiB | {row['flop_per_byte']:.3g} | {shared} |"
            )
        lines.append("")
    return "\n".join([*lines, f"Registers: NVRTC {record['nvrtc']}, for `sm_90`; spills: {spilled} bytes."])


def measured(record: dict[str, Any] | None) -> str:
    """Return the tables of a card's times; without a record, a sentence that states its absence."""
    if record is None:
        return NOT_YET
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    size = record["size"]
    lines = [
        f"On one {record['device']}, m = n = k = {size}; medians of {record['rounds']} rounds in which all took turns "
        f"({versions}). By `{record['command']}`."
    ]
    for family, rows in record["families"].items():
        lines += [
            "",
            f"**{_TITLES[family]}**",
            "",
            "| step | idea | TFLOPS | gain | of torch |",
            "|---|---|---|---|---|",
        ]
        for row in rows:
            gain = "-" if row["gain"] is None else f"{row['gain']:.2f}x"
            lines.append(f"| `{row['step']}` | {row['idea']} | {row['tflops']:.1f} | {gain} | {row['ratio']:.1%} |")
    return "\n".join(lines)


def counts() -> list[str]:
    """Return the tables of what can be counted without a card."""
    return counted(json.loads(COUNTS.read_text())).splitlines()


def times() -> list[str]:
    """Return the tables of a card's times."""
    return measured(json.loads(TIMES.read_text()) if TIMES.exists() else None).splitlines()
