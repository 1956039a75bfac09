"""bfloat16 and int8 through numkong (https://github.com/ashvardanian/NumKong), where its units beat SGEMM.

numkong multiplies row-major A (m, k) by a packed form of B^T (n, k) into row-major float32 (int32). So each panel of b
(panels.py) is transposed by all cores and packed; A is read in place. numkong's own threads are not used: they spin
(see threads.py).
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from gemmhub.numpy_backend.scratch import Lease, Scratch
from gemmhub_cpu.panels import PanelGemm
from gemmhub_cpu.threads import each

Array = Any

_TESTED = (7, 8)
"""Major versions: from, below. Minor releases of numkong change its interface."""


@lru_cache(maxsize=1)  # no lock, which a nested call or a forked child would wait for
def load() -> tuple[str, frozenset[str], str]:
    """(version, capabilities, reason why not), after checking a product of each kind. Once a process."""
    return _load()


def _load() -> tuple[str, frozenset[str], str]:
    numkong = import_module("numkong")

    version = str(numkong.__version__)
    if not _TESTED[0] <= int(version.partition(".")[0]) < _TESTED[1]:
        return "", frozenset(), f"numkong {version} is not one of {_TESTED[0]}.x"
    units = frozenset(name for name, present in numkong.get_capabilities().items() if present)
    wrong = [name for name in ("bfloat16", "int8") if not _agrees(name)]
    if wrong:
        return "", frozenset(), f"numkong {version} multiplies {', '.join(wrong)} wrongly on this CPU"
    return version, units, ""


def _agrees(name: str) -> bool:
    """Parity with NumPy on an odd-sized product of random data."""
    import ml_dtypes

    rng = np.random.default_rng()
    m, n, k = 37, 53, 131
    if name == "int8":
        a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (n, k)))
        out = np.empty((m, n), np.int32)
        multiply(a, pack(b), out)
        return bool(np.array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32)))
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    result = np.empty((m, n), np.float32)
    multiply(a, pack(b), result)
    wide_a, wide_b = a.astype(np.float64), b.T.astype(np.float64)
    bound = 2.0**-23 * (k + 2) * (np.abs(wide_a) @ np.abs(wide_b))
    return bool((np.abs(result - wide_a @ wide_b) <= bound).all())


def pack(transposed: Array) -> Any:
    """numkong's packed form of B^T, shape (n, k), C order."""
    numkong = import_module("numkong")

    return numkong.dots_pack(transposed)


def multiply(a: Array, packed: Any, out: Array) -> None:
    """``out = a @ b`` for ``a`` (m, k) and ``out`` (m, n) C-contiguous float32 or int32."""
    numkong = import_module("numkong")

    if a.shape[1] == 0:  # on AMX numkong then leaves the result as it was
        out[...] = 0
        return
    if a.strides[1] != a.itemsize or a.strides[0] < a.itemsize * a.shape[1]:
        a = np.ascontiguousarray(a)  # a tile of rows, or all of a where its rows are not dense

    kind = "int32" if out.dtype == np.int32 else "float32"
    numkong.dots_packed(a, packed, out=numkong.from_pointer(out.ctypes.data, out.shape, kind, owner=out))


class NumkongGemm(PanelGemm):
    """Panels packed and multiplied by numkong."""

    @property
    def description(self) -> str:
        """Text for users."""
        return f"numkong, panels of {self.width} columns"

    def pack_panel(self, b: Array) -> Any:
        with _transposed.lease(b.nbytes) as lease:
            return pack(transposed(b, lease))

    def multiply(self, a: Array, packed: Any, out: Array) -> None:
        multiply(a, packed, out)


_transposed = Scratch()
_STRIP = 16
"""Rows transposed at a time: few enough that their cache lines are still there for the next column."""


def transposed(b: Array, lease: Lease) -> Array:
    """B^T with dense rows: a view where ``b`` is column-major, else a copy made by all cores in strips."""
    view = b.T
    if view.flags.c_contiguous:
        return view
    copy = lease.take(view.shape, b.dtype)

    def strips(first: int, last: int) -> None:
        for start in range(first * _STRIP, min(last * _STRIP, b.shape[0]), _STRIP):
            stop = start + _STRIP
            copy[:, start:stop] = b[start:stop].T

    each(strips, -(-b.shape[0] // _STRIP), 4)
    return copy
