"""Products of arrays of Dask against da.matmul and one process of NumPy, in one run.

    python -m benchmarks.run.dask [--size N] [--chunk N] [--rounds N] [--json FILE]
    python -m benchmarks.run.dask --out-of-core FOLDER [--json FILE]

Two workers of one thread each, operands and result persisted on them; NumPy has two threads and the same two cores. All
contenders run in every round, one after another; a ratio is the median over rounds of a time over NumPy's in float32.
da.matmul of float16 and int8 runs NumPy's own loops, a thousand times slower: it is timed at a smaller size.

--out-of-core writes operands into zarr arrays in FOLDER and their product beside them, by one worker whose memory limit
is a quarter of all three, and prints the largest memory of the worker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

import gemmhub
import gemmhub.distributed
from benchmarks.lib import results

SMALL = 512
"""Size at which da.matmul of float16 and int8 is timed."""


def draw(size: int, dtype: str, chunk: int) -> Any:
    """Return a random matrix on the workers."""
    rng = da.random.default_rng()
    if dtype == "int8":
        x = rng.integers(-128, 128, (size, size), dtype="int8", chunks=chunk)
    else:
        x = rng.standard_normal((size, size), dtype="float32", chunks=chunk).astype(dtype)
    x = x.persist()
    distributed.wait(x)
    return x


def seconds(product: Any, client: Any) -> float:
    """Return the seconds until a lazy product is on the workers; it is released afterwards."""
    start = time.perf_counter()
    kept = product.persist()
    distributed.wait(kept)
    taken = time.perf_counter() - start
    names = {str(key) for key in kept.__dask_keys__()[0]}
    del kept
    while names & {str(key) for key in client.who_has()}:  # otherwise the same product would be cached
        time.sleep(0.05)
    return taken


def numpy_seconds(size: int) -> float:
    rng = np.random.default_rng()
    a, b = (rng.standard_normal((size, size), np.float32) for _ in "ab")
    start = time.perf_counter()
    np.matmul(a, b)
    return time.perf_counter() - start


def measure(size: int, chunk: int, rounds: int, client: Any) -> list[dict[str, Any]]:
    operands = {dtype: [draw(size, dtype, chunk) for _ in "ab"] for dtype in ("float32", "float16", "int8")}
    contenders = {f"gemmhub {dtype}": lambda x=x: gemmhub.matmul(*x) for dtype, x in operands.items()}
    contenders["da.matmul float32"] = lambda: da.matmul(*operands["float32"])
    times: dict[str, list[float]] = {"numpy float32": []}
    for _ in range(rounds):
        times["numpy float32"].append(numpy_seconds(size))
        for name, product in contenders.items():
            times.setdefault(name, []).append(seconds(product(), client))
    rows = []
    for name, taken in times.items():
        ratio = statistics.median(x / y for x, y in zip(taken, times["numpy float32"]))
        rows.append(
            {"contender": name, "size": size, "seconds": taken, "median": statistics.median(taken), "ratio": ratio}
        )
    for dtype, (a, b) in operands.items():
        verdict = gemmhub.spot_check(a, b, gemmhub.matmul(a, b)).compute()
        rows.append({"checked": dtype, "right": verdict.ok, "reason": verdict.reason})
    for dtype in ("float16", "int8"):
        a, b = (draw(SMALL, dtype, SMALL // 2) for _ in "ab")
        for name, call in (("da.matmul", da.matmul), ("gemmhub", gemmhub.matmul)):
            product = call(a, b)
            taken = seconds(product, client)
            right = bool(gemmhub.spot_check(a, b, product.astype("int32") if dtype == "int8" else product).compute())
            rows.append({"contender": f"{name} {dtype}", "size": SMALL, "seconds": [taken], "right": right})
    return rows


def out_of_core(folder: Path, m: int = 8192, n: int = 8192, k: int = 12288, chunk: int = 1024) -> dict[str, Any]:
    """Run one product whose operands and result are four times larger than the memory limit of the worker."""
    import zarr

    whole = (m * k + k * n + m * n) * 4
    limit = whole // 4
    rng = np.random.default_rng()
    for name, shape in (("a", (m, k)), ("b", (k, n))):
        store = zarr.open_array(str(folder / name), mode="w", shape=shape, chunks=(chunk, chunk), dtype="float32")
        for row in range(0, shape[0], chunk):
            store[row : row + chunk] = rng.standard_normal((chunk, shape[1]), np.float32)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit=limit, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        a, b = (da.from_zarr(str(folder / name)) for name in "ab")
        before = client.run(peak_memory)
        start = time.perf_counter()
        stored = gemmhub.distributed.store(gemmhub.matmul(a, b), folder / "c")
        taken = time.perf_counter() - start
        peak, spilled = client.run(peak_memory), client.run(spilled_bytes)
        start = time.perf_counter()
        verdict = gemmhub.spot_check(a, b, da.from_zarr(str(folder / "c"))).compute()
        checked = time.perf_counter() - start
    (most,), (least,), (disk,) = peak.values(), before.values(), spilled.values()
    return {
        "size": [m, n, k], "bytes": whole, "limit": limit, "peak": most, "peak before": least, "spilled": disk,
        "seconds": taken, "seconds of the check": checked, "stored": str(stored), "right": verdict.ok,
        "reason": verdict.reason,
    }  # fmt: skip


def peak_memory() -> int:
    """Return the peak resident memory of this worker in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024


def spilled_bytes(dask_worker: Any) -> int:
    return int(dask_worker.data.spilled_total.memory) if hasattr(dask_worker.data, "spilled_total") else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out-of-core", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    versions = {"dask": dask.__version__, "distributed": distributed.__version__}
    if arguments.out_of_core:
        row = out_of_core(arguments.out_of_core)
        print(*(f"{name}: {value}" for name, value in row.items()), sep="\n")
        if arguments.json:
            results.save(arguments.json, versions=versions, load=os.getloadavg(), rows=[row])
        return 0
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        rows = measure(arguments.size, arguments.chunk, arguments.rounds, client)
        x = da.ones((arguments.size, arguments.size), chunks=arguments.chunk, dtype="float32")
        outlook = str(gemmhub.explain(x, x))
    for row in rows:
        if "contender" in row:
            taken = statistics.median(row["seconds"])
            ratio = f" {row['ratio']:.2f} of NumPy's float32" if "ratio" in row else ""
            verdict = "" if row.get("right", True) else "  WRONG"
            print(f"{row['contender']:20} {row['size']:6} {taken:8.3f} s{ratio}{verdict}")
        else:
            print(f"{row['checked']}: {'right' if row['right'] else 'WRONG'}: {row['reason']}")
    print(outlook)
    if arguments.json:
        results.save(arguments.json, versions=versions, load=os.getloadavg(), explain=outlook, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
