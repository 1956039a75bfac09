"""The micro-kernels of kernels/, and the processors that have their instructions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl")
NEON = ("asimd",)
_COLUMNS = {"AMX": 32, "512": 48, "AVX2": 24, "NEON": 12}


@dataclass(frozen=True)
class Unit:
    """A micro-kernel, and the processors that have its instructions."""

    name: str
    """As the decision table shows it."""
    index: int
    """Its place in ``kUnits`` of the architecture's units.cpp."""
    pair: str
    """The dtype of both operands; "float" for any two of float16, bfloat16 and float32 but two of float32."""
    flags: tuple[str, ...]
    """What /proc/cpuinfo has to list."""
    gain: float
    """Rate of the product, packed, over SGEMM's: what estimates go by."""
    vendor: str = ""
    """The only vendor whose processors gain by it; "" for all."""

    @property
    def amx(self) -> bool:
        """Whether it needs the tile registers, which a process has to request."""
        return "amx_tile" in self.flags

    @cached_property
    def columns(self) -> int:
        """Columns of a micro-panel of b: packed memory begins at a multiple of it."""
        return next(count for word, count in _COLUMNS.items() if word in self.name)


UNITS = (
    Unit("int8 on AMX", 2, "int8", (*AVX2, "amx_tile", "amx_int8"), 7.0),
    Unit("int8 on AVX-512 VNNI", 0, "int8", (*AVX512, "avx512_vnni"), 3.8),
    Unit("int8 on AVX2", 1, "int8", AVX2, 1.0),
    Unit("bfloat16 on AMX", 4, "bfloat16", (*AVX2, "amx_tile", "amx_bf16"), 4.0),
    # On Intel's processors vdpbf16ps is no faster than two fused multiply-adds of float32.
    Unit("bfloat16 on AVX512_BF16", 3, "bfloat16", (*AVX512, "avx512_bf16"), 1.8, "AuthenticAMD"),
    Unit("float32 on AVX-512", 5, "float", AVX512, 1.0),
    Unit("float32 on AVX2", 6, "float", AVX2, 1.0),
    # Not measured: no ARM processor was at hand.
    Unit("int8 on NEON matrix instructions", 1, "int8", (*NEON, "i8mm"), 4.0),
    Unit("int8 on NEON dot products", 0, "int8", (*NEON, "asimddp"), 3.0),
    Unit("bfloat16 on NEON matrix instructions", 2, "bfloat16", (*NEON, "bf16"), 2.0),
    Unit("float32 on NEON", 3, "float", NEON, 0.9),
)
"""The best of each pair first."""
