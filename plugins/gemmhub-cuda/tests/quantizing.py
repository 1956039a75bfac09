"""Tasks of quantization on arrays of NumPy, run by the emulator, and numbers that are hard to quantize."""

from __future__ import annotations

from dataclasses import dataclass, field

import emulated
import ml_dtypes
import numpy as np
from gemmhub_cuda.quantize import MAIN, plan

import gemmhub
from gemmhub.array_library import DeviceView
from gemmhub.backend import Quantization
from gemmhub.capability import Device

INPUTS = ("bfloat16", "float16", "float32")
TARGETS = ("float8_e4m3fn", "float8_e5m2", "int8")
GRANULARITIES = ("tensor", "row", "column", "1x128", "128x1", "128x128")
POISON = 0xA5


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def reference(x, target, granularity, scale=None):
    """The codes and scales of gemmhub.quantize for NumPy."""
    block = tuple(map(int, granularity.split("x"))) if "x" in granularity else None
    return gemmhub.quantize(x, target, "block" if block else granularity, block=block, scale=scale)


def hard_numbers(rng, shape, name):
    """Any bits at all, numbers of all magnitudes, numbers close to each other; NaN, infinities, zeros among them."""
    kind, of = dtype(name), rng.integers(6)
    size = int(np.prod(shape))
    if of == 0:
        words = rng.integers(0, 2 ** (8 * kind.itemsize), size, np.uint64)
        return words.astype(f"u{kind.itemsize}").view(kind).reshape(shape)
    x = rng.standard_normal(size) * np.exp2(
        rng.normal(0, (0, 1, 6, 30, 60)[of - 1], size) + rng.integers(-140, 120) * (of > 3)
    )
    with np.errstate(over="ignore"):
        x = x.astype(kind)
    for value in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0):
        if rng.random() < 0.3:
            x[rng.random(size) < rng.choice([0.5, 1 / max(size, 1)])] = value
    return x.reshape(shape)


def halfway(rng, shape, name, target, scale=1.0):
    """Numbers whose quotients by ``scale`` are the middle of two codes, or next to it."""
    kind = dtype(target)
    codes = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    codes = np.unique(codes[np.isfinite(codes) & (np.abs(codes) <= gemmhub.dtypes.info(kind).largest)])
    middles = (codes[1:] + codes[:-1]) / 2
    with np.errstate(over="ignore", under="ignore"):
        x = (rng.choice(middles, shape) * np.float64(scale)).astype(np.float32)
        for _ in range(2):
            x = np.where(rng.random(shape) < 0.5, x, np.nextafter(x, np.float32(rng.choice([-np.inf, np.inf]))))
        return x.astype(dtype(name))


@dataclass
class Emulated:
    """One task: x with its strides, in a buffer of its own, and results between bytes that nothing may write."""

    x: np.ndarray
    target: str
    granularity: str
    scale: np.ndarray | None = None
    sms: int = 2
    offset: int = 0
    """Bytes from a multiple of 256 to the codes."""
    changes: tuple = ()
    q: np.ndarray | None = None
    """Memory for the codes; by default poisoned memory of this task."""
    kept: list = field(default_factory=list)

    def memory(self, nbytes, offset=0):
        """Poisoned memory, which the kernel may write."""
        buffer = np.full(nbytes + offset + 512, POISON, np.uint8)
        start = -buffer.ctypes.data % 256 + offset
        part = buffer[start : start + nbytes]
        self.kept.append((buffer, part))
        return part

    def task(self):
        """The task, and the arrays of codes and scales."""
        expected, of_scale = reference(self.x, self.target, self.granularity, self.scale)
        size = self.x.size
        order = sorted(range(self.x.ndim), key=lambda axis: (self.x.strides[axis] or np.inf, -axis), reverse=True)
        if self.q is None:
            flat = self.memory(size, self.offset).view(expected.dtype)
            q = flat.reshape([self.x.shape[axis] for axis in order]).transpose(np.argsort(order))
        else:
            q = self.q
            self.kept.append((q.base, q.base))
        scale = self.memory(4 * of_scale.size).view(np.float32).reshape(of_scale.shape)
        if self.scale is not None:
            scale[...] = self.scale
        views = (DeviceView(y.ctypes.data, y.dtype, y.shape, y.strides, y) for y in (self.x, q, scale))
        task = Quantization(
            Device("cuda"), *views, self.granularity, self.scale is not None, 0,
            lambda nbytes: self.memory(nbytes).ctypes.data,
        )  # fmt: skip
        return task, q, scale

    def run(self, seed=0):
        """Run the launches; return codes and scales."""
        task, q, scale = self.task()
        planned = plan(task, self.sms)
        assert not isinstance(planned, gemmhub.Refusal), planned
        params = planned.params
        params.maxima = task.scratch(planned.scratch_bytes) if planned.scratch_bytes else 0
        base = self.x
        while isinstance(base.base, np.ndarray):
            base = base.base
        for variant, grid in planned.launches:
            emulated.run(
                MAIN, {**variant.macros, "ENTRY": "quantize"}, params, (grid, 1, 1), variant.threads,
                variant.shared_bytes, [base], [part for _, part in self.kept], seed, changes=self.changes,
            )  # fmt: skip
        return q, scale

    def check(self, seed=0):
        """Compare with NumPy's results, bit for bit."""
        q, scale = self.run(seed)
        same(q, scale, *reference(self.x, self.target, self.granularity, self.scale))
        for buffer, part in self.kept:
            start = part.ctypes.data - buffer.ctypes.data
            assert (buffer[:start] == POISON).all()
            assert (buffer[start + part.nbytes :] == POISON).all()


def same(q, scale, expected, of_scale):
    """Require equal bits, and NaN where NaN is expected: of float8 the code 0x7f."""
    assert np.array_equal(scale, of_scale, equal_nan=True), (scale, of_scale)
    bits, right = (np.ascontiguousarray(y).view(np.uint8) for y in (q, expected))
    if q.dtype != np.int8:
        right = np.where(np.isnan(expected.astype(np.float32)), 0x7F, right)
    wrong = np.argwhere(bits != right)
    assert not wrong.size, (len(wrong), wrong[:3], bits[bits != right][:3], right[bits != right][:3])
