"""The variants of the kernel: what is fixed when it is compiled, and why a combination cannot be.

A :class:`Shape` is how a product is cut up, which the cost model chooses; a :class:`Form` is what the problem's
operands and epilogue demand. Together they are a :class:`Variant`: a set of macros, one compilation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

SHARED_LIMIT = 232448
"""Bytes of shared memory that a thread block may have (227 KiB)."""

INPUTS = {"bfloat16": 0, "float16": 1, "tf32": 2, "split": 3}
"""What the tensor cores multiply. "split": float32 as three planes of bfloat16."""
OUTPUTS = {"bfloat16": 0, "float16": 1, "float32": 2}
BIASES = {None: 0, "m": 1, "n": 2}
_PAIRS = 6
"""Products of planes that make one of float32."""
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}


@dataclass(frozen=True)
class Shape:
    """How the product is cut up."""

    m: int
    n: int
    stages: int
    consumers: int = 2
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    """Two consumers take tiles by turns; else they share each."""
    cluster_k: int = 1
    """Blocks of a cluster that share the k of one tile."""

    @cached_property
    def sharers(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    @cached_property
    def sharing(self) -> int:
        """Blocks of a cluster that share operands."""
        return self.cluster_m * self.cluster_n

    @cached_property
    def cluster(self) -> int:
        return self.sharing * self.cluster_k

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @cached_property
    def columns(self) -> int:
        """Output columns per CTA: n, or a slice where CTAs share K. ``OUT_N`` of config.cuh."""
        count = self.cluster_k
        while count > 1 and self.n % (16 * count):
            count //= 2
        return self.n // count

    @property
    def name(self) -> str:
        """Such as "128x256x4" (tile, stages); behind it "p" for ping-pong and the cluster, if any: "128x128x6pc2x1",
        with "k4" behind that where four blocks share k.
        """
        sharing = f"c{self.cluster_m}x{self.cluster_n}" if self.sharing > 1 else ""
        parts = f"k{self.cluster_k}" if self.cluster_k > 1 else ""
        return f"{self.m}x{self.n}x{self.stages}" + ("p" if self.pingpong else "") + sharing + parts


@dataclass(frozen=True)
class Form:
    """What operands and epilogue demand of the kernel, in the kernel's own m and n."""

    a_mn: bool
    """Neighbours along m (not k) are neighbours in memory."""
    b_mn: bool
    input: str
    output: str
    transposed: bool = False
    """Neighbours along m are neighbours in d and c."""
    tma_store: bool = True
    scaled: bool = False
    addend: str | None = None
    """The dtype of c, where beta * c is added."""
    bias: str | None = None
    bias_type: str = "float32"
    activation: str | None = None
    a_registers: bool = False
    """a goes through registers, as 32-bit elements: tf32 with neighbours along m, or float32 that is split there."""
    b_split: bool = False
    """b comes as float32 too, and is split in shared memory."""

    @property
    def plain(self) -> bool:
        """The accumulators are rounded and stored, nothing else."""
        return not (self.scaled or self.addend or self.bias or self.activation)

    @cached_property
    def planes(self) -> int:
        return 3 if self.input == "split" else 1

    @cached_property
    def input_bytes(self) -> int:
        """Of an element of a plane."""
        return 4 if self.input == "tf32" else 2

    @cached_property
    def output_bytes(self) -> int:
        return 4 if self.output == "float32" else 2

    @cached_property
    def k_bytes(self) -> int:
        """Bytes of k in a stage, of each plane: the span of the swizzle where neighbours along k are neighbours."""
        return 64 if self.input == "split" else 128

    @cached_property
    def block_k(self) -> int:
        """Elements of k in a stage."""
        return self.k_bytes // self.input_bytes

    @cached_property
    def steps(self) -> int:
        """wgmmas in a stage for each 64 rows: of 32 bytes of k, and of each product of planes."""
        return self.k_bytes // 32 * (_PAIRS if self.planes > 1 else 1)

    def tile_bytes(self, mn_major: bool, rows: int) -> int:
        """Bytes of one plane of an operand's tile in a stage: ``tile_bytes`` of smem_desc.cuh."""
        return (-(-rows // 64) * 64 if mn_major else rows) * self.k_bytes


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split: bool = False
    """k may be cut into parts."""

    @cached_property
    def chunk(self) -> int:
        """Columns of the tile that go through a staging buffer at a time: at most 128 bytes."""
        return chunk(self.shape.columns, self.form.output_bytes, self.form.addend is not None)

    @property
    def chunks(self) -> int:
        """How many of them a tile has beside each other; the last one may begin within the one before."""
        return -(-self.shape.columns // self.chunk)

    @cached_property
    def a_bytes(self) -> int:
        """Of a stage."""
        form, rows = self.form, self.shape.m
        return 4 * rows * form.block_k if form.a_registers else form.planes * form.tile_bytes(form.a_mn, rows)

    @cached_property
    def b_bytes(self) -> int:
        form, columns = self.form, self.shape.n
        if form.b_split:
            return 4 * (-(-columns // 32) * 32 if form.b_mn else columns) * form.block_k
        return form.planes * form.tile_bytes(form.b_mn, columns)

    @property
    def sets_bytes(self) -> int:
        """Of two sets of planes of b, where it is split in shared memory."""
        return 2 * self.form.planes * self.form.tile_bytes(False, self.shape.n) if self.form.b_split else 0

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.b_bytes

    @property
    def ring_bytes(self) -> int:
        """Of all stages, and of b's planes beside them."""
        return self.shape.stages * self.stage_bytes + self.sets_bytes

    @cached_property
    def _unstaged(self) -> int:
        """Bytes of shared memory but for staging buffers, as smem_layout.cuh adds them up: ring, barriers, flags, and
        1024 to align the base.
        """
        shape = self.shape
        flags = (12 if shape.pingpong else 4) * shape.consumers + (8 if shape.cluster_k > 1 else 0)
        marks = 64 * shape.sharers * shape.cluster_k if self.form.b_split else 0
        return self.ring_bytes + 16 * shape.stages + marks + flags + 1024

    @cached_property
    def _staged(self) -> int:
        """Of a staging buffer of each consumer."""
        return self.shape.consumers * 64 * self.chunk * self.form.output_bytes if self.form.tma_store else 0

    @cached_property
    def staging(self) -> int:
        """Staging buffers of a warpgroup: two where there is room."""
        return 2 if self._unstaged + 2 * self._staged <= SHARED_LIMIT else 1

    @property
    def shared_bytes(self) -> int:
        return self._unstaged + self.staging * self._staged

    @cached_property
    def refusal(self) -> str | None:
        """Why there can be no such kernel; None when it can be compiled."""
        shape, form = self.shape, self.form
        if shape.consumers not in (1, 2, 3) or shape.sharing not in (1, 2, 4, 8) or shape.cluster_k not in (1, 2, 4, 8):
            return "one to three consumer warpgroups, clusters of one, two, four or eight"
        if form.b_split and (not form.a_registers or form.planes == 1 or shape.sharing > 1):
            return "b is split in shared memory where a is in registers, by blocks that share no operand"
        apart = not form.b_split and (self.split or form.planes > 1)
        if shape.cluster_k > 1 and (shape.pingpong or apart):
            return "blocks that share k take no turns, have no other parts of it, and no operands split beforehand"
        if shape.cluster > 8:
            return "a cluster has at most eight blocks"
        if shape.cluster_k > 1 and self.ring_bytes < shape.cluster_k * shape.m * shape.columns * 4:
            return "the ring has no room for the sums of the blocks that share k"
        if shape.consumers == 3 and (form.planes > 1 or form.a_registers):
            return "three consumer warpgroups have registers for 16-bit or tf32 elements in shared memory only"
        if shape.pingpong and shape.consumers != 2:
            return "ping-pong takes two consumer warpgroups"
        if shape.pingpong and form.planes > 1:
            return "split operands: one consumer is to multiply while the other one adds, not to wait for its turn"
        if shape.m % (64 * shape.sharers) or shape.m <= 0:
            return f"{shape.m} rows are no multiple of the 64 of each of {shape.sharers} consumer warpgroups"
        if shape.n % 8 or not 16 <= shape.n <= 256:
            return f"{shape.n} columns: wgmma takes multiples of 8, and the epilogue from 16 up to 256"
        if shape.n % 16 and (shape.cluster_k > 1 or form.addend):
            return f"{shape.n} columns: slices, and chunks beside c, are multiples of 16"
        registers = shape.m // shape.sharers * shape.n // 128
        if registers > 96 and shape.consumers == 3:
            return f"{registers} accumulators a thread do not fit into the registers of each of three consumers"
        if registers * (2 if form.planes > 1 else 1) > 192:  # planes have those of a stage besides
            return f"{registers} accumulators a thread do not fit into its registers"
        # Beside 16 of a for each 64 rows; or of planes 24, and the sums of two steps.
        crowded = shape.cluster_n > 1 or (self.split and (shape.pingpong or not form.tma_store))
        if form.a_registers and registers > (48 if form.planes > 1 else 96 if crowded else 128):
            return f"beside {registers} accumulators a thread has no registers for elements of a"
        if registers > 64 and form.planes > 1 and self.split:
            return f"beside twice {registers} accumulators a thread has no registers for parts of k"
        if registers > 32 and shape.cluster_k > 1 and self.split:
            return f"beside {registers} accumulators a thread has no registers for parts of k that a cluster shares"
        if registers > 96 and shape.cluster_k > 1:
            return f"beside {registers} accumulators a thread has no registers for those of the blocks that share k"
        if registers > 128 and (self.split or not (form.plain and form.tma_store)):
            return f"beside {registers} accumulators a thread has registers for the plainest epilogue only"
        smooth = form.activation in ("gelu", "silu")
        many = registers > (88 if shape.consumers == 3 else 96) and shape.m > 128
        if many and form.transposed and form.addend and form.bias == "m" and smooth:
            return f"beside {registers} accumulators a thread has no registers for this epilogue"
        more = shape.sharing > 1 or (self.split and form.addend)
        if registers > 88 and shape.consumers == 3 and more and smooth:
            what = "a cluster" if shape.sharing > 1 else "parts of k and c"
            return f"beside {registers} accumulators and {what} a thread has no registers for this activation"
        if shape.stages < 2:
            return "a ring has at least two stages"
        if form.a_registers and form.planes == 1 and not (form.input == "tf32" and form.a_mn):
            return "wgmma takes this a from shared memory"
        if form.input == "tf32" and ((form.a_mn and not form.a_registers) or form.b_mn):
            return "wgmma takes tf32 operands only where neighbours along k are neighbours in memory"
        # Each block of a cluster loads its part of the tile they share: in whole swizzle atoms of 8 rows.
        if (shape.cluster_m > 1 and shape.n % (8 * shape.cluster_m)) or shape.m % (8 * shape.cluster_n):
            return "the tile that a cluster shares is not divisible"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, a block has at most {SHARED_LIMIT}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        """The macros that config.cuh turns into constants."""
        shape, form = self.shape, self.form
        return {
            "GEMM_BLOCK_M": shape.m, "GEMM_BLOCK_N": shape.n, "GEMM_NUM_STAGES": shape.stages,
            "GEMM_NUM_CONSUMERS": shape.consumers, "GEMM_PINGPONG": int(shape.pingpong),
            "GEMM_CLUSTER_M": shape.cluster_m, "GEMM_CLUSTER_N": shape.cluster_n, "GEMM_CLUSTER_K": shape.cluster_k,
            "GEMM_MN_MAJOR_A": int(form.a_mn), "GEMM_MN_MAJOR_B": int(form.b_mn), "GEMM_INPUT": INPUTS[form.input],
            "GEMM_REGISTERS_A": int(form.a_registers), "GEMM_SPLIT_PLANES_B": int(form.b_split),
            "GEMM_OUTPUT": OUTPUTS[form.output], "GEMM_TRANSPOSED_D": int(form.transposed),
            "GEMM_TMA_STORE": int(form.tma_store), "GEMM_STORE_BLOCK_N": self.chunk,
            "GEMM_NUM_STORE_STAGES": self.staging, "GEMM_SPLIT_K": int(self.split),
            "GEMM_HAS_ALPHA": int(form.scaled), "GEMM_HAS_ADDEND": int(form.addend is not None),
            "GEMM_ADDEND_TYPE": OUTPUTS[form.addend] if form.addend else 0, "GEMM_BIAS": BIASES[form.bias],
            "GEMM_BIAS_TYPE": OUTPUTS[form.bias_type] if form.bias else 0,
            "GEMM_ACTIVATION": ACTIVATIONS[form.activation], "GEMM_SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


@cache
def chunk(columns: int, nbytes: int, added: bool) -> int:
    """Columns, of elements of so many bytes, that are stored at a time (:attr:`Variant.chunk`).

    They need not divide the tile's: the last chunk may begin within the one before, and to store twice what both have
    costs less than many narrow chunks. The syncs of one take about as long as storing 16 columns. Not beside c, which
    is ``added`` and may lie where d does: what was stored must not be added again.
    """
    widths = [x for x in (16, 32, 64) if x <= columns and x * nbytes <= 128 and not (added and columns % x)]
    return min(widths, key=lambda x: -(-columns // x) * (x + 16), default=16)


@cache
def variant(shape: Shape, form: Form, split: bool) -> Variant:
    """One object for each: what it knows of itself is found out once, and choosing asks hundreds of them."""
    return Variant(shape, form, split)
