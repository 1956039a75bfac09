"""The variants of the kernel: their compile-time constants, and the reasons against the combinations that are refused.

A :class:`Shape` is the tiling of a product, which the cost model chooses. A :class:`Form` is what the operands and the
epilogue of a problem require. Together they are a :class:`Variant`: one set of macros, one compilation. Names are those
of kernels/config.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from gemmhub.epilogues import EPILOGUES
from gemmhub.kit import epilogue_source

SHARED_LIMIT = 232448
"""Largest shared memory of a CTA, in bytes (227 KiB)."""

F16X3 = "f16x3"
"""Input of float32 that is split into two scaled float16 planes."""
BF16X3 = "bf16x3"
"""Input of float32 that is split into two bfloat16 planes, for the precision of that name."""
FLOAT8 = {"e4m3.e4m3": 6, "e4m3.e5m2": 7, "e5m2.e4m3": 8, "e5m2.e5m2": 9}
"""Number of each input of 8-bit floats: the formats of the kernel's a and b."""
INT8 = "s8.s8"
"""Input of 8-bit integers."""
EIGHT_BIT_DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "s8": "int8"}
"""Dtypes of 8-bit operands by their formats, of which the names of inputs consist."""
EIGHT_BIT = (*FLOAT8, INT8)
"""The inputs of 8-bit operands."""
INPUTS = {"bfloat16": 0, "float16": 1, "tf32": 2, "split": 3, F16X3: 4, BF16X3: 5, **FLOAT8, INT8: 10}
"""Number of each input of the tensor cores. Float32 is split into three bfloat16 planes ("split"), two scaled float16
planes (:data:`F16X3`), or two bfloat16 planes."""
OUTPUTS = {"bfloat16": 0, "float16": 1, "float32": 2}
"""Number of each element type of d, c and the bias."""
INT32 = "int32"
"""Dtype of d where the sums of 8-bit integers are stored as they are."""
FLOAT8_RESULTS = {"float8_e4m3fn": 4, "float8_e5m2": 5}
"""Number of each dtype of d of 8-bit floats."""
RESULTS = {**OUTPUTS, INT32: 3, **FLOAT8_RESULTS}
"""Number of each dtype of d."""
SCALES = {None: 0, "results": 1, "blocks": 2}
"""Number of each use of quantization scales: as factors of results, or of the sums of each block of K."""
BIASES = {None: 0, "m": 1, "n": 2}
DIVIDED = {None: 0, "m": 1, "n": 2, "k": 3}
"""Number of each dimension that groups divide, in the kernel's terms."""
BY_ROWS = "f16x3 by rows"
"""Scheme of float16 planes where consumers split the rows of a."""
SHIFTED = "shifted rows"
"""Scheme of 16-bit elements where a goes through registers, as TMA cannot take its rows as they are."""
SHIFTED_TF32 = "shifted rows of tf32"
"""The same of tf32 elements, also of those that are contiguous along M."""
FLOAT8_INPUTS = frozenset({"bfloat16", "float16", *FLOAT8})
"""Inputs that have results of 8-bit floats."""
_PLANES = {"split": 3, F16X3: 2}
"""Planes of an operand in a stage."""
_PLANE_PRODUCTS = {"split": 6, F16X3: 3}
"""Products of planes that emulate one float32 product."""
ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu_squared", "leaky_relu", "hardswish",
)  # fmt: skip
"""The activations that all kernels are compiled with: names of :data:`gemmhub.epilogues.EPILOGUES`. Another one is
compiled into the kernels of its own products."""


def activations(activation: str | None) -> tuple[str, ...]:
    """Return the activations in the source of a kernel for ``activation``, in the order of their numbers."""
    return epilogue_source.among(ACTIVATIONS, activation)


GATED = ("swiglu", "geglu", "swiglu_interleaved")
"""The gated epilogues that the kernels for matrices have: each multiplies by one of :data:`ACTIVATIONS`."""
GATES = {None: 0, "halves": 1, "interleaved": 2}
"""Number of each place of the two columns of a pair (:attr:`gemmhub.epilogues.Epilogue.gate`)."""


def number(activation: str | None) -> int:
    """Return the number of an activation, or of that of a gate, in activations.cuh; 0 for none."""
    if activation in GATED:
        expression = EPILOGUES[activation].expression
        activation = next(x for x in ACTIVATIONS if EPILOGUES[x].expression == expression)
    return epilogue_source.numbers(activations(activation))[activation]


@dataclass(frozen=True)
class Shape:
    """The tiling of a product: tile, stages, consumer warpgroups and cluster of a CTA."""

    m: int
    """Rows of a CTA's tile: ``BLOCK_M``."""
    n: int
    """Columns of a CTA's tile: ``BLOCK_N``."""
    stages: int
    """Stages of the ring between producer and consumers."""
    consumers: int = 2
    """Consumer warpgroups of a CTA."""
    cluster_m: int = 1
    """CTAs of a cluster along M, which share tiles of b by multicast."""
    cluster_n: int = 1
    """CTAs of a cluster along N, which share tiles of a by multicast."""
    pingpong: bool = False
    """Whether each of two consumer warpgroups has work tiles of its own (ping-pong); else all share each work tile."""
    cluster_k: int = 1
    """CTAs of a cluster that share the K of one tile."""

    @cached_property
    def warpgroups_per_tile(self) -> int:
        """Consumer warpgroups that share a work tile."""
        return 1 if self.pingpong else self.consumers

    @cached_property
    def num_multicast(self) -> int:
        """CTAs of a cluster that multicast operands to each other."""
        return self.cluster_m * self.cluster_n

    @cached_property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.num_multicast * self.cluster_k

    @property
    def num_threads(self) -> int:
        """Threads of a CTA: a producer warpgroup and the consumers."""
        return 128 * (1 + self.consumers)

    @cached_property
    def out_n(self) -> int:
        """Output columns per CTA: n, or a slice of n where CTAs share K."""
        count = self.cluster_k
        while count > 1 and self.n % (16 * count):
            count //= 2
        return self.n // count

    @property
    def name(self) -> str:
        """The name of the shape: "128x256x4" is a tile of 128 x 256 with four stages.

        A suffix "p" marks ping-pong, "c2x1" a cluster of 2 x 1 tiles, "k4" four CTAs that share K: "128x128x6pc2x1".
        """
        multicast = f"c{self.cluster_m}x{self.cluster_n}" if self.num_multicast > 1 else ""
        shared_k = f"k{self.cluster_k}" if self.cluster_k > 1 else ""
        return f"{self.m}x{self.n}x{self.stages}" + ("p" if self.pingpong else "") + multicast + shared_k


@dataclass(frozen=True)
class Form:
    """The requirements of operands and epilogue on the kernel, in the kernel's own m and n."""

    mn_major_a: bool
    """Whether a is contiguous along M; else along K."""
    mn_major_b: bool
    """Whether b is contiguous along N; else along K."""
    input: str
    """The format that the tensor cores multiply: a key of :data:`INPUTS`."""
    output: str
    """The dtype of d."""
    transposed_d: bool = False
    """Whether d and c are contiguous along M; else along N."""
    tma_store: bool = True
    """Whether TMA stores d from shared memory; else warps do, by 16 bytes a lane."""
    addend: str | None = None
    """The dtype of c where beta * c is added; else None."""
    bias: str | None = None
    """The axis of the bias, "m" or "n"; None where there is no bias."""
    bias_type: str = "float32"
    """The dtype of the bias."""
    activation: str | None = None
    """The activation: one of :data:`ACTIVATIONS` or :data:`GATED`, or a registered one; None for none."""
    registers_a: bool = False
    """Whether a goes through registers: tf32 that is contiguous along M, float32 that is split there, or 16-bit or
    tf32 elements in rows or columns that TMA cannot take as they are.
    """
    split_planes_b: bool = False
    """Whether b is float32 in shared memory too, and is split into planes there."""
    scales: str | None = None
    """The use of the quantization scales of 8-bit operands, a key of :data:`SCALES`; None where there are none."""
    shifted_columns: bool = False
    """Whether a is tf32 that is contiguous along M, through registers, in columns that TMA cannot take as they are."""
    rescaled: bool = False
    """Whether a is rescaled while it is split in registers, after the float16 split of a or b was rejected."""

    stores_before: bool = False
    """Whether what the activation is applied to is stored besides, in the dtype of d (``pre_activation=``)."""
    divided: str | None = None
    """The dimension that groups divide, a key of :data:`DIVIDED`; None where there are no groups."""
    symmetric: bool = False
    """Whether d is symmetric: one triangle is computed, and mirrored (kernels/mirror.cuh)."""

    @property
    def plain_epilogue(self) -> bool:
        """Whether the epilogue only multiplies by alpha, rounds and stores the accumulators."""
        return not (self.addend or self.bias or self.activation or self.scales == "results" or self.stores_before)

    @property
    def gate(self) -> str | None:
        """The place of the two columns of a pair, a key of :data:`GATES`; None where the activation is not gated."""
        return None if self.activation is None else EPILOGUES[self.activation].gate

    @property
    def arity(self) -> int:
        """Columns of the product for each column of the result: 2 where it is gated."""
        return 1 if self.gate is None else 2

    @property
    def stores_by_warps(self) -> bool:
        """Whether warps store a matrix: d, or what the activation is applied to."""
        return not self.tma_store or self.stores_before

    @property
    def one_by_one(self) -> bool:
        """Whether each sum is one result, so that CTAs may finish any part of a tile's sums."""
        return self.gate is None and not self.stores_before

    @property
    def smooth_activation(self) -> bool:
        """Whether the activation has to be evaluated, in several instructions, as those with exponentials are."""
        return self.activation is not None and not EPILOGUES[self.activation].arithmetic

    @cached_property
    def num_planes(self) -> int:
        """Planes of an operand in a stage."""
        return _PLANES.get(self.input, 1)

    @cached_property
    def stored_planes(self) -> int:
        """Planes of an operand in memory."""
        return 2 if self.input == BF16X3 else self.num_planes

    @cached_property
    def plane_products(self) -> int:
        """Passes of the main loop through K: with two bfloat16 planes lo * hi, hi * lo and hi * hi; else one."""
        return 3 if self.input == BF16X3 else 1

    @cached_property
    def shifted_rows(self) -> bool:
        """Whether a goes through registers in rows that TMA cannot take as they are (kernels/shifted_rows.cuh)."""
        return self.registers_a and (
            self.input in ("bfloat16", "float16") or (self.input == "tf32" and not self.mn_major_a)
        )

    @property
    def shifted(self) -> bool:
        """Whether TMA cannot take the rows or columns of a as they are, and the kernel reads them in place."""
        return self.shifted_rows or self.shifted_columns

    @property
    def letters(self) -> str:
        """Letters of a candidate's name (:func:`letters`)."""
        return letters(self.input, self.registers_a, self.split_planes_b)

    @property
    def scheme(self) -> str:
        """The input; another name for float16 planes and shifted rows of an a through registers: costs differ. All
        8-bit floats have one name.
        """
        if self.float8:
            return "float8"
        if self.shifted:
            return SHIFTED_TF32 if self.input == "tf32" else SHIFTED
        return BY_ROWS if self.input == F16X3 and self.registers_a else self.input

    @property
    def sets_of_sums(self) -> int:
        """Sets of accumulators of a thread: of split operands there are sums that are yet to be promoted."""
        return {"split": 2, F16X3: 3}.get(self.input, 1)

    @cached_property
    def float8(self) -> bool:
        """Whether operands are 8-bit floats, whose sums are promoted (kernels/eight_bit.cuh)."""
        return self.input in FLOAT8

    @cached_property
    def only_k_major(self) -> bool:
        """Whether wgmma reads operands from shared memory only where they are contiguous along K."""
        return self.input == "tf32" or self.input_bytes == 1

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of an element of a plane."""
        return 4 if self.input == "tf32" else 1 if self.float8 or self.input == INT8 else 2

    @cached_property
    def output_bytes(self) -> int:
        """Bytes of an element of d."""
        return 4 if self.output in ("float32", INT32) else 1 if self.output in FLOAT8_RESULTS else 2

    @property
    def stored_bytes(self) -> int:
        """Bytes that are stored for an element of d, with what the activation is applied to."""
        return self.output_bytes * (2 if self.stores_before else 1)

    @property
    def addend_bytes(self) -> int:
        """Bytes of an element of c; 0 where there is none."""
        return 0 if self.addend is None else 4 if self.addend == "float32" else 2

    @cached_property
    def block_k_bytes(self) -> int:
        """Bytes along K in a stage, of each plane: the span of the swizzle of a K-major operand."""
        return 64 if self.num_planes > 1 else 128

    @cached_property
    def block_k(self) -> int:
        """Elements along K in a stage."""
        return self.block_k_bytes // self.input_bytes

    @cached_property
    def wgmmas_per_stage(self) -> int:
        """wgmmas of a stage for each 64-row fragment: one for each 32 bytes of K and each product of planes."""
        return self.block_k_bytes // 32 * _PLANE_PRODUCTS.get(self.input, 1)

    def tile_bytes(self, mn_major: bool, rows: int) -> int:
        """Return the bytes of one plane of an operand's tile in a stage: ``tile_bytes`` of smem_desc.cuh."""
        return (-(-rows // 64) * 64 if mn_major else rows) * self.block_k_bytes


def letters(input_type: str, registers_a: bool, split_planes_b: bool) -> str:
    """Return the letters of a candidate's name: "h" float16 planes, "x" two bfloat16 planes, "r" a through registers,
    "s" b split in shared memory. ``input_type``: the form's input.
    """
    return {F16X3: "h", BF16X3: "x"}.get(input_type, "") + "r" * registers_a + "s" * split_planes_b


form_of = lru_cache(maxsize=1024)(Form)
"""One object for each form: its cached properties are computed once, and every lowering has one."""


@dataclass(frozen=True)
class Variant:
    """One compilation of the kernel."""

    shape: Shape
    form: Form
    split_k: bool = False
    """Whether the kernel has split-K."""

    @cached_property
    def store_block_n(self) -> int:
        """Columns of a store block: what a staging buffer holds, at most 128 bytes wide."""
        return store_block_n(self.out_columns, self.form.output_bytes, self.form.addend is not None)

    @property
    def out_columns(self) -> int:
        """Columns of d that a CTA has."""
        return self.shape.out_n // self.form.arity

    @property
    def num_store_blocks(self) -> int:
        """Store blocks beside each other in a tile; the last one may overlap the one before."""
        return -(-self.out_columns // self.store_block_n)

    @cached_property
    def a_bytes(self) -> int:
        """Bytes of a in a stage."""
        form, rows = self.form, self.shape.m
        if form.shifted:
            return (form.block_k_bytes + 16) * rows
        return 4 * rows * form.block_k if form.registers_a else form.num_planes * form.tile_bytes(form.mn_major_a, rows)

    @cached_property
    def b_bytes(self) -> int:
        """Bytes of b in a stage."""
        form, columns = self.form, self.shape.n
        if form.split_planes_b:
            return 4 * (-(-columns // 32) * 32 if form.mn_major_b else columns) * form.block_k
        return form.num_planes * form.tile_bytes(form.mn_major_b, columns)

    @property
    def plane_buffer_bytes(self) -> int:
        """Bytes of the two buffers of b's planes where b is split in shared memory."""
        return 2 * self.form.num_planes * self.form.tile_bytes(False, self.shape.n) if self.form.split_planes_b else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.a_bytes + self.b_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of all stages and of the buffers of b's planes."""
        return self.shape.stages * self.stage_bytes + self.plane_buffer_bytes

    @cached_property
    def _unstaged(self) -> int:
        """Bytes of shared memory without staging buffers, as smem_layout.cuh adds them up: ring, barriers, flags, and
        1024 to align the base.
        """
        shape = self.shape
        flags = (12 if shape.pingpong else 4) * shape.consumers + (8 if shape.cluster_k > 1 else 0)
        others = 64 * shape.warpgroups_per_tile * shape.cluster_k if self.form.split_planes_b else 0  # marks
        if self.form.float8:  # what orders two consumers, and scales
            others = 8 * (shape.consumers == 2)
            others += 8 * (shape.consumers * shape.n + shape.m) * (self.form.scales == "blocks")
        if self.form.input == F16X3:  # scales, and what orders two consumers
            others = 8 * (shape.consumers * shape.n + shape.m)
            others += 16 + 4 * shape.stages if self.form.registers_a else 8 * (shape.consumers == 2)
        return self.ring_bytes + 16 * shape.stages + others + flags + 1024

    @cached_property
    def _staged(self) -> int:
        """Bytes of one staging buffer for each consumer."""
        return self.shape.consumers * 64 * self.store_block_n * self.form.output_bytes

    @cached_property
    def num_store_stages(self) -> int:
        """Staging buffers of a consumer warpgroup: two where they fit."""
        return 2 if self._unstaged + 2 * self._staged <= SHARED_LIMIT else 1

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory of a launch."""
        return self._unstaged + self.num_store_stages * self._staged

    @cached_property
    def refusal(self) -> str | None:
        """The reason why there is no such kernel; None where it can be compiled."""
        shape, form = self.shape, self.form
        if (
            shape.consumers not in (1, 2)
            or shape.num_multicast not in (1, 2, 4, 8)
            or shape.cluster_k not in (1, 2, 4, 8)
        ):
            return (
                f"{shape.consumers} consumer warpgroups, {shape.num_multicast} CTAs that multicast, {shape.cluster_k} "
                "that share K: allowed are 1 or 2 warpgroups and 1, 2, 4 or 8 CTAs"
            )
        if form.split_planes_b and (not form.registers_a or form.num_planes == 1 or shape.num_multicast > 1):
            return "b is split in shared memory only where a is split in registers, and without multicast"
        separate = not form.split_planes_b and (self.split_k or form.num_planes > 1)
        if shape.cluster_k > 1 and (shape.pingpong or separate):
            return "CTAs that share K exclude ping-pong, split-K and operands that are split beforehand"
        if form.gate and (
            form.addend or shape.cluster_k > 1 or form.registers_a or form.num_planes > 1 or form.divided == "n"
        ):
            return "gates exclude c, CTAs that share K, planes, operands through registers, and groups of columns"
        if form.gate and (shape.n % 32 or (form.gate == "halves" and form.mn_major_b and shape.n % 128)):
            return f"{shape.n} columns: a gate takes multiples of 32, where halves of b are contiguous along N of 128"
        if form.gate == "halves" and not form.mn_major_b and shape.n % (16 * shape.cluster_m):
            return f"half of {shape.n} columns does not divide into 8-row atoms for each CTA of the multicast"
        if form.stores_before and (form.gate or form.divided or form.output == INT32):
            return "what the activation is applied to is stored without a gate, groups and int32 results"
        if form.symmetric and (form.shifted or form.transposed_d or form.divided or form.input_bytes == 1):
            return "symmetric results exclude shifted rows, transposed results, groups and 8-bit operands"
        if form.symmetric and (form.bias or form.activation or form.stores_before):
            return "symmetric results have no bias and no activation"
        if form.symmetric and self.num_store_stages == 1:
            return "there is no room for a second staging buffer, which symmetric results take"
        copied_planes = form.stored_planes > 1 and not form.split_planes_b
        if form.divided and (self.split_k or shape.cluster_k > 1 or form.shifted or copied_planes):
            return "groups exclude split-K, CTAs that share K, planes in memory, and shifted rows"
        if (form.divided == "m" and form.mn_major_a) or (form.divided == "n" and form.mn_major_b):
            return "an operand whose rows the groups divide is contiguous along K"
        if form.divided == "k" and not (form.mn_major_a and form.mn_major_b):
            return "operands whose K the groups divide are contiguous along M and N"
        if shape.cluster_size > 8:
            return f"a cluster of {shape.cluster_size} CTAs: at most 8 are allowed"
        if shape.cluster_k > 1 and self.ring_bytes < shape.cluster_k * shape.m * shape.out_n * 4:
            return "the partial sums of the CTAs that share K do not fit into the ring"
        if shape.pingpong and shape.consumers != 2:
            return f"ping-pong with {shape.consumers} consumer warpgroups: it takes 2"
        if shape.pingpong and (form.num_planes > 1 or form.float8):
            what = "8-bit floats" if form.float8 else "split operands"
            return f"ping-pong excludes {what}: while one consumer adds, the other must multiply"
        if shape.m % (64 * shape.warpgroups_per_tile) or shape.m <= 0:
            return f"{shape.m} rows: allowed are multiples of 64 for each of {shape.warpgroups_per_tile} warpgroups"
        if shape.n % 16 or not 16 <= shape.n <= 256:
            return f"{shape.n} columns: allowed are multiples of 16 from 16 to 256"
        registers = shape.m // shape.warpgroups_per_tile * shape.n // 128
        of_stage = form.float8 * shape.n // 2  # the sums of a stage, of one fragment
        if form.float8 and self.split_k and registers + of_stage > 160:
            return f"with {registers} accumulators of 8-bit floats a thread has no registers for split-K"
        if registers * form.sets_of_sums + of_stage > 192:  # split operands have a second set, for the sums of a stage
            return f"{registers} accumulators per thread exceed its registers"
        # Elements of a take 16 registers for each 64-row fragment; planes take 24, and the sums of two steps.
        crowded = shape.cluster_n > 1 or form.stores_before
        crowded |= self.split_k and (shape.pingpong or form.stores_by_warps)
        by_rows = form.scheme == BY_ROWS
        if by_rows and (form.addend or shape.num_multicast > 1 or shape.m > 64 * shape.consumers):
            return "a split into float16 planes in registers excludes c, multicast and more than 64 rows a consumer"
        if by_rows and self.split_k and form.stores_by_warps and not form.plain_epilogue:
            return "a split into float16 planes in registers leaves none for split-K with this epilogue by warps"
        limit = 56 if by_rows else 48 if form.num_planes > 1 else 96 if crowded else 128
        if form.registers_a and registers > limit:
            return f"with {registers} accumulators a thread has no registers for elements of a"
        if form.scheme == SHIFTED_TF32 and self.split_k and form.addend and registers > 80:
            return f"with {registers} accumulators and shifted rows of tf32 a thread has no registers for split-K and c"
        if (
            registers > (48 if by_rows else 32 if form.sets_of_sums == 3 else 64)
            and form.num_planes > 1
            and self.split_k
        ):
            return f"with twice {registers} accumulators a thread has no registers for split-K"
        multicast = shape.num_multicast > 1
        if form.sets_of_sums == 3 and registers > 56 and multicast + bool(form.addend) + form.stores_by_warps > 1:
            return f"with 3 x {registers} accumulators only one is possible: multicast, c, or stores without TMA"
        if form.stores_before and form.sets_of_sums == 3 and registers > (48 if form.addend else 56):
            return f"with 3 x {registers} accumulators a thread has no registers to finish a tile twice"
        if registers > 32 and shape.cluster_k > 1 and self.split_k:
            return f"with {registers} accumulators a thread has no registers for split-K in a cluster that shares K"
        if registers > 96 and shape.cluster_k > 1:
            return f"with {registers} accumulators a thread has no registers for those of the CTAs that share K"
        if registers > 96 and form.input == INT8 and (self.split_k or not form.plain_epilogue):
            return f"with {registers} accumulators of integers a thread has registers for the plain epilogue only"
        few = registers <= 64 and not form.stores_by_warps
        if form.input == INT8 and self.split_k and shape.consumers > 1 and not (form.plain_epilogue or few):
            return (
                f"with {registers} accumulators of integers and split-K a thread has registers for the plain epilogue"
            )
        by_warps = form.stores_by_warps and form.output == "float32"
        if form.symmetric and self.split_k and registers > (32 if form.num_planes > 1 else 64):
            return f"with {registers} accumulators a thread has no registers for split-K of a symmetric result"
        if registers > 128 and (self.split_k or by_warps or not form.plain_epilogue):
            return f"with {registers} accumulators a thread has registers for the plain epilogue only"
        evaluated = form.activation not in (None, "relu")
        if registers > 96 and shape.m > 128 and form.transposed_d and form.addend and form.bias == "m" and evaluated:
            return f"with {registers} accumulators a thread has no registers for this epilogue"
        other_addend = form.addend_bytes not in (0, form.output_bytes)  # which threads load element by element
        if registers > 96 and self.split_k and other_addend and evaluated:
            return f"with {registers} accumulators a thread has no registers for split-K and a c of another size"
        if shape.stages < 2:
            return f"{shape.stages} stages: at least 2 are needed"
        if form.shifted_rows and form.mn_major_a:
            return "shifted rows of a are contiguous along K"
        if form.shifted and (form.tma_store or shape.cluster_n > 1 or shape.cluster_k > 1):
            return "shifted rows of a exclude TMA's stores, multicast of a and shared K"
        if form.shifted_columns and not (form.input == "tf32" and form.mn_major_a and form.registers_a):
            return "only columns of tf32 are shifted, where a is contiguous along M and goes through registers"
        if form.input == BF16X3 and form.registers_a:
            return "two bfloat16 planes are made by a pre-pass: no operand goes through registers"
        if form.input_bytes == 1 and (form.mn_major_a or form.mn_major_b or form.registers_a):
            return "wgmma reads 8-bit operands from shared memory only where they are contiguous along K"
        if form.scales == "blocks" and not form.float8:
            return "only sums of 8-bit floats are scaled by blocks of K"
        if form.output in FLOAT8_RESULTS and (form.gate or form.stores_before or form.symmetric):
            return "results of 8-bit floats exclude gates, what the activation is applied to, and symmetric results"
        if form.output in FLOAT8_RESULTS and form.input not in FLOAT8_INPUTS:
            return "8-bit floats are results of 16-bit operands and of 8-bit floats"
        more = bool(form.addend) or not (form.float8 or form.plain_epilogue)
        if form.output in FLOAT8_RESULTS and more and registers > 96:
            return f"with {registers} accumulators and a result of 8-bit floats a thread has no registers for more"
        many = registers + of_stage > (128 if form.float8 else 80) or (form.addend and shape.num_multicast > 1)
        if form.output in FLOAT8_RESULTS and self.split_k and many:
            return f"with {registers} accumulators and a result of 8-bit floats a thread has no registers for split-K"
        if form.output == INT32 and not (form.input == INT8 and form.plain_epilogue):
            return "int32 results are the sums of 8-bit integers, without an epilogue"
        if form.input == "tf32" and ((form.mn_major_a and not form.registers_a) or form.mn_major_b):
            return "wgmma reads tf32 from shared memory only where it is contiguous along K"
        # Each CTA of a multicast loads its part of the shared tile, in whole swizzle atoms of 8 rows.
        if (shape.cluster_m > 1 and shape.n % (8 * shape.cluster_m)) or shape.m % (8 * shape.cluster_n):
            return f"a {shape.m} x {shape.n} tile does not divide into 8-row atoms for each CTA of the multicast"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory: a CTA has at most {SHARED_LIMIT}"
        return None

    @property
    def macros(self) -> dict[str, int]:
        """The macros that kernels/config.cuh turns into constants."""
        shape, form = self.shape, self.form
        return {
            "GEMM_BLOCK_M": shape.m, "GEMM_BLOCK_N": shape.n, "GEMM_NUM_STAGES": shape.stages,
            "GEMM_NUM_CONSUMERS": shape.consumers, "GEMM_PINGPONG": int(shape.pingpong),
            "GEMM_CLUSTER_M": shape.cluster_m, "GEMM_CLUSTER_N": shape.cluster_n, "GEMM_CLUSTER_K": shape.cluster_k,
            "GEMM_MN_MAJOR_A": int(form.mn_major_a), "GEMM_MN_MAJOR_B": int(form.mn_major_b),
            "GEMM_INPUT": INPUTS[form.input],
            "GEMM_REGISTERS_A": int(form.registers_a), "GEMM_SPLIT_PLANES_B": int(form.split_planes_b),
            "GEMM_RESCALED": int(form.rescaled), "GEMM_SHIFTED_COLUMNS": int(form.shifted_columns),
            "GEMM_SCALED": SCALES[form.scales],
            "GEMM_OUTPUT": RESULTS[form.output],
            "GEMM_TRANSPOSED_D": int(form.transposed_d),
            "GEMM_TMA_STORE": int(form.tma_store), "GEMM_STORE_BLOCK_N": self.store_block_n,
            "GEMM_NUM_STORE_STAGES": self.num_store_stages, "GEMM_SPLIT_K": int(self.split_k),
            "GEMM_HAS_ADDEND": int(form.addend is not None),
            "GEMM_ADDEND_TYPE": OUTPUTS[form.addend] if form.addend else 0, "GEMM_BIAS": BIASES[form.bias],
            "GEMM_BIAS_TYPE": OUTPUTS[form.bias_type] if form.bias else 0,
            "GEMM_ACTIVATION": number(form.activation), "GEMM_DIVIDED": DIVIDED[form.divided],
            "GEMM_GATE": GATES[form.gate], "GEMM_STORES_BEFORE": int(form.stores_before),
            "GEMM_SYMMETRIC": int(form.symmetric),
            "GEMM_SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip


@cache
def store_block_n(columns: int, nbytes: int, added: bool) -> int:
    """Return the columns of a store block (:attr:`Variant.store_block_n`) for ``columns`` of ``nbytes`` an element.

    They need not divide ``columns``: the last block may overlap the one before. Storing the overlap twice costs less
    than many narrow blocks, as the barriers of one take about as long as storing 16 columns. With c (``added``) they
    divide ``columns``: c may be d, and what was stored must not be added again.
    """
    widths = [x for x in (16, 32, 64) if x <= columns and x * nbytes <= 128 and not (added and columns % x)]
    return min(widths, key=lambda x: -(-columns // x) * (x + 16), default=16)


@cache
def variant(shape: Shape, form: Form, split_k: bool) -> Variant:
    """Return one object for each variant: its cached properties are computed once, and ranking reads hundreds."""
    return Variant(shape, form, split_k)
