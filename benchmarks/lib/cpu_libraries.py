"""Products of CPUs by gemmhub, NumPy, torch (oneDNN), MKL and numkong, each called as its users call it."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gemmhub
from benchmarks.lib.cpu_products import BF16, SGEMM, Product

Call = Callable[[], object]
_ROW_MAJOR, _NO_TRANSPOSE, _ONE_OFFSET = 101, 111, 173
_MKL = {"float32": "cblas_sgemm", "float64": "cblas_dgemm", "bfloat16": "cblas_gemm_bf16bf16f32",
        "float16": "cblas_gemm_f16f16f32", "int8": "cblas_gemm_s8u8s32"}  # fmt: skip


def by_gemmhub(product: Product, a: Any, b: Any, out: Any) -> Call:
    """Return gemmhub's call, untuned."""
    bias, c = out[..., 0, :].copy(), out.copy()
    options = {
        "": {}, "bias": {"bias": bias}, "bias gelu_tanh": {"bias": bias, "activation": "gelu_tanh"},
        "alpha c": {"alpha": 0.5, "c": c, "beta": 2.0},
    }[product.epilogue]  # fmt: skip
    right = gemmhub.pack(b, m=product.m) if product.packed else b
    return lambda: gemmhub.matmul(a, right, out=out, **options)


def by_numpy(product: Product, a: Any, b: Any, out: Any) -> Call | None:
    """Return numpy.matmul; None for the dtypes that it multiplies by scalar loops for seconds."""
    if product.epilogue or product.packed or product.dtype in ("int8", "bfloat16", "float16"):
        return None
    return lambda: np.matmul(a, b, out=out)


def by_sgemm(product: Product, a: Any, b: Any, out: Any) -> Call | None:
    """Return numpy.matmul of float32 operands of the sizes of a product of narrower ones, for comparison."""
    if product.epilogue or product.dtype not in ("int8", "bfloat16", "float16"):
        return None
    x, y = a.astype(np.float32), b.astype(np.float32)
    z = np.empty(out.shape, np.float32)
    return lambda: np.matmul(x, y, out=z)


def by_torch(product: Product, a: Any, b: Any, out: Any) -> Call | None:
    """Return torch's call: mm, bmm, addmm, _int_mm, or a linear layer with oneDNN's packed weight."""
    import torch

    x, y, z = map(_tensor, (a, b, out))
    if product.dtype == "int8":
        return None if product.batch > 1 else lambda: torch._int_mm(x, y, out=z)
    if product.packed:
        if not product.dtype.endswith("float16"):
            return None
        weight = torch.ops.mkldnn._reorder_linear_weight(y.t().contiguous().to_mkldnn(), product.m)
        return lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    bias, c = z[..., 0, :].clone(), z.clone()
    if product.epilogue == "bias":
        return lambda: torch.addmm(bias, x, y, out=z)
    if product.epilogue == "bias gelu_tanh":
        return lambda: torch.nn.functional.gelu(torch.addmm(bias, x, y, out=z), approximate="tanh")
    if product.epilogue:
        return lambda: torch.addmm(c, x, y, alpha=0.5, beta=2.0, out=z)
    return lambda: torch.matmul(x, y, out=z)


def _tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


def by_numkong(product: Product, a: Any, b: Any, out: Any) -> Call | None:
    """Return numkong's product, on one thread. The call transposes and packs b, unless it is packed beforehand."""
    import numkong

    if product.dtype not in ("int8", "bfloat16") or product.batch > 1 or product.epilogue:
        return None
    result = np.empty(out.shape, np.int32 if product.dtype == "int8" else np.float32)
    into = numkong.from_pointer(result.ctypes.data, result.shape, result.dtype.name, owner=result)

    def packed() -> Any:
        return numkong.dots_pack(np.ascontiguousarray(b.T))

    kept = packed() if product.packed else None
    return lambda: numkong.dots_packed(a, packed() if kept is None else kept, out=into)


def by_mkl(product: Product, a: Any, b: Any, out: Any) -> Call | None:
    """Return MKL's product; 16-bit ones have float32 results, and a of int8 is unsigned before the call."""
    if product.dtype not in _MKL or product.batch > 1 or product.epilogue or product.packed:
        return None
    library = _mkl()
    function = getattr(library, _MKL[product.dtype], None)
    if function is None:
        return None
    m, n, k = product.m, product.n, product.k
    real = ctypes.c_double if product.dtype == "float64" else ctypes.c_float
    one, zero, offset = real(1), real(0), np.zeros(1, np.int32)
    result = np.empty(out.shape, np.float32 if product.dtype.endswith("float16") else out.dtype)
    left = a.view(np.uint8) ^ np.uint8(128) if product.dtype == "int8" else a
    x, y, z, d = (ctypes.c_void_p(v.ctypes.data) for v in (left, b, result, offset))
    sizes: tuple[Any, ...] = (m, n, k, one, x, k)
    if product.dtype == "int8":
        tail: tuple[Any, ...] = (ctypes.c_int8(-128), y, n, ctypes.c_int8(0), zero, z, n, d)
        head: tuple[int, ...] = (_ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE, _ONE_OFFSET)
    else:
        tail, head = (y, n, zero, z, n), (_ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE)

    def call(kept: object = (left, result, offset)) -> None:
        function(*head, *sizes, *tail)

    return call


def _mkl_path() -> Path | None:
    return next(iter(sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))), None)


def _mkl() -> Any:
    return ctypes.CDLL(str(_mkl_path()))


def libraries() -> tuple[dict[str, Callable[..., Call | None]], dict[str, str]]:
    """Return the libraries that are installed, and the versions, or the reasons why a library is left out."""
    calls: dict[str, Callable[..., Call | None]] = {"gemmhub": by_gemmhub, SGEMM: by_sgemm, "numpy": by_numpy}
    notes = {"gemmhub": gemmhub.__version__, "numpy": np.__version__}
    for name, call in (("torch", by_torch), ("numkong", by_numkong)):
        if find_spec(name) is None:
            notes[name] = "not installed"
        else:
            calls[name], notes[name] = call, version(name)
    path = _mkl_path()
    if path is None:
        notes["mkl"] = "not installed"
        return calls, notes
    # In a process of its own: a library that cannot be loaded, or faults, must not end the run.
    check = f"import ctypes; ctypes.CDLL({str(path)!r}).MKL_Get_Max_Threads()"
    tried = subprocess.run([sys.executable, "-c", check], capture_output=True)
    if tried.returncode:
        notes["mkl"] = "cannot be loaded"
    else:
        calls["mkl"], notes["mkl"] = by_mkl, version("mkl") if find_spec("mkl") else path.name
    return calls, notes


def in_turn(calls: list[Call]) -> Call:
    """Return a call of one of ``calls``, the next one each time."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    return lambda: next(following)()
