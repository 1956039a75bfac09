"""The micro-kernels of kernels/, and the processors that have their instructions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl")
NEON = ("asimd",)
_COLUMNS = {
    "int64": 8, "float64 on AVX2": 12, "float64 on AVX-512": 24, "float64 on NEON": 6, "AMX": 32, "512": 48, "AVX2": 24,
    "AVX-VNNI": 24, "NEON": 12,
}  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """A micro-kernel, and the processors that have its instructions."""

    name: str
    """As the decision table shows it."""
    index: int
    """Its place in ``kUnits`` of the architecture's units.cpp."""
    pair: str
    """The dtype of both operands; "float" for any two of float16, bfloat16 and float32; "int32" and "int64" for
    unsigned ones, too. "bfloat16" and "float" also for :data:`DECODED`, but for two of int8."""
    flags: tuple[str, ...]
    """Requirements of the unit: words of /proc/cpuinfo, and those of :data:`UNLISTED`."""
    gain: float
    """Rate of the product, packed, over SGEMM's: what estimates go by."""
    order: str = "exact"
    """Name of the order in which it adds the products of an element: "exact" for integers, whose sums have none; "fma"
    for one chain of fused multiply-adds along k from +0, the same on every processor; else the instruction that adds
    several products at a time, in a chain along k, or "/k512": in blocks of 512 whose sums are added."""
    vendor: str = ""
    """The only vendor whose processors gain by it; "" for all."""

    @property
    def amx(self) -> bool:
        """Whether it needs the tile registers, which a process has to request."""
        return "amx_tile" in self.flags

    @property
    def exact(self) -> bool:
        """Whether it multiplies integers that BLAS has no type for."""
        return self.pair in ("int32", "int64")

    @property
    def chained(self) -> bool:
        """Whether it adds in one chain, as the kernels for pinned vectors do."""
        return self.order.startswith("fma.")

    @property
    def operands(self) -> tuple[str, ...]:
        """The dtypes of its operands."""
        wider = {"bfloat16": ("bfloat16", *DECODED), "float": ("float16", "bfloat16", "float32", *DECODED)}
        return wider.get(self.pair, (self.pair,))

    @cached_property
    def columns(self) -> int:
        """Columns of a micro-panel of b: packed memory begins at a multiple of it."""
        return next(count for word, count in _COLUMNS.items() if word in self.name)


DECODED = ("float8_e4m3fn", "float8_e5m2", "int8")
"""Dtypes that packing converts, exactly, to the floats of a unit."""
UNLISTED = {1: "avx_vnni_int8", 2: "amx_fp16"}
"""Instructions that /proc/cpuinfo does not list, by the bits that ``gemmhub_cpu_features`` of units.cpp returns."""
UNITS = (
    Unit("int8 on AMX", 2, "int8", (*AVX2, "amx_tile", "amx_int8"), 7.0),
    Unit("int8 on AVX-512 VNNI", 0, "int8", (*AVX512, "avx512_vnni"), 3.8),
    # Not measured, nor float16 on AMX: no such processors were at hand.
    Unit("int8 on AVX-VNNI-INT8", 10, "int8", (*AVX2, "avx_vnni", "avx_vnni_int8"), 3.2),
    Unit("int8 on AVX-VNNI", 9, "int8", (*AVX2, "avx_vnni"), 3.0),
    Unit("int8 on AVX2", 1, "int8", AVX2, 1.2),
    Unit("bfloat16 on AMX", 4, "bfloat16", (*AVX2, "amx_tile", "amx_bf16"), 4.0, "amx.tdpbf16ps"),
    # On Intel's processors vdpbf16ps is no faster than two fused multiply-adds of float32.
    Unit("bfloat16 on AVX512_BF16", 3, "bfloat16", (*AVX512, "avx512_bf16"), 1.8, "avx512.vdpbf16ps", "AuthenticAMD"),
    Unit("float16 on AMX", 11, "float16", (*AVX2, "amx_tile", "amx_fp16"), 4.0, "amx.tdpfp16ps"),
    Unit("float32 on AVX-512", 5, "float", AVX512, 1.0, "fma.f32"),
    Unit("float32 on AVX2", 6, "float", AVX2, 0.95, "fma.f32"),
    # BLAS multiplies two of float64, as two of float32, in another order for other sizes: for pinned products alone.
    Unit("float64 on AVX-512", 12, "float64", AVX512, 0.5, "fma.f64"),
    Unit("float64 on AVX2", 13, "float64", AVX2, 0.45, "fma.f64"),
    Unit("int32 on AVX2", 7, "int32", AVX2, 0.7),
    Unit("int64 on AVX2", 8, "int64", AVX2, 0.16),
    # Not measured: no ARM processor was at hand.
    Unit("int8 on NEON matrix instructions", 1, "int8", (*NEON, "i8mm"), 4.0),
    Unit("int8 on NEON dot products", 0, "int8", (*NEON, "asimddp"), 3.0),
    Unit("bfloat16 on NEON matrix instructions", 2, "bfloat16", (*NEON, "bf16"), 2.0, "neon.bfmmla/k512"),
    Unit("float32 on NEON", 3, "float", NEON, 0.9, "fma.f32"),
    Unit("float64 on NEON", 4, "float64", NEON, 0.45, "fma.f64"),
)
"""The best of each pair first."""
