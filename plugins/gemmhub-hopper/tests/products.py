"""One product on given memory, compared with numpy: for the emulator and for a card."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.lowering import k_passes, lower
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import Shape
from gemmhub_nvidia.scratch import COUNTERS
from ml_dtypes import bfloat16
from problems import bias, problem

from gemmhub.dtypes import as_dtype
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import Scale
from gemmhub.scale_layouts import spread

LIMIT = 2**30


@dataclass(frozen=True)
class Product:
    """A problem for a given tile shape, split-K and lowering."""

    shape: Shape
    m: int
    n: int
    k: int
    a: str = "row"
    b: str = "row"
    d: str = "row"
    dtype: str = "bfloat16"
    out: str | None = None
    swapped: bool = False
    registers: bool = False
    """Whether the kernel's a goes through registers."""
    split_planes_b: bool = False
    """Whether the kernel's b is split in shared memory."""
    splits: int = 1
    batch: tuple[int, ...] = ()
    alpha: float = 1
    beta: float = 0
    bias: str | None = None
    bias_type: str = "float32"
    activation: str | None = None
    offset: int = 0
    """Offset of d's address in elements from an alignment of 256 bytes."""
    limit: int = LIMIT
    """Bytes of workspace."""

    def __str__(self):
        flags = "".join(x[0] for x in (self.a, self.b, self.d))
        words = [self.choice.name, f"{self.m}x{self.n}x{self.k}", flags, self.dtype, self.out or ""]
        words += [f"batch{self.batch}"] if self.batch else []
        words += [f"alpha{self.alpha}"] if self.alpha != 1 else []
        words += ["c"] if self.beta else []
        words += [f"bias_{self.bias}"] if self.bias else []
        words += [self.activation] if self.activation else []
        words += [f"offset{self.offset}"] if self.offset else []
        words += [f"slabs{self.passes.count}"] if self.passes.count > 1 else []
        return "-".join(word for word in words if word)

    @property
    def problem(self):
        dtype = "float32" if self.dtype in ("tf32", "f16x3", "bf16x3") else self.dtype
        asked = problem(
            self.m, self.n, self.k, dtype, self.out, self.batch, self.a, self.b, self.d, activation=self.activation
        )
        size = asked.out.dtype.itemsize
        if self.dtype in ("tf32", "bf16x3"):
            asked = replace(asked, precision=self.dtype)
        if self.offset:
            nbytes = self.offset * size
            asked = replace(asked, out=replace(asked.out, alignment=nbytes & -nbytes))
        asked = replace(asked, alpha_is_one=self.alpha == 1)
        return asked.having(
            c=asked.out if self.beta else None, bias=bias(self.bias_type, self.bias) if self.bias else None
        )

    @property
    def choice(self):
        lowerings = lower.lowerings(self.problem)
        assert isinstance(lowerings, tuple), lowerings
        scheme = self.dtype if self.dtype.endswith("x3") else ""
        asked = self.registers, self.split_planes_b, self.swapped
        lowering = next(
            x
            for x in lowerings
            if (x.form.registers_a, x.form.split_planes_b, x.swapped) == asked
            and (x.form.input if x.form.input.endswith("x3") else "") == scheme
        )
        choice = Choice(lowering, self.shape, self.splits)
        passes = runnable(choice, self.limit)
        assert not isinstance(passes, str), passes
        return choice

    @property
    def passes(self):
        return self.choice.k_passes(self.limit)

    @property
    def variants(self):
        """The kernels that it takes, but for the pre-pass."""
        return k_passes.variants(self.choice.shape, self.choice.lowering.form, self.splits > 1, self.passes.count)

    @property
    def sources(self):
        """Of those."""
        return [sources.source(variant) for variant in self.variants]

    @property
    def macros(self):
        """Of all its kernels."""
        lowering = self.choice.lowering
        if lowering.form.input == "f16x3":
            copiers = [{"F16_PREPASS": 1}, {"PREPASS_FORMAT": 0}]
        else:
            copiers = [{"PREPASS_FORMAT": sources.PREPASSES[lowering.form.input]}] if lowering.copied else []
        return copiers + [variant.macros for variant in self.variants]

    def data(self, seed=0):
        """(a, b, c, bias) as arrays of shape (*batch, rows, columns), of small integers: every sum is exact."""
        rng = np.random.default_rng(seed)
        asked = self.problem

        def draw(dtype, *shape):
            return rng.integers(-3, 4, shape).astype(dtype)

        out = asked.out.dtype
        return (
            draw(asked.a.dtype, *self.batch, self.m, self.k), draw(asked.b.dtype, *self.batch, self.k, self.n),
            draw(out, *self.batch, self.m, self.n) if self.beta else None,
            draw(as_dtype(self.bias_type), self.n if self.bias == "n" else self.m) if self.bias else None,
        )  # fmt: skip

    def scales(self):
        """The quantization scales by their names."""
        return {}

    def multiplied(self, a, b):
        return a.astype(np.float64) @ b.astype(np.float64)

    def exact(self, a, b, c, bias):
        value = self.alpha * self.multiplied(a, b) if self.alpha else 0.0
        if c is not None:
            value = value + self.beta * c.astype(np.float64)
        if bias is not None:
            vector = bias.astype(np.float64)
            value = value + (vector if self.bias == "n" else vector[:, None])
        value = np.broadcast_to(value, (*self.batch, self.m, self.n))
        with np.errstate(over="ignore"):
            return EPILOGUES[self.activation](value) if self.activation else value

    def launch(self, backend):
        """Ready to run on device 0 of a backend."""
        return backend.launch(0, self.choice, self.limit)

    def wrong(self, result, exact):
        """Which elements of ``result`` are."""
        value = result.astype(np.float64)
        if self.activation and EPILOGUES[self.activation].evaluation:
            unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}[result.dtype.name]
            return ~(np.abs(value - exact) <= unit * np.abs(exact) + 1e-5)
        return ~(value == exact.astype(result.dtype).astype(np.float64))


def stored(x, order):
    """The bytes of a stack of matrices in this order."""
    return np.ascontiguousarray(x if order == "row" else np.swapaxes(x, -1, -2)).view(np.uint8).ravel()


def loaded(data, dtype, batch, rows, columns, order):
    """Return the stack of matrices in ``data``, bytes in that order."""
    x = np.asarray(data).view(dtype)
    return x.reshape(*batch, rows, columns) if order == "row" else np.swapaxes(x.reshape(*batch, columns, rows), -1, -2)


_ONE = {"consumers": 1}
_REGISTERS = {"registers": True}
_BOTH = {"registers": True, "split_planes_b": True}
SMALL = Shape(64, 64, 3, **_ONE)
SPLIT = Shape(64, 64, 2, **_ONE)
TURNS = Shape(64, 64, 3, pingpong=True)
TURNS_BELOW = Shape(64, 64, 3, cluster_m=2, pingpong=True)
PRODUCTS = (
    # One step, then several, then tails; every major-ness.
    Product(SMALL, 64, 64, 64, b="col"),
    Product(SMALL, 64, 64, 320, b="col"),
    Product(SMALL, 72, 136, 264, a="col"),
    Product(SMALL, 72, 136, 264),
    Product(SMALL, 72, 136, 264, a="col", b="col"),
    Product(SMALL, 72, 136, 264, d="col"),
    Product(SMALL, 72, 136, 264, swapped=True),
    Product(SMALL, 72, 136, 264, dtype="float16"),
    # float32 results through shared memory: transposed or not, store blocks of 16 columns, several for a buffer.
    Product(SMALL, 72, 136, 72, out="float32"),
    Product(SMALL, 72, 136, 72, out="float32", swapped=True),
    Product(Shape(64, 16, 3, **_ONE), 72, 44, 72, out="float32"),
    Product(Shape(64, 16, 3, **_ONE), 44, 72, 72, out="float32", swapped=True),
    Product(Shape(64, 112, 3, **_ONE), 72, 132, 72, out="float32", d="col"),
    Product(Shape(128, 256, 4), 136, 516, 72, b="col", out="float32"),
    Product(Shape(256, 128, 4), 516, 136, 72, b="col", out="float32", d="col"),
    Product(Shape(256, 192, 3), 264, 200, 72, dtype="tf32"),
    Product(SMALL, 72, 136, 200, out="float32", splits=2, alpha=0.5, beta=2, bias="m", activation="relu"),
    Product(SMALL, 72, 136, 200, dtype="tf32", d="col", splits=2, alpha=0.5, beta=2, bias="n", batch=(2,)),
    # Overlapping store blocks: transposed or not, more than two, of float32; not with a c.
    Product(Shape(64, 112, 3, **_ONE), 72, 232, 72, bias="n", activation="relu"),
    Product(Shape(64, 112, 3, **_ONE), 232, 72, 72, swapped=True, batch=(2,)),
    Product(Shape(64, 80, 3, **_ONE), 72, 168, 200, splits=2),
    Product(Shape(128, 176, 3, cluster_m=2, pingpong=True), 264, 360, 200, b="col", d="col"),
    Product(Shape(64, 80, 3, **_ONE), 72, 84, 72, out="float32", swapped=True),
    Product(Shape(64, 112, 3, **_ONE), 72, 232, 72, alpha=0.5, beta=2),
    # Odd sizes with a bias; widths of an odd number of 16 columns.
    Product(Shape(64, 80, 3, **_ONE), 73, 149, 72, bias="n"),
    Product(Shape(128, 112, 3, pingpong=True), 264, 216, 200, b="col", d="col", splits=2),
    Product(Shape(128, 48, 3), 136, 120, 132, b="col", dtype="tf32", bias="n"),
    Product(Shape(128, 112, 3), 136, 216, 136, a="col"),
    # Results without TMA.
    Product(SMALL, 72, 70, 72, out="float32"),
    Product(SMALL, 72, 70, 72, out="float32", swapped=True),
    Product(SMALL, 72, 136, 72, out="float32", offset=2),
    Product(SMALL, 73, 131, 72, a="row", b="col"),
    Product(SMALL, 73, 131, 72, a="row", b="col", swapped=True),
    Product(SMALL, 72, 136, 72, offset=1),
    Product(SMALL, 1, 37, 72),  # a row that ends within 16 bytes
    # Shapes.
    Product(Shape(128, 256, 4), 264, 520, 264),
    Product(Shape(128, 256, 4, cluster_m=2), 264, 520, 392, a="col"),
    Product(Shape(256, 128, 4), 264, 264, 264),
    Product(Shape(256, 128, 4, cluster_n=2), 264, 392, 392, a="col", b="col"),
    Product(Shape(256, 192, 3), 264, 392, 264),
    Product(Shape(128, 192, 5), 136, 392, 200),
    Product(Shape(128, 160, 5), 136, 328, 200),
    Product(Shape(128, 160, 5), 136, 328, 200, swapped=True),
    Product(Shape(128, 128, 6, cluster_m=2), 136, 136, 200, b="col"),
    Product(Shape(128, 32, 9), 200, 40, 200),
    Product(Shape(128, 32, 9), 40, 200, 200, swapped=True),
    Product(Shape(64, 256, 4, **_ONE), 72, 264, 200),
    Product(Shape(64, 16, 12, **_ONE), 136, 8, 200, b="col"),
    Product(Shape(64, 16, 12, **_ONE), 1, 136, 2056, swapped=True, splits=2),
    # Split-K, with and without clusters, and more work tiles than CTAs.
    Product(SMALL, 72, 136, 520, splits=3),
    Product(Shape(128, 128, 6, cluster_m=2), 264, 136, 520, b="col", splits=4),
    Product(SMALL, 72, 136, 520, splits=3, alpha=0.5, beta=2, bias="n", activation="relu"),
    # Ping-pong: one work tile; odd and even numbers of work tiles of a CTA; stages skipped across the ring's end;
    # clusters; splits of different length; transposed and direct stores.
    Product(TURNS, 64, 64, 200),
    Product(TURNS, 200, 136, 264),
    Product(TURNS, 200, 136, 40),
    Product(TURNS_BELOW, 264, 136, 200, b="col"),
    Product(TURNS, 136, 136, 456, splits=3),
    Product(TURNS_BELOW, 264, 136, 456, b="col", splits=3, alpha=0.5, beta=2, bias="n", activation="relu"),
    Product(TURNS, 136, 200, 264, swapped=True),
    Product(TURNS, 137, 201, 264, a="col", b="col", d="col", beta=1, bias="m", batch=(2,)),
    Product(TURNS, 136, 200, 264, out="float32"),
    Product(TURNS, 136, 200, 132, b="col", dtype="tf32"),
    Product(TURNS_BELOW, 264, 136, 456, out="float32", d="col", splits=3, beta=2, bias="n", activation="relu"),
    Product(Shape(128, 192, 5, cluster_m=2, pingpong=True), 264, 584, 200, a="col"),
    Product(Shape(128, 160, 5, pingpong=True), 136, 488, 392, swapped=True),
    # Multicast by four and eight CTAs, of one operand or both, K-major and MN-major.
    Product(Shape(64, 64, 3, cluster_m=2, cluster_n=2, **_ONE), 136, 264, 264, b="col"),
    Product(Shape(64, 64, 3, cluster_m=2, cluster_n=2, **_ONE), 72, 136, 264, a="col", splits=2, batch=(2,)),
    Product(Shape(128, 96, 3, cluster_m=2, cluster_n=2), 264, 392, 136, d="col", bias="n"),
    Product(Shape(64, 32, 3, cluster_m=4, **_ONE), 264, 72, 328, b="col", splits=2),
    Product(Shape(64, 64, 3, cluster_m=4, **_ONE), 392, 136, 132, b="col", dtype="tf32"),
    Product(Shape(64, 64, 3, cluster_n=4, **_ONE), 72, 264, 200, a="col", swapped=True),
    Product(Shape(64, 64, 3, cluster_m=4, cluster_n=2, **_ONE), 264, 136, 264, b="col"),
    Product(Shape(128, 64, 3, cluster_m=2, cluster_n=4), 264, 264, 136, a="col", bias="n"),
    # CTAs of a cluster that share K: two, four and eight; a slice of columns each, or fewer slices than CTAs; splits
    # of different length; more clusters than run at once; clusters that multicast operands besides.
    Product(Shape(64, 64, 3, cluster_k=4, **_ONE), 72, 136, 328),
    Product(Shape(64, 16, 5, cluster_k=2, **_ONE), 136, 8, 392, b="col", swapped=True),
    Product(Shape(64, 96, 3, cluster_k=4, **_ONE), 200, 104, 328, a="col", d="col", alpha=0.5, beta=2, bias="n"),
    Product(Shape(128, 64, 3, cluster_k=2), 264, 72, 456, out="float32", bias="m", activation="relu"),
    Product(Shape(64, 32, 5, cluster_k=8, **_ONE), 72, 33, 1160, out="float32"),
    Product(Shape(128, 128, 4, cluster_k=8), 136, 136, 520, b="col", swapped=True, batch=(2,)),
    Product(Shape(64, 128, 3, cluster_m=2, cluster_k=2, **_ONE), 200, 136, 456),
    Product(Shape(128, 64, 3, cluster_m=2, cluster_k=4), 264, 136, 520, a="col", b="col", bias="n"),
    Product(Shape(64, 64, 4, cluster_m=2, cluster_n=2, cluster_k=2, **_ONE), 136, 264, 264, swapped=True),
    Product(Shape(64, 64, 3, cluster_k=2, **_ONE), 72, 136, 132, b="col", dtype="tf32"),
    Product(Shape(64, 64, 3, cluster_k=2, **_ONE), 72, 136, 132, dtype="tf32", swapped=True, **_REGISTERS),
    Product(Shape(64, 64, 3, cluster_k=2, **_ONE), 70, 73, 330, dtype="tf32", limit=COUNTERS + 2**16, bias="n"),
    # Batches.
    Product(SMALL, 72, 72, 136, batch=(3,)),
    Product(SMALL, 72, 72, 136, batch=(3,), swapped=True, out="float32"),
    Product(SMALL, 72, 72, 136, batch=(2,), splits=2),
    # Epilogues.
    Product(SMALL, 72, 136, 72, alpha=0.5, beta=-2, bias="n"),
    Product(SMALL, 72, 136, 72, alpha=0, beta=2, bias="m"),
    Product(SMALL, 72, 136, 72, bias="m", bias_type="bfloat16", swapped=True, beta=1),
    Product(SMALL, 72, 136, 72, bias="n", bias_type="float16", dtype="float16", activation="relu"),
    Product(SMALL, 72, 136, 72, activation="gelu", alpha=0.125, out="float32"),
    Product(SMALL, 72, 136, 72, activation="gelu_tanh", alpha=0.125, out="float32"),
    Product(SMALL, 72, 136, 72, activation="silu", alpha=0.125),
    Product(SMALL, 72, 136, 0, beta=1),
    # tf32, of k-major operands and of others, which are copied.
    Product(SMALL, 72, 136, 132, b="col", dtype="tf32"),
    Product(Shape(128, 128, 6, cluster_m=2), 136, 136, 100, b="col", dtype="tf32", bias="n"),
    Product(SMALL, 72, 136, 130, a="col", dtype="tf32"),
    # 16-bit operands that TMA does not take.
    Product(SMALL, 70, 73, 70, a="col", d="col"),
    # float32, split: every major-ness; shapes; clusters; split-K; K passes; batches; epilogues.
    Product(SPLIT, 64, 64, 32, b="col", dtype="float32"),
    Product(SPLIT, 64, 64, 32, dtype="float32"),
    Product(SPLIT, 71, 133, 163, dtype="float32", b="col"),
    Product(SPLIT, 71, 133, 163, dtype="float32", a="col", d="col"),
    Product(SPLIT, 71, 133, 163, dtype="float32", swapped=True),
    Product(SPLIT, 72, 133, 2, dtype="float32"),
    Product(SPLIT, 72, 136, 2, dtype="float32", d="col"),
    Product(Shape(128, 192, 3, cluster_m=2), 264, 200, 72, dtype="float32"),
    Product(Shape(128, 128, 4), 136, 136, 100, dtype="float32", out="bfloat16", bias="n", activation="relu"),
    Product(Shape(64, 16, 9, **_ONE), 100, 9, 300, dtype="float32", splits=3),
    Product(SPLIT, 40, 72, 136, dtype="float32", batch=(3,), alpha=0.5, beta=2),
    Product(SPLIT, 71, 73, 200, dtype="float32", limit=2**17 + COUNTERS, beta=2, bias="m", activation="relu"),
    Product(SPLIT, 72, 76, 330, dtype="float32", limit=2**17 + COUNTERS, beta=2, bias="m", activation="relu"),
    Product(SPLIT, 72, 76, 200, dtype="float32", limit=COUNTERS + 600 * 2**10, splits=2, d="col", batch=(2,)),
    Product(
        SPLIT, 71, 73, 330, dtype="float32", limit=COUNTERS + 600 * 2**10, splits=2, batch=(2,), out="float16", beta=2
    ),
    Product(SMALL, 70, 73, 330, dtype="tf32", limit=COUNTERS + 48 * 2**10, bias="n"),
    # a through registers. tf32 that is contiguous along M: swapped or not; with a b that is copied; several fragments
    # of 64 rows; multicast of a or b; ping-pong; split-K; K passes; batches.
    Product(SMALL, 64, 64, 32, a="col", b="col", dtype="tf32", **_REGISTERS),
    Product(SMALL, 72, 136, 132, a="col", b="col", dtype="tf32", **_REGISTERS),
    Product(SMALL, 71, 136, 132, dtype="tf32", swapped=True, **_REGISTERS),
    Product(SMALL, 72, 133, 131, a="col", dtype="tf32", bias="m", activation="relu", **_REGISTERS),
    Product(Shape(256, 64, 3), 72, 392, 232, dtype="tf32", swapped=True, **_REGISTERS),
    Product(Shape(128, 64, 3, cluster_m=2), 136, 264, 100, dtype="tf32", swapped=True, **_REGISTERS),
    Product(Shape(128, 64, 3, cluster_n=2), 136, 264, 100, dtype="tf32", swapped=True, **_REGISTERS),
    Product(TURNS, 200, 136, 132, dtype="tf32", swapped=True, **_REGISTERS),
    Product(TURNS, 137, 200, 264, dtype="tf32", swapped=True, splits=3, beta=2, **_REGISTERS),
    Product(SMALL, 72, 73, 330, a="col", dtype="tf32", limit=COUNTERS + 2**15, **_REGISTERS),
    Product(SMALL, 72, 72, 136, dtype="tf32", swapped=True, batch=(3,), out="bfloat16", **_REGISTERS),
    # float32, split in registers: K-major, MN-major, swapped; narrow b; clusters; split-K and K passes; batches.
    Product(SPLIT, 64, 64, 32, dtype="float32", **_REGISTERS),
    Product(SPLIT, 64, 64, 32, a="col", dtype="float32", **_REGISTERS),
    Product(SPLIT, 71, 133, 164, dtype="float32", b="col", **_REGISTERS),
    Product(SPLIT, 72, 133, 163, dtype="float32", a="col", d="col", **_REGISTERS),
    Product(SPLIT, 71, 132, 163, dtype="float32", swapped=True, **_REGISTERS),
    Product(Shape(128, 16, 3), 9, 200, 300, dtype="float32", swapped=True, **_REGISTERS),
    Product(Shape(128, 32, 3), 200, 40, 300, b="col", dtype="float32", splits=3, **_REGISTERS),
    Product(Shape(128, 96, 2, cluster_m=2), 264, 200, 72, dtype="float32", **_REGISTERS),
    Product(Shape(128, 64, 2, cluster_n=2), 264, 136, 72, a="col", dtype="float32", bias="n", **_REGISTERS),
    Product(Shape(64, 16, 9, **_ONE), 9, 100, 1000, dtype="float32", swapped=True, splits=5, **_REGISTERS),
    Product(SPLIT, 72, 73, 200, dtype="float32", limit=2**17 + COUNTERS, beta=2, bias="m", **_REGISTERS),
    Product(SPLIT, 40, 72, 136, dtype="float32", swapped=True, batch=(3,), alpha=0.5, out="bfloat16", **_REGISTERS),
    # float32 of which the kernel splits both: of either order, remainders, columns outside the tile, several work tiles
    # of a CTA, two consumers, CTAs that share K, a batch.
    Product(SPLIT, 64, 64, 32, dtype="float32", **_BOTH),
    Product(SPLIT, 64, 64, 96, a="col", b="col", dtype="float32", **_BOTH),
    Product(SPLIT, 71, 132, 164, dtype="float32", d="col", **_BOTH),
    Product(Shape(64, 16, 3, **_ONE), 72, 44, 72, dtype="float32", **_BOTH),
    Product(Shape(64, 48, 3, **_ONE), 136, 136, 264, a="col", b="col", dtype="float32", swapped=True, **_BOTH),
    Product(Shape(128, 32, 2), 264, 72, 264, b="col", dtype="float32", swapped=True, **_BOTH),
    Product(Shape(128, 16, 2), 264, 72, 264, dtype="float32", bias="n", activation="relu", **_BOTH),
    Product(Shape(64, 32, 5, cluster_k=8, **_ONE), 72, 36, 580, dtype="float32", **_BOTH),
    Product(Shape(128, 64, 3, cluster_k=4), 136, 72, 456, dtype="float32", d="col", beta=2, **_BOTH),
    Product(Shape(64, 96, 2, cluster_k=2, **_ONE), 40, 72, 136, dtype="float32", batch=(3,), out="bfloat16", **_BOTH),
    Product(Shape(64, 48, 3, **_ONE), 136, 136, 264, a="col", b="col", dtype="float32", splits=3, **_BOTH),
    Product(Shape(64, 32, 5, cluster_k=8, **_ONE), 72, 36, 1160, dtype="float32", splits=2, **_BOTH),
    Product(Shape(128, 64, 3, cluster_k=4), 136, 72, 456, dtype="float32", d="col", beta=2, splits=2, **_BOTH),
)  # fmt: skip
"""Of growing complexity: what benchmarks/run/hopper_bringup.py runs on a card, and tests/test_kernel.py on the host."""

SLICES = (
    Product(SMALL, 64, 64, 456, splits=6),
    Product(SMALL, 72, 56, 1032, b="col", out="float32", splits=8, alpha=0.5, beta=2, bias="m", activation="relu"),
    Product(SMALL, 60, 72, 840, a="col", d="col", splits=7, alpha=0.5, beta=2, bias="n", activation="silu"),
    Product(SMALL, 33, 61, 840, splits=13, d="col", dtype="float16", out="float32"),
    Product(SMALL, 24, 41, 456, splits=6, offset=1, bias="n", bias_type="bfloat16"),
    Product(SMALL, 40, 64, 456, splits=6, batch=(2,), activation="gelu"),
    Product(Shape(64, 32, 4, **_ONE), 50, 32, 1032, splits=16),
    Product(Shape(128, 96, 3), 120, 96, 456, splits=7, beta=1),
    Product(Shape(128, 144, 3), 128, 136, 456, b="col", splits=6),
    Product(Shape(256, 128, 3), 200, 128, 456, splits=7),
    Product(Shape(64, 64, 3, cluster_m=2, **_ONE), 128, 64, 456, splits=6),
    Product(SMALL, 64, 64, 392, dtype="tf32", b="col", splits=11),
    Product(SMALL, 60, 64, 300, dtype="float32", splits=6),
    Product(SPLIT, 60, 64, 300, dtype="float32", splits=6, **_REGISTERS),
    Product(Shape(64, 48, 3, **_ONE), 60, 40, 300, a="col", b="col", dtype="float32", splits=8, **_BOTH),
)
"""Products whose splits reduce a slice of the tile each, on a device with enough SMs."""


@dataclass(frozen=True)
class Scaled(Product):
    """Float32 by float16 planes. Rows, columns and groups of K have scales of their own; all sums are exact."""

    dtype: str = "f16x3"
    b_shared: bool = False
    """The matrices of a batch share b."""

    @property
    def problem(self):
        asked = super().problem
        if not self.b_shared:
            return asked
        layout = replace(asked.b.layout, batch_strides=(0,) * len(self.batch))
        return replace(asked, b=replace(asked.b, layout=layout))

    def data(self, seed=0):
        a, b, c, bias = super().data(seed)
        rng, groups = np.random.default_rng(seed + 1), np.arange(self.k) // 128

        def scales(rows):
            exponents = rng.integers(0, 3, (rows, 1)) + rng.integers(0, 3, (rows, self.k // 128 + 1))[:, groups]
            return np.ldexp(np.float32(1), exponents)

        if self.b_shared:
            b[:] = b[(0,) * len(self.batch)]
        return a * scales(self.m), b * scales(self.n).T, c, bias

    def rejected(self, seed=0):
        """Operands with the same product which float16 planes do not hold: what they lose of a is times 0."""
        a, b, c, bias = self.data(seed)
        a[..., 0, 5], b[..., 5, :] = np.float32(1.2345 * 2.0**-60), 0
        return a, b, c, bias


F16_PRODUCTS = (
    # The least k; every order, sizes that are no multiples of anything.
    Scaled(SPLIT, 64, 64, 64),
    Scaled(SPLIT, 72, 136, 264),
    Scaled(SPLIT, 71, 133, 163, a="col", d="col"),
    Scaled(SPLIT, 71, 133, 163, b="col", swapped=True),
    Scaled(SPLIT, 72, 136, 264, a="col", b="col", d="col", swapped=True),
    # Two consumers, the second one later than the first, and several work tiles; clusters; split-K; K passes.
    Scaled(Shape(128, 128, 6), 264, 136, 300, b="col"),
    Scaled(Shape(128, 96, 3), 136, 200, 420, d="col"),
    Scaled(Shape(128, 64, 3, cluster_m=2), 264, 136, 300),
    Scaled(SPLIT, 72, 76, 600, splits=3, alpha=0.5, beta=2, bias="n", activation="relu"),
    Scaled(SPLIT, 72, 73, 600, limit=COUNTERS + 2**18, beta=2, bias="m"),
    # Batches.
    Scaled(SPLIT, 40, 72, 136, batch=(3,), alpha=0.5, out="bfloat16"),
    Scaled(SPLIT, 40, 72, 136, a="col", batch=(3,), b_shared=True, bias="n"),
)
"""Of float32 by float16 planes: what tests/test_f16_planes.py runs on the host, and tests/test_device.py on a card."""

BY_ROWS_PRODUCTS = (
    # The least k; every order, sizes that are no multiples of anything; spans of one stage and of two.
    Scaled(Shape(128, 48, 9), 64, 48, 64, registers=True),
    Scaled(Shape(128, 48, 9), 136, 40, 300, registers=True),
    Scaled(Shape(128, 48, 9), 132, 37, 164, a="col", d="col", registers=True),
    Scaled(Shape(128, 48, 9), 33, 140, 228, b="col", registers=True, swapped=True),
    Scaled(Shape(128, 64, 8), 71, 136, 264, a="col", b="row", d="col", registers=True, swapped=True),
    # Several work tiles of a CTA; wide tiles; split-K in the middle of a scale group; an epilogue.
    Scaled(Shape(128, 48, 3), 392, 136, 420, registers=True),
    Scaled(Shape(128, 112, 6), 136, 120, 264, b="col", registers=True),
    Scaled(Shape(128, 80, 7), 136, 72, 600, registers=True, splits=3, alpha=0.5, bias="n", activation="relu"),
    # Batches.
    Scaled(Shape(128, 48, 9), 40, 44, 136, batch=(3,), alpha=0.5, out="bfloat16", registers=True),
    Scaled(Shape(128, 48, 9), 40, 44, 136, a="col", batch=(3,), b_shared=True, bias="n", registers=True),
)
"""The same with the planes of a made in registers."""

SHIFTED_PRODUCTS = (
    # Every shift, by the remainder of k; a last line of 1 to 8 rows; both orders of b, whose rows TMA takes or not.
    *(Product(SMALL, 64 + i, 72, 65 + i, b=("row", "col")[i % 2], **_REGISTERS) for i in range(7)),
    Product(SMALL, 136, 72, 319, b="col", **_REGISTERS),
    Product(SMALL, 135, 73, 257, **_REGISTERS),
    Product(SMALL, 131, 80, 130, dtype="float16", out="float32", **_REGISTERS),
    # The other operand, so that the result is transposed; a result in columns.
    Product(SMALL, 72, 135, 131, b="col", swapped=True, **_REGISTERS),
    Product(SMALL, 73, 134, 131, a="col", b="col", swapped=True, out="float32", **_REGISTERS),
    Product(SMALL, 133, 72, 131, d="col", out="float32", **_REGISTERS),
    Product(SMALL, 133, 71, 131, d="col", offset=1, **_REGISTERS),
    # Epilogues: c, a bias of rows and of columns; split-K by the last and by slices; K passes of a copied b.
    Product(SMALL, 135, 72, 257, alpha=0.5, beta=2, bias="m", activation="relu", **_REGISTERS),
    Product(SMALL, 72, 135, 257, b="col", swapped=True, alpha=0.5, beta=2, bias="m", **_REGISTERS),
    Product(SMALL, 72, 135, 257, b="col", swapped=True, d="col", beta=1, bias="n", out="float32", **_REGISTERS),
    Product(SMALL, 135, 136, 521, splits=3, bias="m", **_REGISTERS),
    Product(SMALL, 71, 40, 1033, b="col", splits=8, beta=1, bias="m", **_REGISTERS),
    Product(SMALL, 40, 71, 1033, b="col", splits=8, swapped=True, out="float32", **_REGISTERS),
    Product(SMALL, 71, 73, 400 + 1, b="col", limit=COUNTERS + 2**16, bias="n", **_REGISTERS),
    # Shapes: several fragments and work tiles, widths, ping-pong, multicast of b.
    Product(Shape(128, 256, 3), 264, 520, 265, b="col", **_REGISTERS),
    Product(Shape(256, 96, 3), 519, 104, 265, **_REGISTERS),
    Product(Shape(128, 160, 4, cluster_m=2), 391, 168, 201, b="col", **_REGISTERS),
    Product(TURNS, 199, 136, 265, **_REGISTERS),
    Product(Shape(64, 176, 3, pingpong=True), 391, 184, 201, b="col", **_REGISTERS),
    Product(Shape(64, 80, 3, **_ONE), 135, 88, 201, b="col", **_REGISTERS),
    # tf32: every shift, a last line of 1 to 4 rows; of b either order, with rows that TMA takes or not.
    *(Product(SMALL, 65 + i, 72, 65 + i, b=("row", "col")[i % 2], dtype="tf32", **_REGISTERS) for i in range(3)),
    Product(SMALL, 136, 40, 287, b="col", dtype="tf32", out="bfloat16", **_REGISTERS),
    Product(SMALL, 72, 135, 131, b="col", dtype="tf32", swapped=True, **_REGISTERS),
    Product(SMALL, 73, 134, 131, a="col", b="col", dtype="tf32", swapped=True, out="float16", **_REGISTERS),
    Product(SMALL, 133, 71, 131, dtype="tf32", d="col", offset=1, **_REGISTERS),
    Product(SMALL, 135, 72, 131, dtype="tf32", splits=3, alpha=0.5, beta=2, bias="m", activation="relu", **_REGISTERS),
    Product(SMALL, 40, 71, 519, b="col", dtype="tf32", splits=8, swapped=True, bias="n", **_REGISTERS),
    Product(SMALL, 71, 73, 401, dtype="tf32", limit=COUNTERS + 2**16, **_REGISTERS),
    Product(Shape(128, 160, 4, cluster_m=2), 391, 168, 133, b="col", dtype="tf32", **_REGISTERS),
    Product(Shape(256, 96, 3), 519, 104, 133, dtype="tf32", **_REGISTERS),
    Product(TURNS, 199, 136, 131, dtype="tf32", **_REGISTERS),
    # tf32 of which columns are shifted: every shift, a last line of 1 to 4 columns.
    *(Product(SMALL, 65 + i, 72, 65 + j, a="col", dtype="tf32", **_REGISTERS) for i, j in ((0, 1), (1, 2), (2, 0))),
    Product(SMALL, 135, 40, 288, a="col", b="col", dtype="tf32", out="bfloat16", **_REGISTERS),
    Product(SMALL, 72, 135, 131, dtype="tf32", swapped=True, beta=2, bias="m", **_REGISTERS),
    Product(SMALL, 135, 72, 131, a="col", dtype="tf32", splits=3, d="col", activation="relu", **_REGISTERS),
    Product(SMALL, 40, 71, 519, dtype="tf32", splits=8, swapped=True, out="float16", **_REGISTERS),
    Product(SMALL, 71, 73, 401, a="col", dtype="tf32", limit=COUNTERS + 2**16, **_REGISTERS),
    Product(Shape(128, 160, 4, cluster_m=2), 391, 168, 133, a="col", b="col", dtype="tf32", **_REGISTERS),
    Product(Shape(256, 96, 3), 519, 104, 133, a="col", dtype="tf32", **_REGISTERS),
    Product(TURNS, 199, 136, 131, a="col", dtype="tf32", **_REGISTERS),
)
"""Of operands of shifted rows, for tests/test_shifted_rows.py on the host and tests/test_device.py on a card."""


@dataclass(frozen=True)
class Bf16x3Product(Product):
    """Float32 by two bfloat16 planes. Elements are sums of two small numbers, one in each plane; all sums are exact."""

    dtype: str = "bf16x3"

    def data(self, seed=0):
        a, b, *others = super().data(seed)
        rng = np.random.default_rng(seed + 1)
        return *(x + np.ldexp((x != 0) * rng.integers(-1, 2, x.shape).astype(x.dtype), -10) for x in (a, b)), *others

    def multiplied(self, a, b):
        low = [x.astype(np.float64) - x.astype(bfloat16).astype(np.float64) for x in (a, b)]
        return super().multiplied(a, b) - low[0] @ low[1]


BF16X3_PRODUCTS = (
    # Rounds of one block, of several, with tails; every order; swapped, so that the result is transposed.
    Bf16x3Product(SMALL, 64, 64, 64, b="col"),
    Bf16x3Product(SMALL, 72, 136, 264),
    Bf16x3Product(SMALL, 71, 135, 263, b="col"),
    Bf16x3Product(SMALL, 71, 135, 130, a="col"),
    Bf16x3Product(SMALL, 72, 136, 61, a="col", b="col", d="col"),
    Bf16x3Product(SMALL, 72, 136, 1, swapped=True),
    Bf16x3Product(SMALL, 135, 71, 201, a="col", b="col", swapped=True),
    # Several work tiles of a CTA, ping-pong, multicast, CTAs that share K.
    Bf16x3Product(Shape(128, 128, 3), 392, 392, 200),
    Bf16x3Product(Shape(128, 256, 4), 136, 516, 136, b="col"),
    Bf16x3Product(TURNS, 200, 136, 264, b="col"),
    Bf16x3Product(TURNS_BELOW, 200, 136, 264, b="col"),
    Bf16x3Product(Shape(64, 64, 3, cluster_k=4, **_ONE), 72, 136, 264, b="col"),
    Bf16x3Product(Shape(64, 64, 3, cluster_k=8, **_ONE), 72, 72, 513, b="col"),
    # Split-K: within a product of planes, and of more than one; by slices. Epilogues, narrow results, batches.
    Bf16x3Product(SMALL, 72, 136, 200, splits=2, alpha=0.5, beta=2, bias="m", activation="relu"),
    Bf16x3Product(SMALL, 72, 136, 520, b="col", splits=5),
    Bf16x3Product(SMALL, 72, 40, 900, b="col", splits=12),
    Bf16x3Product(SMALL, 72, 136, 136, out="bfloat16", bias="n", activation="gelu"),
    Bf16x3Product(SMALL, 71, 135, 136, out="float16", offset=1),
    # K passes; of a narrow result their sums are in the workspace.
    Bf16x3Product(SMALL, 72, 136, 300, limit=COUNTERS + 2**17, bias="n"),
    Bf16x3Product(SMALL, 72, 136, 300, limit=COUNTERS + 2**18, out="bfloat16", beta=1),
    Bf16x3Product(SMALL, 40, 44, 136, batch=(3,), alpha=0.5, beta=1),
    Bf16x3Product(SMALL, 40, 44, 136, b="col", batch=(2, 3), swapped=True),
)
"""Products of float32 by two bfloat16 planes, for tests/test_bf16x3.py on the host and tests/test_device.py."""


_SCALE_AXES = {
    "tensor": None, "row": "m", "1x128": "m", "column": "n", "128x1": "n", "128x128": "n blocks",
    "tensor x 128": None, "column blocks": "n blocks",
}  # fmt: skip
_E4M3, _E5M2 = {"dtype": "float8_e4m3fn"}, {"dtype": "float8_e5m2"}
_INT8 = {"dtype": "int8"}


@dataclass(frozen=True)
class EightBitProduct(Product):
    """Operands of 8 bits. Scales are powers of two; all sums are exact."""

    out: str | None = "float32"
    dtype_b: str | None = None
    """The dtype of b where it is another one."""
    scale_a: str | None = None
    """The granularity of a's scales: "tensor", "row", "1x128", "tensor x 128"."""
    scale_b: str | None = None
    """The granularity of b's scales: "tensor", "column", "128x1", "128x128", "column blocks"."""
    mn_major_scales: bool = False
    """Whether scales are contiguous along m (n); else along k."""
    own_scales: bool = False
    """Whether each matrix of the batch has its own scales."""

    def __str__(self):
        words = [super().__str__(), self.dtype_b, self.scale_a, self.scale_b]
        words += ["mn"] * self.mn_major_scales + ["own"] * self.own_scales
        return "-".join(filter(None, words))

    @property
    def problem(self):
        asked = super().problem
        if self.dtype_b:
            asked = replace(asked, b=replace(asked.b, dtype=as_dtype(self.dtype_b)))
        operands = {}
        for name, x in self.scales().items():
            steps = [s // 4 for s in x.strides]
            own, deep = steps[-2:] if name == "scale_a" else steps[:-3:-1]
            form = self.scale_a if name == "scale_a" else self.scale_b
            depth = "128" in form
            axis = _SCALE_AXES[form]
            batch = tuple(steps[:-2]) if self.own_scales else ()
            operands[name] = Scale(axis, own if axis else 1, depth, deep if depth else 0, batch)
        return asked.having(**operands)

    def scales(self):
        rng, blocks = np.random.default_rng(7), -(-self.k // 128)
        shapes = {
            "scale_a": {
                "tensor": (1, 1), "row": (self.m, 1), "1x128": (self.m, blocks), "tensor x 128": (1, blocks),
            }.get(self.scale_a),
            "scale_b": {
                "tensor": (1, 1), "column": (1, self.n), "128x1": (blocks, self.n),
                "128x128": (blocks, -(-self.n // 128)), "column blocks": (1, -(-self.n // 128)),
            }.get(self.scale_b),
        }  # fmt: skip
        found = {}
        for name, shape in shapes.items():
            if shape is not None:
                x = np.ldexp(np.float32(1), rng.integers(-1, 2, (*(self.batch if self.own_scales else ()), *shape)))
                by_columns = self.mn_major_scales == (name == "scale_a")
                found[name] = np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2) if by_columns else x
        return found

    def multiplied(self, a, b):
        scales, a, b = self.scales(), a.astype(np.float64), b.astype(np.float64)
        if "scale_a" in scales:
            a = a * spread(scales["scale_a"], a.shape)
        if "scale_b" in scales:
            b = b * spread(scales["scale_b"], b.shape)
        return a @ b


_WIDE = Shape(128, 192, 5, cluster_m=2)
_TALL = Shape(256, 128, 4, cluster_n=2)
EIGHT_BIT_PRODUCTS = (
    # One step, several, K remainders that TMA takes; every pair of formats; every result.
    EightBitProduct(SMALL, 64, 64, 32, b="col", **_E4M3),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E5M2, out="bfloat16"),
    EightBitProduct(SMALL, 72, 136, 400, b="col", **_E4M3, dtype_b="float8_e5m2", out="float16"),
    EightBitProduct(SMALL, 72, 136, 400, b="col", **_E4M3, dtype_b="float8_e5m2", swapped=True),
    EightBitProduct(SMALL, 72, 136, 400, b="col", **_E5M2, dtype_b="float8_e4m3fn", swapped=True, out="bfloat16"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_INT8, out="int32"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_INT8, out="int32", swapped=True),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_INT8),
    # Operands that are copied: row-major b, column-major a, odd sizes, both; in one K pass and in several.
    EightBitProduct(SMALL, 72, 136, 272, **_E4M3),
    EightBitProduct(SMALL, 71, 133, 261, a="col", b="col", **_E4M3, d="col"),
    EightBitProduct(SMALL, 71, 133, 261, **_E5M2, out="bfloat16", swapped=True, bias="m"),
    EightBitProduct(SMALL, 71, 133, 1, **_E4M3),
    EightBitProduct(SMALL, 71, 133, 261, **_INT8, out="int32", d="col"),
    EightBitProduct(SMALL, 70, 73, 900, **_E4M3, limit=COUNTERS + 2**16, scale_a="1x128", scale_b="128x1", bias="n"),
    EightBitProduct(SMALL, 70, 73, 900, **_E4M3, limit=COUNTERS + 2**17, out="bfloat16", scale_a="row", beta=2),
    # Epilogues and scales as factors of results.
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E4M3, alpha=0.5, beta=2, bias="m", activation="relu"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E4M3, scale_a="tensor", scale_b="tensor", out="bfloat16"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E4M3, scale_a="row", bias="n", activation="gelu"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E4M3, scale_a="row", scale_b="column", swapped=True, alpha=0.5),
    EightBitProduct(SMALL, 72, 137, 272, b="col", **_E4M3, scale_b="column", d="col"),
    EightBitProduct(SMALL, 72, 300, 272, b="col", **_E4M3, scale_a="row"),
    EightBitProduct(SMALL, 72, 300, 272, b="col", **_E4M3, scale_a="row", scale_b="column blocks"),
    EightBitProduct(SMALL, 72, 136, 400, b="col", **_E4M3, scale_a="tensor x 128", scale_b="column"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_E4M3, alpha=0, beta=2, scale_a="row", scale_b="column"),
    EightBitProduct(SMALL, 72, 136, 272, b="col", **_INT8, scale_a="row", scale_b="column", bias="n"),
    EightBitProduct(SMALL, 71, 136, 272, b="col", **_INT8, scale_a="row", scale_b="tensor", out="float16"),
    # Scales of blocks of K, as they are and swapped, contiguous along either side, with remainders of K and of n.
    EightBitProduct(SMALL, 72, 136, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x128"),
    EightBitProduct(SMALL, 72, 300, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x128", swapped=True),
    EightBitProduct(SMALL, 72, 133, 400, b="col", **_E5M2, scale_a="1x128", scale_b="128x1", mn_major_scales=True),
    EightBitProduct(SMALL, 72, 133, 400, b="col", **_E4M3, scale_a="1x128", scale_b="column", out="bfloat16"),
    EightBitProduct(SMALL, 72, 133, 400, b="col", **_E4M3, scale_b="128x1", swapped=True, bias="m", alpha=0.5, beta=1),
    # Shapes: two consumers and several work tiles, 256 rows, clusters, CTAs that share K; split-K, also by slices.
    EightBitProduct(Shape(128, 64, 2), 264, 136, 656, b="col", **_E4M3, scale_a="1x128", scale_b="128x1"),
    EightBitProduct(Shape(128, 64, 3, cluster_m=2), 264, 136, 400, b="col", **_E4M3),
    EightBitProduct(_WIDE, 264, 392, 784, b="col", **_E4M3, scale_a="1x128", scale_b="128x128", out="bfloat16"),
    EightBitProduct(Shape(128, 160, 3), 136, 392, 400, b="col", **_E4M3, scale_a="1x128", scale_b="128x128"),
    EightBitProduct(_TALL, 264, 264, 656, b="col", **_E5M2, scale_a="1x128", scale_b="128x128", out="bfloat16"),
    EightBitProduct(_TALL, 264, 264, 400, b="col", **_INT8, out="int32"),
    EightBitProduct(Shape(64, 64, 3, cluster_k=4, **_ONE), 72, 136, 656, b="col", **_E4M3, scale_a="1x128"),
    EightBitProduct(
        Shape(64, 64, 3, cluster_k=4, **_ONE), 72, 136, 656, b="col", **_E4M3, scale_a="1x128", scale_b="128x1",
        swapped=True,
    ),
    EightBitProduct(Shape(64, 16, 9, cluster_k=4, **_ONE), 9, 136, 1040, b="col", **_INT8, out="int32", swapped=True),
    EightBitProduct(SMALL, 72, 136, 1040, b="col", **_E4M3, splits=3, scale_a="1x128", scale_b="128x1", bias="n"),
    EightBitProduct(SMALL, 72, 136, 1040, b="col", **_INT8, splits=3, out="int32"),
    EightBitProduct(SMALL, 72, 56, 1040, b="col", **_E4M3, splits=8, scale_a="row", scale_b="column", alpha=0.5),
    EightBitProduct(SMALL, 60, 56, 1040, b="col", **_INT8, splits=8, out="int32"),
    # Batches: scales that all share, and those of each matrix.
    EightBitProduct(SMALL, 40, 72, 144, b="col", **_E4M3, batch=(3,), scale_a="row", scale_b="column"),
    EightBitProduct(SMALL, 40, 72, 272, b="col", **_E4M3, batch=(3,), scale_a="1x128", own_scales=True),
    EightBitProduct(SMALL, 40, 72, 144, **_INT8, batch=(2,), scale_a="row", own_scales=True, swapped=True),
)  # fmt: skip
"""Products of 8-bit operands, for tests/test_eight_bit.py on the host and tests/test_device_eight_bit.py on a card."""


@dataclass(frozen=True)
class Float8Result(EightBitProduct):
    """A result of 8-bit floats, of operands of 8 or 16 bits; c is bfloat16."""

    dtype: str = "float8_e4m3fn"
    out: str | None = "float8_e4m3fn"
    b: str = "col"
    scale_out: float | None = None
    amax: bool = False

    def __str__(self):
        words = [super().__str__(), f"times{self.scale_out}" if self.scale_out else "", "amax" if self.amax else ""]
        return "-".join(filter(None, words))

    @property
    def problem(self):
        asked = super().problem
        facts = {"scale_out": Scale(None) if self.scale_out else None, "amax": Scale(None) if self.amax else None}
        asked = asked.having(**{name: x for name, x in facts.items() if x is not None})
        return asked.having(c=replace(asked.out, dtype=as_dtype("bfloat16"))) if self.beta else asked

    def data(self, seed=0):
        a, b, c, bias = super().data(seed)
        return a, b, None if c is None else c.astype(bfloat16), bias

    def wrong(self, result, exact):
        largest = 448.0 if self.out == "float8_e4m3fn" else 57344.0
        return super().wrong(result, np.clip(exact * (self.scale_out or 1), -largest, largest))


_NARROW, _LINES = Shape(64, 16, 9, **_ONE), {"scale_out": 4.0, "amax": True}
_BF16 = {"dtype": "bfloat16"}
FLOAT8_RESULTS = (
    # By TMA: as it is, transposed, saturating; of both formats.
    Float8Result(SMALL, 64, 64, 32, **_LINES),
    Float8Result(SMALL, 72, 144, 272, out="float8_e5m2", scale_out=512.0, amax=True),
    Float8Result(SMALL, 80, 136, 400, swapped=True, d="col", **_LINES),
    Float8Result(SMALL, 72, 144, 400, swapped=True, dtype_b="float8_e5m2", alpha=0.5),
    Float8Result(SMALL, 80, 136, 272, d="col", scale_a="row", scale_b="column", **_LINES),
    # By warps: odd rows and columns, any address; staging rows of 16, 32 and 64 bytes.
    Float8Result(SMALL, 71, 133, 261, **_LINES),
    Float8Result(SMALL, 71, 133, 261, swapped=True, out="float8_e5m2", **_LINES),
    Float8Result(SMALL, 72, 144, 272, offset=3, amax=True),
    Float8Result(SMALL, 73, 130, 272, d="col", offset=1, **_LINES),
    Float8Result(_NARROW, 70, 37, 272, **_LINES),
    Float8Result(_NARROW, 37, 70, 272, swapped=True, **_LINES),
    Float8Result(_NARROW, 9, 144, 272, swapped=True, **_LINES),
    Float8Result(_NARROW, 70, 48, 272, **_LINES),
    Float8Result(Shape(64, 32, 5, **_ONE), 70, 45, 272, **_LINES),
    Float8Result(Shape(64, 32, 5, **_ONE), 45, 70, 272, swapped=True, **_LINES),
    Float8Result(SMALL, 1, 37, 72, **_LINES),
    # Overlapping store blocks, two consumers, several fragments, clusters, CTAs that share K.
    Float8Result(Shape(128, 160, 3), 136, 336, 272, scale_a="1x128", scale_b="128x128", **_LINES),
    Float8Result(_TALL, 264, 272, 272, **_LINES),
    Float8Result(Shape(64, 64, 3, cluster_k=4, **_ONE), 72, 144, 656, **_LINES),
    # Epilogues; split-K by the last and by slices, in pairs and one by one; K passes; batches; no K.
    Float8Result(SMALL, 71, 133, 272, alpha=0.5, beta=2, bias="n", activation="relu", **_LINES),
    Float8Result(SMALL, 71, 144, 272, beta=-1, bias="m", scale_a="row", swapped=True, **_LINES),
    Float8Result(SMALL, 72, 144, 1040, splits=3, **_LINES),
    Float8Result(SMALL, 72, 56, 1040, splits=8, bias="n", **_LINES),
    Float8Result(SMALL, 71, 55, 1040, splits=8, bias="m", swapped=True, **_LINES),
    Float8Result(SMALL, 70, 73, 900, b="row", limit=COUNTERS + 2**16, scale_a="1x128", bias="n", **_LINES),
    Float8Result(SMALL, 40, 80, 144, batch=(3,), scale_a="row", **_LINES),
    Float8Result(SMALL, 40, 80, 0, bias="n", **_LINES),
    # Of 16-bit operands, also in shifted rows.
    Float8Result(SMALL, 72, 144, 136, **_BF16, **_LINES),
    Float8Result(SMALL, 72, 133, 136, b="row", dtype="float16", out="float8_e5m2", swapped=True, **_LINES),
    Float8Result(TURNS, 200, 144, 136, **_BF16, bias="n", activation="relu", **_LINES),
    Float8Result(SMALL, 135, 72, 131, b="row", registers=True, **_BF16, **_LINES),
    Float8Result(SMALL, 72, 135, 131, registers=True, swapped=True, **_BF16, **_LINES),
)
"""Results of 8-bit floats, for tests/test_float8_results.py on the host and test_device_eight_bit.py on a card."""
