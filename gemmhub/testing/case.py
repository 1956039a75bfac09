"""One test problem of the conformance kit, as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Protocol, TypeVar

from gemmhub import dtypes
from gemmhub.epilogues import EPILOGUES, columns
from gemmhub.errors import DTypeError
from gemmhub.operands import OPERANDS
from gemmhub.testing.axes import DTYPES, Values


def broadcast(batch: tuple[int, ...], form: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(batch dimensions of the array, those of its memory) for a form of broadcasting."""
    if form in ("missing", "stride0", "one"):
        return {"missing": (), "stride0": batch, "one": (1,) * len(batch)}[form], (1,) * (form != "missing") * len(
            batch
        )
    return (batch[1:], batch[1:]) if form == "outer" else (batch, batch)


def differences(case: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a dataclass's fields that have no default, or another value."""
    for each in fields(case):
        value = getattr(case, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if (each.default is MISSING and each.default_factory is MISSING) or value != default:
            yield each.name, value


@dataclass(frozen=True)
class Case:
    """One test problem. Every field has a plain default, so ``Case(m=3, n=4, k=5)`` is a float32 product."""

    m: int
    n: int
    k: int
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    out_dtype: str = "float32"
    a: str = "row"
    """Layout of a; :func:`gemmhub.testing.memory.strides` lists the names."""
    b: str = "row"
    out: str = "row"
    batch: tuple[int, ...] = ()
    a_batch: str = "full"
    """Batch of a: "full", or a form of broadcasting: "stride0", "one" (dimensions of size 1), "missing", "outer" (the
    outermost dimension is missing)."""
    b_batch: str = "full"
    alpha: complex = 1
    beta: complex = 0
    c: str | None = None
    """Layout of c: None for no addend, a layout, "out" (the addend is the result's own memory), "shared" (no batch
    dimensions) or "rows0" (all rows are the same memory)."""
    c_dtype: str | None = None
    """Dtype of c; None for that of the result."""
    bias: str | None = None
    """Axis of the bias, "m" or "n"; None for no bias."""
    bias_stride: int = 1
    bias_offset: int = 0
    """Further offset of the bias in elements: its alignment is not part of a problem."""
    bias_dtype: str | None = None
    operands: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Forms of the other operands of the table by name, as :attr:`gemmhub.backend.Backend.takes` names them. Matrices
    have the layout of the result."""
    operand_stride: int = 1
    """Distance of the elements of these operands in memory, where they are no matrices."""
    wide: bool = False
    """Whether these operands have the last of the dtypes that they may have, not the first."""
    activation: str | None = None
    precision: str = "ieee"
    reproducible: str | None = None
    offset: int = 0
    """Offset of each operand, in elements, from an address that is a multiple of 256."""
    data: str = "normal"
    """Kind of values; :func:`gemmhub.testing.operands.draw_values` explains each."""
    poison: str = "nan"
    """Content of the result before the call: "nan" or "garbage"."""
    packed: bool = False
    """Whether b is packed by :meth:`~gemmhub.backend.Backend.pack`."""
    threads: int = 1
    """Number of threads that call the kernel at once, each with its own operands."""
    every_candidate: bool = False
    """Whether all candidates are run, not only the first."""
    seed: int = 0

    def __repr__(self) -> str:
        """The expression that creates this case, without default values."""
        return f"Case({', '.join(f'{name}={value!r}' for name, value in differences(self))})"

    def __str__(self) -> str:
        """A short name: the differences from a plain product."""
        plain = ("m", "n", "k", "a_dtype", "b_dtype", "out_dtype", "seed")
        words = [f"{self.m}x{self.n}x{self.k}", f"{self.a_dtype},{self.b_dtype}->{self.out_dtype}"]
        for name, value in differences(self):
            if isinstance(value, Mapping):
                words += [f"{operand}={form}" for operand, form in value.items()]
            elif name not in plain:
                words.append(f"{name}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(words).replace(" ", "-")

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the problem in :attr:`gemmhub.backend.Backend.takes`: operands, activation and so on."""
        parts = {"c": self.c and "matrix", "bias": self.bias, **self.operands, "activation": self.activation}
        parts["precision"] = None if self.precision == "ieee" else self.precision
        parts["reproducible"] = None if self.reproducible is None else "run" if self.reproducible == "run" else "batch"
        return {name: form for name, form in parts.items() if form is not None}

    @property
    def out_columns(self) -> int:
        """Columns of the result."""
        return columns(self.activation, self.n)

    @property
    def compute_dtype(self) -> dtypes.DType:
        a, b, out = (dtypes.as_dtype(x) for x in (self.a_dtype, self.b_dtype, self.out_dtype))
        return dtypes.scaled_dtype(dtypes.compute_dtype(a, b, out), out, self.alpha, self.beta)


def possible(values: Values) -> bool:
    """Whether gemmhub ever passes such a problem to a backend, by the rules of its table of dtypes and of its options.

    ``values`` are fields of a case; missing ones are assumed to fit.
    """
    if "out_dtype" not in values:
        return any(possible({**values, **choice}) for choice in DTYPES)
    facts = _facts(values["a_dtype"], values["b_dtype"], values["out_dtype"])
    if facts is None:
        return False
    dtype_class = facts.dtype_class
    scalars = [values.get("alpha", 1), values.get("beta", 0)]
    if dtype_class == "bool" and (values.get("c") or values.get("bias") or scalars[0] != 1):
        return False
    if dtype_class in ("int", "uint") and any(
        x != int(x.real) or (dtype_class == "uint" and x.real < 0) for x in scalars
    ):
        return False
    if dtype_class != "complex" and any(isinstance(x, complex) for x in scalars):
        return False
    if not _operands_fit(values, dtype_class):
        return False
    activation = values.get("activation")
    if activation and EPILOGUES[activation].arity > 1 and (values.get("c") == "out" or values.get("n", 0) % 2):
        return False
    if activation and (dtype_class in ("complex", "bool") or (activation != "relu" and dtype_class in ("int", "uint"))):
        return False
    if values.get("precision", "ieee") != "ieee" and not facts.tiers:
        return False
    data = values.get("data", "normal")
    if data == "nonfinite" and scalars[0] == 0:
        return False  # edges() has these cases
    return data == "normal" or facts.inexact


@dataclass(frozen=True)
class _Facts:
    """The facts of a case that follow from the dtypes of its product."""

    dtype_class: str
    """Dtype class of the result."""
    tiers: bool
    """Whether there are precisions other than "ieee"."""
    inexact: bool
    """Whether an operand has a dtype that rounds."""


@cache
def _facts(a: str, b: str, out: str) -> _Facts | None:
    """The facts about a product of these dtypes; None where gemmhub has no such product."""
    left, right, result = (dtypes.as_dtype(x) for x in (a, b, out))
    try:
        dtypes.output_dtype(left, right, result)
    except DTypeError:
        return None
    operands = [dtypes.info(left), dtypes.info(right)]
    single = dtypes.compute_dtype(left, right, result).name in ("float32", "complex64")
    return _Facts(
        dtypes.info(result).kind,
        single and any(x.inexact and x.itemsize > 2 for x in operands),
        any(x.inexact for x in operands),
    )


def _operands_fit(values: Values, dtype_class: str) -> bool:
    """Whether gemmhub takes the other operands of a case whose result has this dtype class."""
    operands: Mapping[str, str] = values.get("operands", {})
    floating = [name for name in operands if OPERANDS[name].role in ("factor", "result") or name == "amax"]
    stacked = any(form.startswith("batch") for form in operands.values())
    return not (floating and dtype_class not in ("float", "float8")) and not (stacked and values.get("batch") == ())


class WithParts(Protocol):
    """A case, of one product or a grouped one."""

    @property
    def parts(self) -> Mapping[str, str]: ...


C = TypeVar("C", bound=WithParts)


def lacking(case: WithParts, takes: Mapping[str, frozenset[str] | None]) -> list[tuple[str, str]]:
    """Return the parts of a case that ``takes``, which is :attr:`gemmhub.backend.Backend.takes`, does not name."""
    missing = []
    for name, form in case.parts.items():
        forms = takes.get(name, frozenset())
        if forms is not None and form not in forms:
            missing.append((name, form))
    return missing


def taken(cases: Iterable[C], takes: Mapping[str, frozenset[str] | None]) -> tuple[C, ...]:
    """Return the cases for a backend that takes this, and of each other form the first case with it alone, which it
    must refuse."""
    chosen: list[C] = []
    refused: set[tuple[str, str]] = set()
    for case in cases:
        missing = lacking(case, takes)
        if not missing or (len(missing) == 1 and refused.isdisjoint(missing)):
            chosen.append(case)
            refused.update(missing)
    return tuple(chosen)
