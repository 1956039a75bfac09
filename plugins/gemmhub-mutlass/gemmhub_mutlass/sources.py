"""The C++ text of a configuration: a list of definitions before ``kernels/gemm.h``, which does the work."""

from __future__ import annotations

from pathlib import Path

from gemmhub_mutlass.variants import SIMT, TF32, Configuration

FOLDER = Path(__file__).parent / "kernels"
TEMPLATE = FOLDER / "gemm.h"

LONG, SHORT = 15, 13
"""The number of arguments of MUTLASS's mainloop builder: up to version 0.1, and from 0.2 on."""

_ARCH = {"mp_22": "mutlass::arch::Mp22", "mp_31": "mutlass::arch::Mp31"}
_SCHEDULE = {"mp_22": "mutlass::gemm::collective::KernelScheduleAuto", "mp_31": "mutlass::gemm::KernelTme"}
"""The schedule of the mainloop: MUTLASS chooses none by itself for mp_31."""
_TYPE = {
    "float16": "mutlass::half_t", "bfloat16": "mutlass::bfloat16_t", "float32": "float", "int8": "int8_t",
    "int32": "int32_t",
}  # fmt: skip


def text(configuration: Configuration, arguments: int) -> str:
    """Return the source for a MUTLASS whose builder takes ``arguments``, LONG or SHORT."""
    tile, math = configuration.tile, configuration.math
    a, b, d = configuration.alignments
    # MUTLASS would round float32 operands to TF32 by itself; naming the type makes it explicit.
    element = "mutlass::tfloat32_t" if math == TF32 else _TYPE[configuration.dtype]
    values = {
        "BUILDER_ARGUMENTS": arguments,
        "ARCH": _ARCH[configuration.arch], "SCHEDULE": _SCHEDULE[configuration.arch],
        "OP_CLASS": f"mutlass::arch::OpClass{'Simt' if math == SIMT else 'TensorOp'}",
        "ELEMENT": element, "RESULT": _TYPE[configuration.result],
        "ACCUMULATOR": "int32_t" if configuration.dtype == "int8" else "float",
        "TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": tile.k, "ATOMS_M": tile.atoms[0], "ATOMS_N": tile.atoms[1],
        "COLUMN_A": int(configuration.column_a), "COLUMN_B": int(configuration.column_b),
        "ALIGNMENT_A": a, "ALIGNMENT_B": b, "ALIGNMENT_D": d,
    }  # fmt: skip
    lines = [f"// {configuration}", *(f"#define GEMMHUB_{name} {value}" for name, value in values.items())]
    return "\n".join([*lines, f'#include "{TEMPLATE.name}"', ""])


def trial(arguments: int) -> str:
    """Return a source that compiles only where the mainloop's builder takes that many arguments."""
    types = {4: "1", 7: "1"}
    given = ", ".join(types.get(place, "void") for place in range(arguments))
    return (
        '#include "mutlass/mutlass.h"\n'
        '#include "mutlass/gemm/collective/collective_builder.hpp"\n'
        f"using Named = mutlass::gemm::collective::CollectiveBuilder<{given}>;\n"
        'extern "C" int gemmhub_trial(Named*) { return 0; }\n'
    )
