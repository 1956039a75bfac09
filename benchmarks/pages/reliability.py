"""The table of docs/reliability.md: what compute-sanitizer reported of gemmhub-hopper's kernels on an H100."""

from __future__ import annotations

import re

from benchmarks.lib import results
from benchmarks.pages.tables import rows


def sanitizer() -> list[str]:
    """Return one row for each tool."""
    text = (results.FOLDER / "h100" / "hopper_sanitizer.txt").read_text(encoding="utf-8")
    pattern = r"--tool (\w+) .*\n(?:.*\n)+?(\d+) kernels compiled.*\n(\d+) of (\d+) right\n.* SUMMARY: (\d+) (\w+)"
    body = [
        (f"`{tool}`", kernels, f"{right} of {products}", f"{found} {what}")
        for tool, kernels, right, products, found, what in re.findall(pattern, text)
    ]
    return rows(("tool", "kernels", "products right", "reported"), body)
