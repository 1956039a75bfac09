# ruff: noqa: N802 (methods are called as the C functions are)
"""A fake cublasLt that computes on host memory, strictly column-major, from what was set in its descriptors.

It shares no code with the plugin: constants, types and rules are those of cublasLt.h and its documentation. What
the real library would refuse, or get wrong, is refused, and noted in ``complaints`` where no correct program
could cause it.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from ctypes import c_int, c_int64, c_size_t, c_uint64, c_void_p

import ml_dtypes
import numpy as np

from gemmhub.testing.fake_library import FakeLibrary

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 0, 1, 7, 13, 15

F32, F64, F16, I8, C32, C64, I32, BF16, E4M3, E5M2 = 0, 1, 2, 3, 4, 5, 10, 14, 28, 29
NUMPY = {
    F32: np.dtype(np.float32), F64: np.dtype(np.float64), F16: np.dtype(np.float16), I8: np.dtype(np.int8),
    C32: np.dtype(np.complex64), C64: np.dtype(np.complex128), I32: np.dtype(np.int32),
    BF16: np.dtype(ml_dtypes.bfloat16), E4M3: np.dtype(ml_dtypes.float8_e4m3fn), E5M2: np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
COMPUTE_32F, COMPUTE_64F, COMPUTE_32I, FAST_TF32 = 68, 70, 72, 77
FP8 = {(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)}
TABLE = {
    *((COMPUTE_32F, F32, ab, ab, d) for ab, d in ((F16, F16), (F16, F32), (BF16, BF16), (BF16, F32), (F32, F32))),
    *((COMPUTE_32F, F32, a, b, d) for a, b in FP8 for d in (BF16, F16, F32)),
    (FAST_TF32, F32, F32, F32, F32), (COMPUTE_64F, F64, F64, F64, F64), (COMPUTE_32I, I32, I8, I8, I32),
    (COMPUTE_32F, C32, C32, C32, C32), (FAST_TF32, C32, C32, C32, C32), (COMPUTE_64F, C64, C64, C64, C64),
}  # fmt: skip
"""The supported combinations of (compute, scale, A, B, C, D)."""

DESC = {0: 4, 1: 4, 3: 4, 4: 4, 7: 4, 8: 8, 10: 8, 25: 1, 26: 4}
LAYOUT = {0: 4, 1: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8}
PREFERENCE = {0: 4, 1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4, 9: 4, 12: 8}
CONFIG = (4, 4, 4, 4, 4, 4, 4, 2, 2)
"""Widths of attributes in bytes."""

TENSOR, SPLIT, PERSISTENT, ANY, ANY_SPLIT, OUTPUT_SPLIT = 66, 67, 71, 5, 6, 7
"""The fake's algorithms by id. The first three need 16 bytes of alignment; SPLIT and ANY_SPLIT need workspace
for partial sums, PERSISTENT 4 bytes; OUTPUT_SPLIT keeps partial sums in the result's type.
"""
PARTS = {SPLIT: 4, ANY_SPLIT: 2, OUTPUT_SPLIT: 2}
GAUSSIAN = 1 << 32


class IllegalError(Exception):
    """A call that no correct program makes."""


class Result(ctypes.Structure):
    _fields_ = (
        ("algo", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", ctypes.c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


def defaults(numbers):
    return dict.fromkeys(numbers, 0)


TYPES = {
    "cublasLtGetVersion": (c_size_t, ()),
    "cublasLtCreate": (c_int, (c_void_p,)),
    "cublasLtMatmulDescCreate": (c_int, (c_void_p, c_int, c_int)),
    "cublasLtMatmulDescDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulDescSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatrixLayoutCreate": (c_int, (c_void_p, c_int, c_uint64, c_uint64, c_int64)),
    "cublasLtMatrixLayoutDestroy": (c_int, (c_void_p,)),
    "cublasLtMatrixLayoutSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmulPreferenceCreate": (c_int, (c_void_p,)),
    "cublasLtMatmulPreferenceDestroy": (c_int, (c_void_p,)),
    "cublasLtMatmulPreferenceSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmulAlgoGetHeuristic": (
        c_int,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p),
    ),
    "cublasLtMatmulAlgoInit": (c_int, (c_void_p, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_void_p)),
    "cublasLtMatmulAlgoCheck": (
        c_int,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "cublasLtMatmulAlgoConfigGetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t, c_void_p)),
    "cublasLtMatmulAlgoConfigSetAttribute": (c_int, (c_void_p, c_int, c_void_p, c_size_t)),
    "cublasLtMatmul": (
        c_int,
        (
            c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
            c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p,
        ),
    ),
}  # fmt: skip


class FakeLt(FakeLibrary):
    """An object with the functions of libcublasLt. ``cuda`` knows memory and contexts."""

    failed = INVALID_VALUE
    types = TYPES

    def __init__(self, cuda, version=130100):
        super().__init__(cuda.complaints)
        self.cuda, self.version = cuda, version
        self.products = []
        """The calls of cublasLtMatmul: (device, algorithm id, workspace address, stream, capture)."""
        self.pause = 0.0
        """Seconds between the two kernels of a product that uses workspace."""
        self.interrupt = None
        """Called between the two kernels of a product that uses workspace, as a signal handler might be."""
        self._objects, self._numbers, self._busy = {}, itertools.count(0x100000, 0x100), set()

    @property
    def alive(self):
        """Descriptors that were created and not destroyed."""
        return [kind for kind, _ in self._objects.values() if kind != "handle"]

    def _new(self, out, kind, value):
        number = next(self._numbers)
        self._objects[number] = (kind, value)
        c_void_p.from_address(out).value = number

    def _get(self, number, kind):
        known, value = self._objects.get(number, ("nothing", None))
        if known != kind:
            raise IllegalError(f"{number} is {known}, not {kind}")
        return value

    def _destroy(self, number, kind):
        self._get(number, kind)
        del self._objects[number]

    def _attribute(self, number, kind, widths, attribute, buffer, size):
        if widths.get(attribute) != size:
            raise IllegalError(f"attribute {attribute} of {kind} in {size} bytes")
        signed = not (kind == "preference" or attribute in (7, 8))
        self._get(number, kind)[attribute] = int.from_bytes(ctypes.string_at(buffer, size), "little", signed=signed)

    def _cublasLtGetVersion(self):
        return self.version

    def _cublasLtCreate(self, out):
        self._new(out, "handle", self.cuda.current)

    def _cublasLtMatmulDescCreate(self, out, compute, scale):
        self._new(out, "desc", {**defaults(DESC), 0: compute, 1: scale, 7: 1, 26: -1})

    def _cublasLtMatmulDescDestroy(self, number):
        self._destroy(number, "desc")

    def _cublasLtMatmulDescSetAttribute(self, number, attribute, buffer, size):
        self._attribute(number, "desc", DESC, attribute, buffer, size)

    def _cublasLtMatrixLayoutCreate(self, out, kind, rows, cols, ld):
        self._new(out, "layout", {**defaults(LAYOUT), 0: kind, 2: rows, 3: cols, 4: ld, 5: 1})

    def _cublasLtMatrixLayoutDestroy(self, number):
        self._destroy(number, "layout")

    def _cublasLtMatrixLayoutSetAttribute(self, number, attribute, buffer, size):
        self._attribute(number, "layout", LAYOUT, attribute, buffer, size)

    def _cublasLtMatmulPreferenceCreate(self, out):
        values = {**defaults(PREFERENCE), 3: 7, 12: 2**64 - 1}
        self._new(out, "preference", values | dict.fromkeys((5, 6, 7, 8), 256))

    def _cublasLtMatmulPreferenceDestroy(self, number):
        self._destroy(number, "preference")

    def _cublasLtMatmulPreferenceSetAttribute(self, number, attribute, buffer, size):
        self._attribute(number, "preference", PREFERENCE, attribute, buffer, size)

    # Which products there are

    def _shape(self, desc, layouts):
        """(m, n, k, batch) of a product; IllegalError for layouts that fit no product."""
        a, b, c, d = layouts
        for name, x in zip("ABCD", layouts):
            if x[2] < 1 or x[3] < 1 or x[4] < x[2]:
                raise IllegalError(f"{name} is {x[2]} x {x[3]} with leading dimension {x[4]}")
            if x[5] < 1 or x[6] < 0 or (x[5] > 1 and name == "D" and x[6] == 0):
                raise IllegalError(f"{name}: batch of {x[5]}, {x[6]} elements apart")
        m, k = (a[3], a[2]) if desc[3] else (a[2], a[3])
        inner, n = (b[3], b[2]) if desc[4] else (b[2], b[3])
        if inner != k or any((x[2], x[3]) != (m, n) for x in (c, d)) or len({x[5] for x in layouts}) > 1:
            raise IllegalError(
                f"{m}x{k} by {inner}x{n} to {d[2]}x{d[3]}, C {c[2]}x{c[3]}, batches {[x[5] for x in layouts]}"
            )
        return m, n, k, d[5]

    def _supported(self, desc, layouts):
        """Whether the documentation's tables have this product."""
        a, b, c, d = layouts
        m, n, k, _ = self._shape(desc, layouts)
        if c[0] != d[0] or (desc[0], desc[1], a[0], b[0], d[0]) not in TABLE:
            return False
        epilogue, real32 = desc[7], desc[1] == F32
        if epilogue not in ((1, 2, 4, 6, 32, 36) if real32 else (1,)):
            return False
        if epilogue & 4 and desc[26] != (BF16 if (a[0], b[0]) in FP8 and d[0] == F32 else d[0]):
            return False
        if (a[0], b[0]) in FP8 and (not desc[3] or desc[4] or m % 16 or n % 8 or k % 16):
            return False
        return not (a[0] == I8 and (not desc[3] or desc[4] or m % 4 or k % 4 or any(x[4] % 4 for x in layouts)))

    def _needs(self, algorithm, desc, layouts):
        """Return the alignment in bytes that the algorithm needs of addresses, leading dimensions and batch strides."""
        one_byte = NUMPY[layouts[0][0]].itemsize == 1
        least = 16 if (layouts[0][0], layouts[1][0]) in FP8 else 4 if one_byte else 1
        return 16 if algorithm in (TENSOR, SPLIT, PERSISTENT) else least

    def _runs(self, algorithm, desc, layouts):
        """Whether the algorithm takes these layouts."""
        need = self._needs(algorithm, desc, layouts)
        for x in layouts:
            size = NUMPY[x[0]].itemsize
            if x[4] * size % need or (x[5] > 1 and x[6] * size % need):
                return False
        return True

    def _workspace(self, numbers, desc, layouts):
        m, n, _, count = self._shape(desc, layouts)
        if numbers[2] > 1:
            return numbers[2] * m * n * count * NUMPY[desc[1]].itemsize
        return 4 if numbers[0] == PERSISTENT else 0

    def _config_of(self, address):
        raw = ctypes.string_at(address, 64)
        if raw[:4] != b"algo" or raw[36:] != bytes(28):
            raise IllegalError(f"no algorithm: {raw!r}")
        numbers, at = [], 4
        for width in CONFIG:
            numbers.append(int.from_bytes(raw[at : at + width], "little"))
            at += width
        return numbers

    def _store(self, address, numbers):
        raw = b"algo" + b"".join(x.to_bytes(width, "little") for x, width in zip(numbers, CONFIG))
        ctypes.memmove(address, raw.ljust(64, b"\0"), 64)

    def _valid(self, numbers):
        split = numbers[0] in PARTS
        return (
            numbers[0] in (TENSOR, PERSISTENT, ANY, *PARTS)
            and (numbers[2] > 1) == split
            and numbers[3] == {SPLIT: 2, ANY_SPLIT: 2, OUTPUT_SPLIT: 4}.get(numbers[0], 0)
            and numbers[4] <= (numbers[0] == TENSOR)
        )

    def _operands(self, desc, *layouts):
        return self._get(desc, "desc"), [self._get(x, "layout") for x in layouts]

    def _on_device(self, handle):
        device = self._get(handle, "handle")
        if device != self.cuda.current:
            raise IllegalError(f"a handle of device {device} on device {self.cuda.current}")
        return device

    def _cublasLtMatmulAlgoGetHeuristic(self, handle, desc, a, b, c, d, preference, wanted, results, count):
        self._on_device(handle)
        desc, layouts = self._operands(desc, a, b, c, d)
        prefer = self._get(preference, "preference")
        c_int.from_address(count).value = 0
        if not self._supported(desc, layouts):
            return NOT_SUPPORTED
        if desc[0] != COMPUTE_64F and desc[1] == C32 and prefer[12] & GAUSSIAN:
            raise IllegalError("the double would now propose an algorithm with too large an error")
        m, _, k, _ = self._shape(desc, layouts)
        order = [TENSOR, PERSISTENT, SPLIT, OUTPUT_SPLIT, ANY, ANY_SPLIT]
        if k >= 256:
            order = [SPLIT, OUTPUT_SPLIT, ANY_SPLIT, *order]
        elif m % 3 == 0:
            order = [PERSISTENT, *order]
        given = [prefer[x] for x in (5, 6, 7, 8)] + ([desc[8] & -desc[8]] if desc[7] & 4 else [])
        found = []
        for algorithm in dict.fromkeys(order):
            parts = PARTS.get(algorithm, 1)
            reduction = 4 if algorithm == OUTPUT_SPLIT else 2 if parts > 1 else 0
            numbers = [algorithm, 20, parts, reduction, 0, 0, 35, 0, 3]
            nbytes = self._workspace(numbers, desc, layouts)
            aligned = min(given) >= self._needs(algorithm, desc, layouts)
            masked = reduction and not reduction & prefer[3]
            if self._runs(algorithm, desc, layouts) and aligned and nbytes <= prefer[1] and not masked:
                found.append((numbers, nbytes))
        for i, (numbers, nbytes) in enumerate(found[:wanted]):
            result = Result.from_address(results + i * ctypes.sizeof(Result))
            self._store(ctypes.addressof(result), numbers)
            result.workspace, result.state, result.waves = nbytes, SUCCESS, 1.0
        c_int.from_address(count).value = min(wanted, len(found))
        return SUCCESS if found else NOT_SUPPORTED

    def _cublasLtMatmulAlgoInit(self, handle, compute, scale, a, b, c, d, number, algo):
        self._on_device(handle)
        if c != d or (compute, scale, a, b, d) not in TABLE or number not in (TENSOR, PERSISTENT, ANY, *PARTS):
            return NOT_SUPPORTED
        self._store(algo, [number, 0, 1, 0, 0, 0, 0, 0, 0])
        return SUCCESS

    def _cublasLtMatmulAlgoConfigGetAttribute(self, algo, attribute, buffer, size, written):
        if size != CONFIG[attribute]:
            raise IllegalError(f"configuration {attribute} in {size} bytes")
        ctypes.memmove(buffer, self._config_of(algo)[attribute].to_bytes(size, "little"), size)
        c_size_t.from_address(written).value = size

    def _cublasLtMatmulAlgoConfigSetAttribute(self, algo, attribute, buffer, size):
        if attribute == 0 or size != CONFIG[attribute]:
            raise IllegalError(f"configuration {attribute} in {size} bytes")
        numbers = self._config_of(algo)
        numbers[attribute] = int.from_bytes(ctypes.string_at(buffer, size), "little")
        self._store(algo, numbers)

    def _cublasLtMatmulAlgoCheck(self, handle, desc, a, b, c, d, algo, result):
        self._on_device(handle)
        desc, layouts = self._operands(desc, a, b, c, d)
        numbers = self._config_of(algo)
        if not self._valid(numbers) or not self._supported(desc, layouts) or not self._runs(numbers[0], desc, layouts):
            return NOT_SUPPORTED
        Result.from_address(result).workspace = self._workspace(numbers, desc, layouts)
        return SUCCESS

    # Running one

    def _cublasLtMatmul(
        self, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, nbytes,
        stream,
    ):  # fmt: skip
        if not self.cuda.context:
            return EXECUTION_FAILED  # what the library has used before it launches without the runtime
        device = self._on_device(handle)
        desc, layouts = self._operands(desc, a_layout, b_layout, c_layout, d_layout)
        desc = dict(desc)
        numbers = self._config_of(algo)
        if not (self._supported(desc, layouts) and self._valid(numbers) and self._runs(numbers[0], desc, layouts)):
            raise IllegalError(f"algorithm {numbers} does not run {desc} {layouts}")
        need = self._needs(numbers[0], desc, layouts)
        for name, address, layout in zip("ABCD", (a, b, c, d), layouts):
            if not address or address % max(need, NUMPY[layout[0]].itemsize):
                raise IllegalError(f"{name} at {address} for algorithm {numbers[0]}")
        if desc[7] & 4 and (not desc[8] or desc[8] % max(need, NUMPY[desc[26]].itemsize)):
            raise IllegalError(f"bias at {desc[8]} for algorithm {numbers[0]}")
        if c == d and layouts[2] != layouts[3]:
            raise IllegalError("C in place with another layout than D")
        needed = self._workspace(numbers, desc, layouts)
        if needed and (not workspace or nbytes < needed or not self.cuda.inside(workspace, nbytes)):
            raise IllegalError(f"workspace of {nbytes} bytes at {workspace}, {needed} are needed")
        capture = self.cuda.captures.get(stream, 0)
        self.products.append((device, numbers[0], workspace if needed else 0, stream or 0, capture))
        if needed:
            if workspace in self._busy:
                raise IllegalError("two products at once in one workspace")
            self._busy.add(workspace)
            ctypes.memset(workspace, 0xFF, needed)
            time.sleep(self.pause)
            if self.interrupt is not None:
                self.interrupt()
        try:
            self._compute(desc, layouts, (a, b, c, d), alpha, beta)
        finally:
            self._busy.discard(workspace)
        return SUCCESS

    def _matrix(self, address, layout, index):
        dtype = NUMPY[layout[0]]
        start = address + index * layout[6] * dtype.itemsize
        nbytes = ((layout[3] - 1) * layout[4] + layout[2]) * dtype.itemsize
        if not self.cuda.inside(start, nbytes):
            raise IllegalError(f"{nbytes} bytes at {start} are nobody's")
        memory = (ctypes.c_char * nbytes).from_address(start)
        strides = (dtype.itemsize, layout[4] * dtype.itemsize)
        return np.ndarray((layout[2], layout[3]), dtype, buffer=memory, strides=strides)

    def _compute(self, desc, layouts, addresses, alpha, beta):
        scale = NUMPY[desc[1]]
        wide = np.dtype({"f": np.float64, "c": np.complex128, "i": np.int64}[scale.kind])
        alpha, beta = (np.frombuffer(ctypes.string_at(x, scale.itemsize), scale)[0].astype(wide) for x in (alpha, beta))
        m, _, _, count = self._shape(desc, layouts)
        self._disjoint(layouts[3])
        for i in range(count):
            a, b, c, d = (self._matrix(address, layout, i) for address, layout in zip(addresses, layouts))
            left, right = (x.astype(wide) for x in (a, b))
            with np.errstate(all="ignore"):
                # The product is always made: 0 * NaN is NaN.
                value = alpha * ((left.T if desc[3] else left) @ (right.T if desc[4] else right))
                if beta != 0:
                    value = value + beta * c.astype(wide)
                if desc[7] & 4:
                    kind = NUMPY[desc[26]]
                    if not self.cuda.inside(desc[8], m * kind.itemsize):
                        raise IllegalError(f"bias at {desc[8]} is nobody's")
                    value = value + np.frombuffer(ctypes.string_at(desc[8], m * kind.itemsize), kind)[:, None].astype(
                        wide
                    )
                if desc[7] & 2:
                    value = np.maximum(value, 0)
                if desc[7] & 32:
                    inner = np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)
                    value = np.where(np.isneginf(value), 0.0, 0.5 * value * (1 + np.tanh(inner)))
                d[...] = value.astype(d.dtype)

    def _disjoint(self, layout):
        """IllegalError where two elements of D are one."""
        if layout[5] > 1 and layout[6] < (layout[3] - 1) * layout[4] + layout[2]:
            i, rows, cols = (np.arange(x) for x in (layout[5], layout[2], layout[3]))
            at = i[:, None, None] * layout[6] + rows[:, None] + cols * layout[4]
            if np.unique(at).size != at.size:
                raise IllegalError("elements of D overlap")
