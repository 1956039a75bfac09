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
NARROW = {(a, b): (E4M3,) if a == b else (E4M3, E5M2) for a, b in FP8}
"""The float8 types of D for each pair of operands."""
TABLE = {
    *((COMPUTE_32F, F32, ab, ab, d) for ab, d in ((F16, F16), (F16, F32), (BF16, BF16), (BF16, F32), (F32, F32))),
    *((COMPUTE_32F, F32, a, b, d) for a, b in FP8 for d in (BF16, F16, F32)),
    (FAST_TF32, F32, F32, F32, F32), (COMPUTE_64F, F64, F64, F64, F64), (COMPUTE_32I, I32, I8, I8, I32),
    *((COMPUTE_32F, F32, *ab, d) for ab, narrow in NARROW.items() for d in narrow),
    (COMPUTE_32F, C32, C32, C32, C32), (FAST_TF32, C32, C32, C32, C32), (COMPUTE_64F, C64, C64, C64, C64),
}  # fmt: skip
"""The supported combinations of (compute, scale, A, B, C, D)."""

A_SCALE, B_SCALE, D_SCALE, AMAX, FAST, A_MODE, B_MODE = 17, 18, 20, 21, 25, 31, 32
SCALAR, OUTER, VEC128, BLK128 = 0, 3, 4, 5
MODES = {(SCALAR, SCALAR), (OUTER, OUTER), (VEC128, VEC128), (VEC128, BLK128), (BLK128, VEC128)}
"""The documented modes of A and B."""
DESC = {0: 4, 1: 4, 3: 4, 4: 4, 7: 4, 8: 8, 10: 8, 17: 8, 18: 8, 20: 8, 21: 8, 25: 1, 26: 4, 31: 4, 32: 4}
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
        self.ignored = set()
        """Attributes of operations that the library accepts, and does not read."""
        self.partial = set()
        """Algorithms that leave out the K remainder of products with scales."""
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
        if kind == "desc" and attribute in (A_MODE, B_MODE) and self.version < 120800:
            return INVALID_VALUE
        signed = not (kind == "preference" or attribute in (7, 8, A_SCALE, B_SCALE, D_SCALE, AMAX))
        self._get(number, kind)[attribute] = int.from_bytes(ctypes.string_at(buffer, size), "little", signed=signed)
        return SUCCESS

    def _cublasLtGetVersion(self):
        return self.version

    def _cublasLtCreate(self, out):
        self._new(out, "handle", self.cuda.current)

    def _cublasLtMatmulDescCreate(self, out, compute, scale):
        self._new(out, "desc", {**defaults(DESC), 0: compute, 1: scale, 7: 1, 26: -1})

    def _cublasLtMatmulDescDestroy(self, number):
        self._destroy(number, "desc")

    def _cublasLtMatmulDescSetAttribute(self, number, attribute, buffer, size):
        return self._attribute(number, "desc", DESC, attribute, buffer, size)

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
        narrow = d[0] in (E4M3, E5M2)
        if (c[0] not in (BF16, F16) if narrow else c[0] != d[0]) or not self._scaled(desc, layouts):
            return False
        if (desc[0], desc[1], a[0], b[0], d[0]) not in TABLE:
            return False
        epilogue, real32 = desc[7], desc[1] == F32
        if epilogue not in ((1, 2, 4, 6, 32, 36) if real32 else (1,)):
            return False
        if epilogue & 4 and desc[26] != (c[0] if narrow else BF16 if (a[0], b[0]) in FP8 and d[0] == F32 else d[0]):
            return False
        if (a[0], b[0]) in FP8 and (not desc[3] or desc[4] or m % 16 or n % 8 or k % 16):
            return False
        return not (a[0] == I8 and (not desc[3] or desc[4] or m % 4 or k % 4 or any(x[4] % 4 for x in layouts)))

    def _scaled(self, desc, layouts):
        """Whether the documentation has these scales; IllegalError for factors of what is not float8."""
        a, b, _, d = layouts
        m, n, _, count = self._shape(desc, layouts)
        factors = desc[A_SCALE] or desc[B_SCALE] or desc[A_MODE] or desc[B_MODE]
        if (factors and (a[0], b[0]) not in FP8) or ((desc[D_SCALE] or desc[AMAX]) and d[0] not in (E4M3, E5M2)):
            raise IllegalError(f"scales {desc} of {layouts}")
        modes = desc[A_MODE], desc[B_MODE]
        if modes == (SCALAR, SCALAR):
            return True
        capability = self.cuda.attributes[75], self.cuda.attributes[76]
        if capability != (9, 0) or self.version < 120900 or modes not in MODES or d[0] not in (BF16, F16, F32):
            return False
        return count == 1 and (OUTER in modes or not (m % 4 or n % 4))

    def _needs(self, algorithm, desc, layouts):
        """Return the alignment in bytes that the algorithm needs of addresses, leading dimensions and batch strides."""
        one_byte = NUMPY[layouts[0][0]].itemsize == 1
        least = 16 if (layouts[0][0], layouts[1][0]) in FP8 else 4 if one_byte else 1
        return 16 if algorithm in (TENSOR, SPLIT, PERSISTENT) else least

    def _bias_needs(self, algorithm, desc):
        """Return the alignment in bytes that the algorithm needs of the bias."""
        return 16 if algorithm in (TENSOR, SPLIT, PERSISTENT) else NUMPY[desc[26]].itemsize

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
        given = [prefer[x] for x in (5, 6, 7, 8)]
        found = []
        for algorithm in dict.fromkeys(order):
            parts = PARTS.get(algorithm, 1)
            reduction = 4 if algorithm == OUTPUT_SPLIT else 2 if parts > 1 else 0
            numbers = [algorithm, 20, parts, reduction, 0, 0, 35, 0, 3]
            nbytes = self._workspace(numbers, desc, layouts)
            aligned = min(given) >= self._needs(algorithm, desc, layouts)
            aligned = aligned and not (desc[7] & 4 and desc[8] % self._bias_needs(algorithm, desc))
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
        fits = c in (BF16, F16) if d in (E4M3, E5M2) else c == d
        if not fits or (compute, scale, a, b, d) not in TABLE or number not in (TENSOR, PERSISTENT, ANY, *PARTS):
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
            if name == "C" and address is None and layouts[2][0] != layouts[3][0]:
                continue
            if not address or address % max(need, NUMPY[layout[0]].itemsize):
                raise IllegalError(f"{name} at {address} for algorithm {numbers[0]}")
        if desc[7] & 4 and (not desc[8] or desc[8] % self._bias_needs(numbers[0], desc)):
            raise IllegalError(f"bias at {desc[8]} for algorithm {numbers[0]}")
        if c is None and np.frombuffer(ctypes.string_at(beta, 4), np.float32)[0] != 0:
            raise IllegalError("no C, and beta is not 0")
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
            self._compute(desc, layouts, (a, b, c, d), alpha, beta, numbers[0] in self.partial)
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

    def _floats(self, address, count):
        if address % 4 or not self.cuda.inside(address, 4 * count):
            raise IllegalError(f"{count} factors at {address} are nobody's")
        return np.frombuffer(ctypes.string_at(address, 4 * count), np.float32).astype(np.float64)

    def _factors(self, desc, which, size, k):
        """The factors of the elements of A, m x k, or of B, n x k."""
        pointer, mode = {"A": (A_SCALE, A_MODE), "B": (B_SCALE, B_MODE)}[which]
        address, mode = desc[pointer], 0 if mode in self.ignored else desc[mode]
        if not address:
            if mode != SCALAR:
                raise IllegalError(f"{which} has the mode {mode} and no factors")
            return 1.0
        if pointer in self.ignored:
            return 1.0
        blocks, deep = -(-size // 128), -(-k // 128)
        if mode in (VEC128, BLK128) and address % 16:
            raise IllegalError(f"factors of {which} at {address}")
        if mode == SCALAR:
            return self._floats(address, 1)[0]
        if mode == OUTER:
            return self._floats(address, size)[:, None]
        if mode == VEC128:
            factors = self._floats(address, size * deep).reshape(deep, size).T
        else:
            four = -(-deep // 4) * 4
            factors = [self._floats(address + 4 * four * i, deep) for i in range(blocks)]
            factors = np.repeat(np.array(factors), 128, 0)[:size]
        return np.repeat(factors, 128, 1)[:, :k]

    def _compute(self, desc, layouts, addresses, alpha, beta, partial):
        scale = NUMPY[desc[1]]
        wide = np.dtype({"f": np.float64, "c": np.complex128, "i": np.int64}[scale.kind])
        alpha, beta = (np.frombuffer(ctypes.string_at(x, scale.itemsize), scale)[0].astype(wide) for x in (alpha, beta))
        m, n, k, count = self._shape(desc, layouts)
        of_a, of_b = (self._factors(desc, name, size, k) for name, size in (("A", m), ("B", n)))
        scaled = any(desc[x] for x in (A_SCALE, B_SCALE, D_SCALE, AMAX))
        self._disjoint(layouts[3])
        for i in range(count):
            a, b, d = (self._matrix(addresses[j], layouts[j], i) for j in (0, 1, 3))
            left, right = (x.astype(wide) for x in (a, b))
            left, right = left.T if desc[3] else left, right.T if desc[4] else right
            if partial and scaled:
                left = np.where(np.arange(k) < k // 128 * 128, left, 0)
            with np.errstate(all="ignore"):
                # The product is always made: 0 * NaN is NaN.
                product = (left * of_a) @ (right.T * of_b).T if scaled else left @ right
                if desc[FAST] and scaled:
                    product = (product.astype(np.float32).view(np.int32) & -1024).view(np.float32).astype(wide)
                value = alpha * product
                if beta != 0:
                    value = value + beta * self._matrix(addresses[2], layouts[2], i).astype(wide)
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
                if desc[AMAX] and AMAX not in self.ignored:
                    if not self.cuda.inside(desc[AMAX], 4):
                        raise IllegalError(f"amax at {desc[AMAX]}")
                    ctypes.c_float.from_address(desc[AMAX]).value = np.abs(value).max()
                if desc[D_SCALE] and D_SCALE not in self.ignored:
                    value = value * self._floats(desc[D_SCALE], 1)[0]
                if layouts[3][0] in (E4M3, E5M2):
                    largest = float(ml_dtypes.finfo(d.dtype).max)
                    value = np.clip(value, -largest, largest)
                d[...] = value.astype(d.dtype)

    def _disjoint(self, layout):
        """IllegalError where two elements of D are one."""
        if layout[5] > 1 and layout[6] < (layout[3] - 1) * layout[4] + layout[2]:
            i, rows, cols = (np.arange(x) for x in (layout[5], layout[2], layout[3]))
            at = i[:, None, None] * layout[6] + rows[:, None] + cols * layout[4]
            if np.unique(at).size != at.size:
                raise IllegalError("elements of D overlap")
