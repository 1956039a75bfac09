"""One grouped call: its operands checked, and cut into the operands of each group's product.

On the CPU the parts are views of memory as ndarrays, whatever library the arrays are of. On a device they are the
library's own slices. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from numbers import Number
from typing import Any, NamedTuple

from gemmhub import dtypes
from gemmhub._base.geometry import same_memory
from gemmhub._call.describe import common_library, operand, result_shape
from gemmhub._call.options import ContractionOptions, Request, check, refuse_operands, request, unknown
from gemmhub._grouped import forms, offsets
from gemmhub._grouped.forms import Form, Pick
from gemmhub.array_library import ArrayLibrary
from gemmhub.errors import DTypeError, InputError, OutputError
from gemmhub.packed import PackedB

Array = Any

OPERANDS = ("bias", "scale_a", "scale_b", "c")
"""Operands of a grouped product beside a and b."""
_OPTIONS = ("out_dtype", "alpha", "beta", *OPERANDS, "activation", "precision", "reproducible", "backend", "stream")
"""Options in the order of ``help()``."""


class GroupedOptions(ContractionOptions, total=False):
    """The keyword arguments of a grouped product."""

    alpha: complex
    beta: complex
    c: Any
    bias: Any
    scale_a: Any
    scale_b: Any
    activation: Any
    stream: Any


class Part(NamedTuple):
    """The operands of one group's product, or of the product of a stack of all groups."""

    group: int
    span: slice
    """Its part of the divided dimension."""
    sizes: tuple[int, int, int]
    """m, n and k."""
    a: Array
    b: Array
    options: Mapping[str, Any]
    """The options of its product, its operands among them."""

    @property
    def empty(self) -> bool:
        """Whether its result has no elements."""
        return 0 in self.sizes[:2]


@dataclass(frozen=True)
class Grouped:
    """A described grouped call."""

    arrays: ArrayLibrary
    form: Form
    shape: tuple[int, ...]
    """Shape of the result."""
    out_dtype: dtypes.DType
    extent: int
    """Size of the dimension that is divided; 0 where none is."""
    ends: list[int]
    """The ends of the groups in that dimension; empty where none is divided."""
    natives: Mapping[str, Array]
    """The operands natively, by name."""
    groups: int
    sizes: tuple[int, int, int]
    """m, n and k, with all of the dimension that is divided."""
    spans: list[slice]
    """The groups' slices of that dimension; one that means nothing for each group where none is divided."""
    stacked: bool
    """Whether all groups are one product of stacks. Then there is one span."""
    picks: Mapping[str, Pick]
    """The functions that cut a, b and the other operands, by name."""
    fixed: Mapping[str, Any]
    """The options that all groups share."""

    @property
    def busy(self) -> list[tuple[int, slice]]:
        """Number and span of the groups whose results have elements; the first group where none has, so that its
        product is checked."""
        m, n, _ = self.sizes
        numbered = [*enumerate(self.spans)]
        if self.form.out is None:
            return numbered if m and n else numbered[:1]
        return [(i, span) for i, span in numbered if span.stop > span.start and m and n] or numbered[:1]

    def options(self, group: int, span: slice) -> Mapping[str, Any]:
        """The options of one group's product, its operands among them."""
        if len(self.picks) == 2:
            return self.fixed
        return {**self.fixed, **{name: pick(group, span) for name, pick in self.picks.items() if name in OPERANDS}}

    def part(self, group: int, span: slice) -> Part:
        """One group's product."""
        sizes = _sizes(self.form, *self.sizes, span)
        a, b = (self.picks[name](group, span) for name in ("a", "b"))
        return Part(group, span, sizes, a, b, self.options(group, span))

    @property
    def parts(self) -> Iterator[Part]:
        """The products of all groups."""
        return (self.part(i, span) for i, span in enumerate(self.spans))

    def cut(self, result: Array) -> Pick:
        """The function that cuts a result."""
        return forms.shared(result) if self.stacked else forms.along(result, self.form.out)

    def beyond(self, result: Array) -> Array | None:
        """The part of a result beyond the last end; None where there is none."""
        end = self.ends[-1] if self.ends else 0
        if self.form.out is None or end >= self.extent:
            return None
        return forms.along(result, self.form.out)(0, slice(end, None))


def check_options(options: Mapping[str, Any]) -> Request:
    """The options, checked but for what needs operands. TypeError and InputError for others."""
    check_names(options)
    return request(options)  # type: ignore[arg-type]


def check_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown option, and InputError for one of other products."""
    for name in options:
        if name not in _OPTIONS:
            refuse_operands(options, OPERANDS, "to a grouped product")
            raise unknown(name, ("offsets", "out", *_OPTIONS))


@dataclass(frozen=True)
class Operands:
    """The operands of a grouped call, checked but for the offsets and for what needs the number of groups."""

    arrays: ArrayLibrary
    request: Request
    named: Mapping[str, Array]
    """The operands as they were passed, by name."""
    natives: Mapping[str, Array]
    form: Form
    groups: int | None
    """Number of groups; None where the offsets alone have it."""
    sizes: tuple[int, int, int]
    """m, n and k, with all of the dimension that is divided."""
    out_dtype: dtypes.DType

    @property
    def extent(self) -> int:
        """Size of the dimension that is divided; 0 where none is."""
        m, n, k = self.sizes
        return {0: m, 1: n, None: k}[self.form.out] if self.form.divided else 0

    def shape(self, groups: int) -> tuple[int, ...]:
        """The shape of the result; ShapeError or InputError where the activation does not fit it."""
        m, n, _ = self.sizes
        shape, _ = result_shape(forms.result_shape(self.form, groups, m, n), n, 3, self.request.activation)
        if self.form.out == 1 and shape[-1] != n:
            raise InputError(
                "activation", f"{self.request.activation}, which pairs columns, with offsets that divide columns",
                "activations of each element", "multiply the transposes: a of shape (m, k) and b of (g, k, n)",
            )  # fmt: skip
        return shape


def check_operands(a: Array, b: Array, divided: bool, out: Array | None, options: Mapping[str, Any]) -> Operands:
    """Check the operands and options of a grouped call, which has offsets where it is ``divided``."""
    parsed = check_options(options)
    if isinstance(out, (list, tuple)):
        raise OutputError("out", "a list beside arrays a and b", "an array of the result's shape", "pass an array")
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, PackedB):
            raise InputError(name, "a packed operand", "arrays", "pass the array itself: groups are parts of it")
    arrays = common_library(a, b, out, parsed)
    named = {"a": a, "b": b, **parsed.operands}
    natives = {name: operand(arrays, x, name) for name, x in named.items()}
    left, right = tuple(natives["a"].shape), tuple(natives["b"].shape)
    form = forms.form_of(left, right, divided)
    groups, *sizes = forms.sizes(form, left, right)
    if parsed.stream is not None and arrays.device.type == "cpu":
        raise InputError("stream", "given for CPU arrays", "None for CPU arrays")
    out_dtype = _result_dtype(natives["a"].dtype, natives["b"].dtype, arrays, out, parsed)
    return Operands(arrays, parsed, named, natives, form, groups, tuple(sizes), out_dtype)


def describe(a: Array, b: Array, ends: Any, out: Array | None, options: Mapping[str, Any]) -> Grouped:
    """Check a grouped call, and cut its operands; see :func:`gemmhub.grouped_matmul`."""
    found = check_operands(a, b, ends is not None, out, options)
    arrays, natives, form, extent = found.arrays, found.natives, found.form, found.extent
    listed = offsets.read(ends, found.groups, extent, form.noun) if form.divided else []
    groups = len(listed) if found.groups is None else found.groups
    m, n, k = found.sizes
    shape = found.shape(groups)
    shapes = {name: tuple(x.shape) for name, x in natives.items()}
    whole = natives if arrays.device.type == "cpu" else {name: found.named[name] for name in natives}
    stacked = form is forms.DENSE and len(shapes.get("bias", ())) < 2
    picks: dict[str, Pick] = {}
    for name, x in whole.items():
        if name in ("scale_a", "scale_b"):
            forms.check_rows(form, name, shapes[name], groups, shapes[name[-1]])
        if stacked:
            picks[name] = forms.shared(x)
        elif name == "c":
            picks[name] = forms.addend(form, x, shapes[name], groups, m, n)
        elif name == "bias":
            picks[name] = forms.bias(form, x, shapes[name], groups, n)
        elif name in ("scale_a", "scale_b"):
            picks[name] = forms.scale(form, name, x, shapes[name], groups, shapes[name[-1]])
        else:
            picks[name] = forms.along(x, form.a if name == "a" else form.b)
    spans = offsets.spans(listed) if form.divided else [slice(None)] * (1 if stacked else groups)
    fixed = {name: x for name, x in options.items() if name not in OPERANDS and x is not None}
    return Grouped(
        arrays, form, shape, found.out_dtype, extent, listed, natives, groups, (m, n, k), spans, stacked, picks, fixed
    )


def _result_dtype(
    a: dtypes.DType, b: dtypes.DType, arrays: ArrayLibrary, out: Array | None, request: Request
) -> dtypes.DType:
    """The dtype of the result; OutputError for an ``out`` of another one."""
    if out is None:
        return dtypes.output_dtype(a, b, request.out_dtype)
    wanted = operand(arrays, out, "out").dtype
    if request.out_dtype is not None and wanted != request.out_dtype:
        given = f"dtype {wanted} but out_dtype is {request.out_dtype}"
        raise OutputError("out", given, "equal dtypes", "drop out_dtype=")
    try:
        return dtypes.output_dtype(a, b, wanted)
    except DTypeError as error:
        raise OutputError("out", error.given, error.allowed, "give it another dtype, or convert a and b") from None


def _sizes(form: Form, m: int, n: int, k: int, span: slice) -> tuple[int, int, int]:
    if not form.divided:
        return m, n, k
    size = span.stop - span.start
    return (size, n, k) if form.out == 0 else (m, size, k) if form.out == 1 else (m, n, size)


def target(call: Grouped, out: Array) -> Array:
    """``out`` natively, checked; OutputError where it cannot take the result, or shares memory with an operand, other
    than by being c.
    """
    native = call.arrays.target(out, call.shape)
    for name, x in call.natives.items():
        if not (name == "c" and same_memory(x, native)) and call.arrays.overlap(native, x):
            raise OutputError("out", f"it shares memory with {name}", "memory of its own", "pass a new out=")
    return native


def named(error: InputError, group: int | None) -> InputError:
    """``error`` of one group's product, with its number; itself where that is None."""
    return (
        error
        if group is None
        else type(error)(error.argument, f"group {group}: {error.given}", error.allowed, error.remedy)
    )


def read_lists(
    a: Any, b: Any, ends: Any, out: Any, options: Mapping[str, Any], into: str = "out"
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """The lists of a product of lists by name, and the options that all groups share; InputError for others.

    ``into`` is the name of ``out`` there.
    """
    for name, x, other in (("a", a, b), ("b", b, a)):
        if _numbers(x) < 3 or (_numbers(x) == 3 and not isinstance(other, (list, tuple))):
            raise InputError(
                name, "nested sequences of numbers", "an array, or a list with a matrix for each group",
                f"pass numpy.asarray({name})",
            )  # fmt: skip
    if ends is not None:
        raise InputError("offsets", "given with lists of arrays", "None: each array is a group", "drop offsets=")
    check_names(options)
    fixed = {name: x for name, x in options.items() if name not in OPERANDS}
    check({name: x for name, x in fixed.items() if name != "beta" or options.get("c") is None})
    lists = {"a": a, "b": b, into: out, **{name: options[name] for name in OPERANDS if name in options}}
    lists = {name: x for name, x in lists.items() if x is not None or name in ("a", "b")}
    for name, x in lists.items():
        error = OutputError if name == "out" else InputError
        if not isinstance(x, (list, tuple)):
            raise error(name, "no list beside lists of arrays", "a list with an array for each group")
        if len(x) != len(a):
            raise error(name, f"a list of {len(x)}", f"lists of {len(a)}, as a is: an array for each group")
    return lists, fixed


def _numbers(x: Any) -> float:
    """The depth of nested sequences of numbers; infinite for other objects."""
    depth = 0
    while isinstance(x, (list, tuple)) and x:
        x, depth = x[0], depth + 1
    return depth if depth and isinstance(x, Number) else inf


def each(
    a: Any, b: Any, ends: Any, out: Any, options: Mapping[str, Any], *, into: str = "out"
) -> Iterator[tuple[int, Any, Any, Any, dict[str, Any]]]:
    """Yield (group, a, b, out, options) of products of unequal sizes, whose operands are lists. InputError where lists
    differ in length; ``into`` is the name of ``out`` in it.
    """
    lists, fixed = read_lists(a, b, ends, out, options, into)
    for i, left in enumerate(a):
        own = {name: lists[name][i] for name in OPERANDS if name in lists and lists[name][i] is not None}
        yield i, left, b[i], None if out is None else out[i], {**fixed, **own}
