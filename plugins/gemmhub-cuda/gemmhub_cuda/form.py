"""What a problem's operands and epilogue demand of a kernel: the macros that params.cuh names."""

from __future__ import annotations

from dataclasses import dataclass

TYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
BIASES = {None: 0, "m": 1, "n": 2}
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}


@dataclass(frozen=True)
class Form:
    """In the kernel's own m and n: neighbours in d are neighbours along n."""

    a_m_major: bool
    """Neighbours along m (not k) are neighbours in memory."""
    b_n_major: bool
    a_aligned: int
    """Bytes that the start of every row of neighbours is a multiple of, and every row's length if they are along m
    (n): 16, 8, 4 or 2."""
    b_aligned: int
    input: str
    output: str
    scaled: bool = False
    addend: bool = False
    bias: str | None = None
    bias_type: str = "float32"
    activation: str | None = None

    @property
    def aligned(self) -> int:
        """Bytes that both operands can be loaded at a time."""
        return min(self.a_aligned, self.b_aligned)

    @property
    def input_bytes(self) -> int:
        return 4 if self.input == "float32" else 2

    @property
    def output_bytes(self) -> int:
        return 4 if self.output == "float32" else 2

    @property
    def macros(self) -> dict[str, int]:
        return {
            "A_M_MAJOR": int(self.a_m_major), "B_N_MAJOR": int(self.b_n_major),
            "A_BYTES_ALIGNED": self.a_aligned, "B_BYTES_ALIGNED": self.b_aligned,
            "INPUT": TYPES[self.input], "OUTPUT": TYPES[self.output],
            "SCALED": int(self.scaled), "ADDEND": int(self.addend), "BIAS": BIASES[self.bias],
            "BIAS_TYPE": TYPES[self.bias_type] if self.bias else 0, "ACTIVATION": ACTIVATIONS[self.activation],
        }  # fmt: skip
