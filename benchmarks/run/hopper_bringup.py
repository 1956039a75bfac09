"""First run of gemmhub-hopper's kernels on a new card or driver: small products of growing complexity.

    python -m benchmarks.run.hopper_bringup [--json FILE] [--only TEXT] [--seconds 20] [--large] [--in-process]

It needs gemmhub-hopper (from this clone: the products are those of its tests) and numpy; not torch. First all variants
are compiled in parallel. Then each product runs in its own process with a time limit, so that a deadlock or an illegal
access of one does not stop the others. The first are probes: one operand is the identity, so the result shows which
element of the other one was read where. For a wrong result it prints the first wrong elements, and a map of its 8 x 8
blocks: "." right, "o" wrong in part, "x" all wrong, "u" never written.

    python -m benchmarks.run.hopper_bringup --compile-only --only 64x64x3
    compute-sanitizer --tool racecheck python -m benchmarks.run.hopper_bringup --in-process --only 64x64x3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "gemmhub-hopper" / "tests"))

import numpy as np
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import REGISTER_SHAPES, SHAPES, SPLIT_SHAPES
from gemmhub_hopper.variants.sources import PREPASSES
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import Source
from products import (
    BF16X3_PRODUCTS,
    BY_ROWS_PRODUCTS,
    F16_PRODUCTS,
    PRODUCTS,
    SHIFTED_PRODUCTS,
    SLICES,
    SMALL,
    SPLIT,
    Product,
    loaded,
    stored,
)
from vectors import VECTORS

from benchmarks.lib.results import ROOT, save

PROBES = tuple(
    Product(shape, 64, 64, 64, a=a, b=b, dtype=dtype, out="float32")
    for shape, dtype in ((SMALL, "float16"), (SPLIT, "float32"))
    for a in ("row", "col")
    for b in ("col", "row")
) + (
    # a through registers: tf32 contiguous along m; float32 of either storage order.
    Product(SMALL, 64, 64, 64, a="col", b="col", dtype="tf32", registers=True),
    Product(SPLIT, 64, 64, 64, a="row", b="col", dtype="float32", registers=True),
    Product(SPLIT, 64, 64, 64, a="col", b="row", dtype="float32", registers=True),
)
TF32 = Form(True, False, "tf32", "float32", transposed_d=True, registers_a=True)
LARGE = tuple(
    Product(shape, 2056, 4104, 264 if shape.cluster_k == 1 else 520, a=a, b=b)
    for shape in SHAPES
    for a, b in (("row", "row"), ("row", "col"), ("col", "row"))
) + (
    Product(Shape(128, 256, 4, cluster_m=2), 2056, 4104, 264, alpha=0.5, beta=2, bias="n", activation="relu"),
    Product(Shape(64, 16, 12, consumers=1), 16, 4096, 4096, swapped=True, splits=2),
    Product(Shape(128, 128, 6), 512, 512, 16384, splits=8),
    Product(Shape(128, 256, 4), 520, 1032, 520, batch=(5,)),
    Product(Shape(128, 128, 6), 2056, 4100, 261, a="col", dtype="tf32"),
    Product(Shape(128, 256, 4), 2051, 4099, 261),
    # In turn: main loops of one stage; odd numbers of work tiles a cluster; unequal splits of k.
    Product(Shape(128, 128, 6, cluster_m=2, pingpong=True), 4104, 4104, 40),
    Product(Shape(128, 192, 5, cluster_m=2, pingpong=True), 2056, 4104, 2056, b="col"),
    Product(Shape(128, 128, 6, pingpong=True), 1032, 1032, 1160, b="col", splits=5, beta=2, bias="n"),
    *(
        Product(shape, 2051, 4099, 261, a=a, b=b, dtype="float32")
        for shape in SPLIT_SHAPES
        for a, b in (("row", "row"), ("row", "col"), ("col", "row"))
    ),
    Product(Shape(128, 192, 3), 2051, 4099, 999, dtype="float32", limit=2**22, beta=2, bias="n", activation="relu"),
    *(
        Product(shape, 2052, 4100, 260, dtype="tf32", swapped=True, registers=True)
        for shape in SHAPES
        if Variant(shape, TF32).refusal is None
    ),
    *(
        Product(shape, 2052, 4100, 260, a=a, b=b, dtype="float32", swapped=swapped, registers=True)
        for shape in REGISTER_SHAPES
        for a, b, swapped in (("row", "row", True), ("row", "col", True), ("col", "row", False))
    ),
    Product(Shape(128, 16, 7), 16, 8192, 8192, dtype="float32", swapped=True, splits=2, registers=True),
    Product(Shape(64, 64, 10, consumers=1), 64, 4096, 4096, dtype="float32", swapped=True, splits=2, registers=True),
    Product(Shape(128, 96, 6, pingpong=True), 2052, 4100, 1160, dtype="tf32", swapped=True, splits=5, registers=True),
    Product(Shape(128, 128, 4), 512, 512, 16384, dtype="float32", splits=8),
    Product(Shape(64, 128, 6, consumers=1), 300, 500, 400, dtype="float32", out="bfloat16", batch=(5,), limit=2**23),
)  # fmt: skip
"""Products with several work tiles for each resident CTA."""
_POISON = 0xFF


class Card:
    """Device 0 through the plugin's own driver, with copies to and from it."""

    def __init__(self) -> None:
        self.backend = HopperBackend()
        self.backend.probe()
        machine = self.backend.machine
        self.gpu, self.cuda = machine.gpus[0], machine.driver.cuda
        self.gpu.__enter__()
        for name, arguments in {
            "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
            "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
            "cuCtxSynchronize": (),
        }.items():
            getattr(self.cuda, name).argtypes = arguments

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self.gpu.driver.words(status)} ({status})")

    def put(self, data: Any) -> int:
        """Return the address of a copy on the device."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), max(256, data.nbytes))
        self.call("cuMemcpyHtoD_v2", address.value, data.ctypes.data, data.nbytes)
        return address.value

    def get(self, address: int, nbytes: int) -> Any:
        data = np.empty(nbytes, np.uint8)
        self.call("cuMemcpyDtoH_v2", data.ctypes.data, address, nbytes)
        return data

    def run(self, product: Product, values: Any, times: int = 1) -> list[Any]:
        """Run a product ``times`` times; return the results."""
        launch = product.launch(self.backend)
        a, b, c, bias = values
        addresses = [self.put(stored(a, product.a)), self.put(stored(b, product.b))]
        others = {} if c is None else {"c": self.put(stored(c, product.d))}
        others |= {} if bias is None else {"bias": self.put(stored(bias, "row"))}
        dtype = product.problem.out.dtype
        size = int(np.prod((*product.batch, product.m, product.n)))
        offset, nbytes = product.offset * dtype.itemsize, size * dtype.itemsize
        poison = np.full(nbytes + offset + 256, _POISON, np.uint8)
        results = []
        for _ in range(times):
            out = self.put(poison)
            launch.run(*addresses, out + offset, product.alpha, product.beta, 0, **others)
            self.call("cuCtxSynchronize")
            data = self.get(out, poison.size)
            if (data[:offset] != _POISON).any() or (data[offset + nbytes :] != _POISON).any():
                raise RuntimeError("it wrote beside its result")
            results.append(
                loaded(data[offset : offset + nbytes], dtype, product.batch, product.m, product.n, product.d)
            )
        return results


def probe(card: Card, product: Product) -> str:
    """Return the errors of a kernel in reading one operand, with the identity as the other; empty where correct."""
    n, dtype = 64, product.problem.a.dtype
    row, column = np.indices((n, n)).astype(dtype)
    if product.dtype == "float32":  # of 24 bits, so that every plane counts
        row, column = row * dtype.type(1.2345678), column * dtype.type(1.2345678)
    identity = np.eye(n, dtype=dtype)
    complaints = []
    for which in ("b", "a"):
        for what, pattern, expected in (("its row", row, row), ("its column", column, column)):
            a, b = (identity, pattern) if which == "b" else (pattern, identity)
            got = card.run(product, (a, b, None, None))[0]
            if not np.array_equal(got, expected.astype(np.float32)):
                complaints.append(
                    f"{which} where it holds {what}: first row {got[0].tolist()}; first column {got[:, 0].tolist()}"
                )
    return "\n".join(complaints)


def blocks(result: Any, wrong: Any) -> str:
    """Return a map of the 8 x 8 blocks of the first matrix, at most 64 blocks a side."""
    while result.ndim > 2:
        result, wrong = result[0], wrong[0]
    raw = np.ascontiguousarray(result).view(f"u{result.itemsize}")
    untouched = raw == np.iinfo(raw.dtype).max
    lines = []
    for i in range(0, min(512, result.shape[0]), 8):
        line = ""
        for j in range(0, min(512, result.shape[1]), 8):
            w, u = wrong[i : i + 8, j : j + 8], untouched[i : i + 8, j : j + 8]
            line += "u" if u.all() else "x" if w.all() else "o" if w.any() else "."
        lines.append(line)
    return "\n".join(lines)


def judge(card: Card, product: Product) -> dict[str, Any]:
    """Run a product three times; return the verdict with the first errors."""
    if product in PROBES:
        complaint = probe(card, product)
        if complaint:
            return {"status": "FAIL", "detail": complaint}
    values = product.data()
    exact = product.exact(*values)
    results = card.run(product, values, 3)
    for turn, result in enumerate(results):
        wrong = product.wrong(result, exact)
        if wrong.any():
            places = np.argwhere(wrong)
            first = [
                f"{tuple(map(int, i))}: {float(result[tuple(i)])} for {float(exact[tuple(i)])}" for i in places[:8]
            ]
            share = f"{wrong.sum()} of {wrong.size} wrong in run {turn}"
            return {"status": "FAIL", "detail": f"{share}: {'; '.join(first)}\n{blocks(result, wrong)}"}
    if any(result.tobytes() != results[0].tobytes() for result in results):
        return {"status": "FAIL", "detail": "the runs differ in their bits"}
    return {"status": "PASS", "detail": ""}


def alone(index: int, products: list[Product]) -> int:
    """Print the verdict on one product as a line of JSON; the main function of its process."""
    try:
        verdict = judge(Card(), products[index])
    except Exception as error:
        verdict = {"status": "FAIL", "detail": f"{type(error).__name__}: {error}"}
    print(json.dumps(verdict), flush=True)
    os._exit(0)  # without clean-up: the context may be broken


def supervised(index: int, arguments: list[str], seconds: float) -> dict[str, Any]:
    """Run one product in its own process."""
    command = [sys.executable, "-m", "benchmarks.run.hopper_bringup", *arguments, "--product", str(index)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return {"status": "HANG", "detail": f"not done after {seconds:.0f} s: a deadlock, most likely"}
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    try:
        verdict: dict[str, Any] = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        verdict = {"status": "CRASH", "detail": f"exit code {process.returncode}: {text[-600:]}"}
    return verdict


def compiled(source: Source) -> str:
    """Return an empty string, or the compiler's error."""
    try:
        nvrtc.cubin(nvrtc.load(), source)
    except nvrtc.CompilerError as error:
        return str(error)
    return ""


def compile_all(products: list[Product]) -> None:
    start = time.perf_counter()
    every = [source for product in products for source in product.sources]
    every += [*(sources.prepass(kind) for kind in PREPASSES), sources.f16_prepass()]
    kernels = list({(source.main, source.options): source for source in every}.values())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for kernel, complaint in zip(kernels, pool.map(compiled, kernels)):
            if complaint:
                print(f"NOT COMPILED {kernel.name}: {complaint}")
    print(f"{len(kernels)} kernels compiled in {time.perf_counter() - start:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="products with this in their name")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a product")
    parser.add_argument("--large", action="store_true", help="also every shape on large products")
    parser.add_argument("--in-process", action="store_true", help="all in this process: for compute-sanitizer")
    parser.add_argument("--compile-only", action="store_true", help="needs no card")
    parser.add_argument("--product", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = [*PROBES, *PRODUCTS, *SHIFTED_PRODUCTS, *BF16X3_PRODUCTS, *F16_PRODUCTS]
    every += [*BY_ROWS_PRODUCTS, *SLICES, *VECTORS]
    every += LARGE if options.large else ()
    products = [product for product in every if options.only in str(product)]
    if options.product is not None:
        return alone(options.product, products)
    if options.compile_only or not options.in_process:  # compute-sanitizer does not bear a pool of processes
        compile_all(products)
    if options.compile_only:
        return 0
    arguments = ["--only", options.only, *(["--large"] if options.large else [])]
    card = Card() if options.in_process else None
    rows = []
    for i, product in enumerate(products):
        start = time.perf_counter()
        verdict = judge(card, product) if card else supervised(i, arguments, options.seconds)
        seconds = time.perf_counter() - start
        print(f"{verdict['status']:5} {seconds:5.1f} s  {product}", flush=True)
        if verdict["detail"]:
            print(verdict["detail"], flush=True)
        rows.append({"product": str(product), "seconds": seconds, **verdict})
        if options.json:
            save(options.json, rows=rows)
    failed = [row["product"] for row in rows if row["status"] != "PASS"]
    print(f"{len(rows) - len(failed)} of {len(rows)} right" + "".join(f"\n  not {name}" for name in failed))
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
