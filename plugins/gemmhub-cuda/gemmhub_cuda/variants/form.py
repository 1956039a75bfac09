"""The requirements of the operands and the epilogue of a problem on a kernel: the macros of kernels/params.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub.kit import epilogue_source

TYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
"""Number of each floating-point element type."""
_INTEGERS = {"int8": 3, "int32": 3}
"""Number of int8 as operands' type, and of int32 as results'."""
FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""Names of the formats of 8-bit floats, by their dtype."""
FLOAT8 = {"e4m3.e4m3": 4, "e4m3.e5m2": 5, "e5m2.e4m3": 6, "e5m2.e5m2": 7}
"""Number of each pair of formats, that of a first."""
_NUMBERS = {**TYPES, **_INTEGERS, **FLOAT8}
SCALES = {None: 0, "results": 1, "blocks": 2}
"""Number of each use of quantization scales: none, of the results, of each 128 along K."""
BIASES = {None: 0, "m": 1, "n": 2}
ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu_squared", "leaky_relu", "hardswish",
)  # fmt: skip
"""The activations that all kernels are compiled with: names of :data:`gemmhub.epilogues.EPILOGUES`. Another one is
compiled into the kernels of its own products."""


def activations(activation: str | None) -> tuple[str, ...]:
    """Return the activations in the source of a kernel for ``activation``, in the order of their numbers."""
    return epilogue_source.among(ACTIVATIONS, activation)


@dataclass(frozen=True)
class Form:
    """The requirements of a problem, in the kernel's own m and n: d is contiguous along N."""

    a_m_major: bool
    """Whether a is contiguous along M; else along K."""
    b_n_major: bool
    """Whether b is contiguous along N; else along K."""
    a_alignment: int
    """Alignment in bytes of the contiguous rows of a, and of their length if they are along M: 16, 8, 4, 2 or 1."""
    b_alignment: int
    """The same of b, along N."""
    input: str
    """The dtype of a and b; of 8-bit floats their formats, one of :data:`FLOAT8`."""
    output: str
    """The dtype of d."""
    scaled: bool = False
    """Whether the product is multiplied by alpha."""
    addend: bool = False
    """Whether beta * c is added."""
    bias: str | None = None
    """The axis of the bias, "m" or "n"; None where there is no bias."""
    bias_type: str = "float32"
    """The dtype of the bias."""
    activation: str | None = None
    """The activation; None for none."""
    scales: str | None = None
    """The use of quantization scales: one of :data:`SCALES`."""

    @property
    def float8(self) -> bool:
        """Whether the operands are 8-bit floats."""
        return self.input in FLOAT8

    @property
    def alignment(self) -> int:
        """Bytes of the widest load for both operands."""
        return min(self.a_alignment, self.b_alignment)

    @property
    def input_bytes(self) -> int:
        """Bytes of an element of a or b."""
        return 1 if self.float8 else {"float32": 4, "int8": 1}.get(self.input, 2)

    @property
    def output_bytes(self) -> int:
        """Bytes of an element of d."""
        return 4 if self.output in ("float32", "int32") else 2

    @property
    def macros(self) -> dict[str, int]:
        """The macros of kernels/params.cuh."""
        return {
            "A_M_MAJOR": int(self.a_m_major), "B_N_MAJOR": int(self.b_n_major),
            "A_BYTES_ALIGNED": self.a_alignment, "B_BYTES_ALIGNED": self.b_alignment,
            "INPUT": _NUMBERS[self.input], "OUTPUT": _NUMBERS[self.output],
            "SCALED": int(self.scaled), "ADDEND": int(self.addend), "BIAS": BIASES[self.bias],
            "BIAS_TYPE": TYPES[self.bias_type] if self.bias else 0,
            "ACTIVATION": epilogue_source.numbers(activations(self.activation))[self.activation],
            "SCALES": SCALES[self.scales],
        }  # fmt: skip
