"""Write the records that gemmhub-cublas ships, and the sizes of tiles and clusters that its model knows.

    python benchmarks/cublas_fit.py --header cublasLt.h FILE...

FILEs are those of benchmarks/cublas_grid.py (records) and of benchmarks/candidates.py (which only add to the tiles that
are known), also compressed by xz; the header, any CUDA 12 or 13's, says what tiles and clusters the numbers in a
configuration mean. Writes hopper132.jsonl and tiles132.npz beside the plugin. The model itself is fitted by
benchmarks/cublas_model_fit.py.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gemmhub_cublas import choice, facts
from gemmhub_cublas.corrections import SMS
from gemmhub_cublas.facts import Size, Tables
from gemmhub_cublas.heuristics import parse
from hopper_fit import contents

DATA = Path(facts.__file__).with_name("data")


def tables(header: str, used: set[int]) -> Tables:
    """Sizes of the tiles in ``used``, and of all clusters, from the text of cublasLt.h."""
    tiles = {int(n): (int(x), int(y)) for x, y, n in re.findall(r"_MATMUL_TILE_(\d+)x(\d+) += (\d+)", header)}
    clusters = {int(n): (int(x), int(y)) for x, y, n in re.findall(r"_CLUSTER_SHAPE_(\d+)x(\d+)x1 = (\d+)", header)}
    return Tables({n: size for n, size in tiles.items() if n in used}, clusters, SMS)


def records(text: str) -> list[dict[str, Any]]:
    """Of a file of cublas_grid.py, a line each."""
    found = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    return [x for x in found if "times" in x]


def size(record: dict[str, Any]) -> Size:
    return Size(record["m"], record["n"], record["k"], record["trans_a"], record["trans_b"])


def best_known(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines to ship: one a product, with the algorithm that gained most over the first, in the worst of the runs
    in which both were measured.
    """
    found: dict[Size, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(size(record), []).append(record["times"])
    lines = []
    for key, runs in found.items():
        first = next(iter(runs[0]))
        common = [config for config in runs[0] if all(config in run and first in run for run in runs)] or [first]
        best = max(common, key=lambda config: min(run[first] / run[config] for run in runs if config in run))
        gain = min(run[first] / run[best] for run in runs if first in run and best in run)
        line = {"m": key.m, "n": key.n, "k": key.k, "trans_a": key.trans_a, "trans_b": key.trans_b}
        lines.append({**line, "config": best, "first": first, "gain": float(f"{gain:.4g}")})
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--header", type=Path, required=True)
    options = parser.parse_args()
    timed: list[dict[str, Any]] = []
    used: set[int] = set()
    for file in options.files:
        text = contents(file)
        rows = records(text)
        timed += rows
        several = [x["times"] for x in rows] or [x.get("cublas", {}) for x in json.loads(text)["rows"]]
        used |= {parse(config)[1] for times in several for config in times}
    known = tables(options.header.read_text(), used)
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(
        DATA / facts.DATA, sms=SMS, tiles=np.array([(n, *x) for n, x in known.tiles.items()], np.int32),
        clusters=np.array([(n, *x) for n, x in known.clusters.items()], np.int32),
    )  # fmt: skip
    lines = best_known(timed)
    with (DATA / choice._RECORDS).open("w", encoding="utf-8") as target:
        target.writelines(json.dumps(line) + "\n" for line in lines)
    print(f"{len(lines)} products, {len(known.tiles)} tiles, {len(known.clusters)} clusters")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
