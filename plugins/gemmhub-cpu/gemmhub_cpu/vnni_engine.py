"""int8 by kernels of our own, for AVX-512 VNNI: kernels/int8_vnni.cpp, compiled on first use.

Both operands are packed, b by all cores before the product, a by the thread that multiplies its rows; any strides are
read in place. The result is exact wherever it fits in int32, and wraps elsewhere.
"""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.kit import native
from gemmhub.numpy_backend.probe import cpu_flags
from gemmhub_cpu.panels import PanelGemm
from gemmhub_cpu.threads import each

Array = Any

FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512_vnni")
"""What /proc/cpuinfo has to list."""
SOURCE = Path(__file__).parent / "kernels" / "int8_vnni.cpp"
_COMPILED = ("-O1", "-std=c++17", "-fPIC", "-shared", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
"""Not -O2: GCC 12 then stores every accumulator of the inner loop to memory, which halves the speed."""


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "packed_bytes": (c_int64, c_int64, c_int64),
    "panel_columns": (c_int64,),
    "pack": (None, c_void_p, *[c_int64] * 6, c_void_p),
    "multiply": (None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, *[c_int64] * 4),
}
"""The result and the arguments of each function of the library."""


@lru_cache(maxsize=1)  # no lock, which a nested call or a forked child would wait for
def load() -> Any | str:
    """The compiled library, after it multiplied right; or why there is none. Once a process."""
    missing = _missing()
    if missing:
        return f"the CPU has no {missing}"
    built = native.build(native.Recipe(("g++",), _COMPILED, (SOURCE,), name="int8_vnni"))
    library = built if isinstance(built, Refusal) else native.load(built)
    if isinstance(library, Refusal):
        return library.reason
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, f"gemmhub_int8_{name}")
        function.restype, function.argtypes = result, arguments
    return library if _agrees(library) else "its kernel multiplies wrongly on this CPU"


def _missing(*cpuinfo: Path) -> str:
    words = cpu_flags(*cpuinfo)
    return ", ".join(flag for flag in FLAGS if flag not in words)


def _agrees(library: Any) -> bool:
    """Parity with NumPy on an odd-sized product of random data."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((37, 1131), (1131, 101)))
    out = np.empty((37, 101), np.int32)
    multiply(library, a, _packed(library, b), out)
    return bool(np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32)))


def _packed(library: Any, b: Array) -> Array:
    """The packed form of ``b`` (k, n), made by all cores."""
    k, n = b.shape
    packed = np.empty(max(64, library.gemmhub_int8_packed_bytes(n, k)), np.uint8)

    def panels(first: int, last: int) -> None:
        library.gemmhub_int8_pack(b.ctypes.data, *b.strides, n, k, first, last, packed.ctypes.data)

    each(panels, -(-n // int(library.gemmhub_int8_panel_columns())), 4)
    return packed


def multiply(library: Any, a: Array, packed: Array, out: Array) -> None:
    """``out = a @ b``. ``out`` is int32 with dense rows."""
    (m, k), n = a.shape, out.shape[1]
    library.gemmhub_int8_multiply(
        a.ctypes.data, *a.strides, packed.ctypes.data, out.ctypes.data, out.strides[0] // 4, m, n, k
    )


class VnniGemm(PanelGemm):
    """Panels packed and multiplied by our own kernels."""

    any_strides = True

    def pack_panel(self, b: Array) -> Array:
        return _packed(load(), b)

    def multiply(self, a: Array, packed: Any, out: Array) -> None:
        multiply(load(), a, packed, out)
