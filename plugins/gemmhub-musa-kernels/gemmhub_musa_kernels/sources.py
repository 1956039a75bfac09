"""The text of the kernels: a file of kernels/ with the functions that end a product, generated for what they take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemmhub.backend import BASIC
from gemmhub.kit import epilogue_source

KERNELS = Path(__file__).parent / "kernels"
WARP = {"mp_21": 128, "mp_22": 128, "mp_31": 32}
"""Threads of a hardware warp, by the architectures that the kernels support."""
SCALAR, WMMA, PIPELINED, SQMMA = "scalar", "wmma", "pipelined", "sqmma"
"""The kernels that compute products, by the names of their files."""
TRANSPOSE = "transpose"
"""The file that copies operands; the others compute products."""
TAKES: Mapping[str, frozenset[str] | None] = {
    **BASIC,
    "activation": frozenset((
        "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu_squared", "leaky_relu", "hardswish",
    )),
    "reproducible": frozenset({"run", "batch"}),
}  # fmt: skip
""":attr:`gemmhub.backend.Backend.takes` of the kernels. The epilogues that are named here are compiled into all of
them, by their expressions in :mod:`gemmhub.epilogues`; another one into a library for its own products."""
_DEVICE = "__device__ __forceinline__"


def headers() -> tuple[Path, ...]:
    """Return the headers that the kernels include."""
    return tuple(sorted(KERNELS.glob("*.h")))


def activations() -> list[str]:
    """Return the names of the activations in the order of their numbers."""
    return sorted(TAKES["activation"] or ())


def added(activation: str | None) -> str | None:
    """Return ``activation`` where it is compiled into a library for its own products; else None."""
    return None if activation in (None, *activations()) else activation


def number(activation: str | None) -> int:
    """Return the number by which kernels choose ``activation``."""
    return epilogue_source.numbers(epilogue_source.among(activations(), activation))[activation]


def text(file: str, added: str | None = None) -> str:
    """Return the text of kernels/``file``.mu, with the functions of its activations where it computes products.

    ``added``: an activation beside those of all kernels.
    """
    kernel = f'#line 1 "{file}.mu"\n' + (KERNELS / f"{file}.mu").read_text()
    return kernel if file == TRANSPOSE else _activated(added) + kernel


def _activated(added: str | None) -> str:
    """Return the definition of ``activated(x, activation)``, which gemm.h declares."""
    names = epilogue_source.among(activations(), added)
    cases = "".join(f"  if (activation == {i}) return activated<{i}>(x);\n" for i in range(len(names) + 1))
    return (
        '#include "gemm.h"\n'
        "namespace gemmhub {\n"
        f"{epilogue_source.source(names, _DEVICE)}"
        f"{_DEVICE} float activated(float x, int activation) {{\n"
        f"{cases}"
        "  return NAN;\n"
        "}\n"
        "}  // namespace gemmhub\n"
    )
