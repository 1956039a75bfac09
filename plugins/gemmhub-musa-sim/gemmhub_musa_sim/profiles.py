"""The SDK generations that a simulated home can look like: sonames, symbols, and which library exists.

What is public about each (names, sonames, mangled symbols, a few numbers) is as the vendor has it. Numbers that no
public source gives are in :mod:`gemmhub_musa_sim.enums`, odd on purpose and different in each generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Symbols = Literal["mangled", "plain", "scanned"]
"""How libmublas exports its three Ex functions. "scanned": with C++ names that no public source lists, so that only
a look at the dynamic symbol table finds them."""


@dataclass(frozen=True)
class Profile:
    """One SDK generation."""

    sdk: str
    """The generation's name, as users and `gemmhub-musa-sim --sdk` write it."""
    toolkit: str
    """The version that `musa_version_query` and `mcc --version` print."""
    number: int
    """MUSA_VERSION in the headers and the result of musaRuntimeGetVersion; the scale changed between 4.x and 5.x."""
    musart: str
    mublas: str
    """The soname; on SDK 3.1 the bare name."""
    mublas_symbols: Symbols
    mublas_lt: str | None
    mudnn: str
    mudnn_cxx: str | None
    """The library of the C++ API where it is a library of its own; ``mudnn`` then has a C API."""
    status_text: str
    """The function that returns the text of a muBLAS status; it was renamed."""
    tf32_math_mode: str
    """The name of muBLAS's TF32 math mode."""


PROFILES = {
    "3.1": Profile(
        sdk="3.1",
        toolkit="3.1.0",
        number=3010,
        musart="libmusart.so.1.0",
        mublas="libmublas.so",
        mublas_symbols="mangled",
        mublas_lt=None,
        mudnn="libmudnn.so.2",
        mudnn_cxx=None,
        status_text="mublasStatus_to_string",
        tf32_math_mode="MUBLAS_MATH_MODE_TP32_TENSOR",
    ),
    "4.3": Profile(
        sdk="4.3",
        toolkit="4.3.0",
        number=4030,
        musart="libmusart.so.4",
        mublas="libmublas.so.1",
        mublas_symbols="mangled",
        mublas_lt="libmublasLt.so.1",
        mudnn="libmudnn.so.3",
        mudnn_cxx=None,
        status_text="mublasGetStatusString",
        tf32_math_mode="MUBLAS_TP32_TENSOR_OP_MATH",
    ),
    "5.1": Profile(
        sdk="5.1",
        toolkit="5.1.0",
        number=50100,
        musart="libmusart.so.5",
        mublas="libmublas.so.1",
        mublas_symbols="plain",
        mublas_lt="libmublasLt.so.1",
        mudnn="libmudnn.so.3",
        mudnn_cxx="libmudnncxx.so.3",
        status_text="mublasGetStatusString",
        tf32_math_mode="MUBLAS_TF32_TENSOR_OP_MATH",
    ),
}

DRIVER = "libmusa.so.1"
