"""Lowers a problem to calls of cublasLtMatmul, or returns a refusal. No library is called.

The library multiplies dense column-major matrices with a leading dimension, one evenly spaced batch of them, and adds a
bias with one element for each row of the column-major result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.lowering import BlasCall, fold_batch, readings, with_bias
from gemmhub.problem import GemmProblem

TYPE = {
    "float32": 0, "float64": 1, "float16": 2, "int8": 3, "complex64": 4, "complex128": 5, "int32": 10,
    "bfloat16": 14, "float8_e4m3fn": 28, "float8_e5m2": 29,
}  # fmt: skip
"""cudaDataType by dtype."""
ITEMSIZE = {code: as_dtype(name).itemsize for name, code in TYPE.items()}
"""Bytes of an element, by type code."""
COMPUTE = {"float32": 68, "float64": 70, "int32": 72, "complex64": 68, "complex128": 70}
"""cublasComputeType by gemmhub's compute dtype."""
FAST_TF32 = 77
"""cublasComputeType of tf32 products."""
RELU, BIAS, GELU = 2, 4, 32
ACTIVATION = {None: 0, "relu": RELU, "gelu": GELU}
NO_EPILOGUE = 1
"""cublasLtEpilogue: flags that are combined, and the code of none."""
MAX_LAUNCHES = 4096
"""Largest number of launches of a call whose batch is not evenly spaced."""
MAX_BATCH = 2**31 - 1
"""Largest batch of one launch."""
BIAS_ALIGNMENT = 16
"""The usual alignment of a bias in bytes: arrays have it, slices may not."""

_SMALL = {"float16", "bfloat16", "float32"}
_RESULTS = {
    ("float16", "float16"): {"float16", "float32"},
    ("bfloat16", "bfloat16"): {"bfloat16", "float32"},
    ("float32", "float32"): {"float32"},
    ("float64", "float64"): {"float64"},
    ("complex64", "complex64"): {"complex64"},
    ("complex128", "complex128"): {"complex128"},
    ("int8", "int8"): {"int32"},
    ("float8_e4m3fn", "float8_e4m3fn"): _SMALL,
    ("float8_e4m3fn", "float8_e5m2"): _SMALL,
    ("float8_e5m2", "float8_e4m3fn"): _SMALL,
}
"""The result dtypes that the library supports for each pair of operands."""


@dataclass(frozen=True)
class Matrix:
    """A batch of column-major matrices as they are stored, before any transposition."""

    type: int
    """The cudaDataType of the elements."""
    rows: int
    cols: int
    ld: int
    """The leading dimension in elements."""
    stride: int
    """The batch stride in elements."""
    alignment: int
    """The alignment of every matrix in bytes."""


@dataclass(frozen=True)
class Form:
    """The parameters of one cublasLtMatmul without addresses and scalars: all that an algorithm may depend on."""

    compute: int
    """The cublasComputeType."""
    scale: int
    """The cudaDataType of alpha and beta."""
    trans_a: bool
    trans_b: bool
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    count: int = 1
    """Products of the batch."""
    epilogue: int = NO_EPILOGUE
    bias_type: int | None = None
    bias_alignment: int = BIAS_ALIGNMENT
    addend: bool = False
    """Whether beta * C is added."""

    @property
    def k(self) -> int:
        """The K of the product."""
        return self.a.rows if self.trans_a else self.a.cols


@dataclass(frozen=True)
class Lowered:
    """A problem as one or several calls of cublasLtMatmul."""

    main: Form | None
    """The form of the product; None where K is 0."""
    zero: Form | None
    """The form for the same result without the product, by two matrices of zeros: where K is 0, or alpha may be 0."""
    swapped: bool
    """Whether the library's A is the problem's b, and its B the problem's a."""
    offsets: tuple[tuple[int, int, int, int], ...]
    """For each launch, the offsets in bytes of the library's A, B, C and D."""

    @property
    def forms(self) -> tuple[Form, ...]:
        """All forms that calls may need, the usual one first."""
        usual = tuple(form for form in (self.main, self.zero) if form is not None)
        return usual + tuple(bias_anywhere(form) for form in usual if form.bias_type is not None)

    @property
    def zero_bytes(self) -> int:
        """Bytes of the zeros that serve as A and as B of ``zero``."""
        return _ZERO_COLUMN * max(self.zero.a.cols, self.zero.b.cols) if self.zero else 0


def bias_anywhere(form: Form) -> Form:
    """Return the variant of ``form`` for a bias at any address."""
    return replace(form, bias_alignment=4 if form.bias_type == TYPE["float32"] else 2)


_ZERO_COLUMN = 16
"""Bytes of a column of zeros: the library's fast algorithms need multiples of 16 bytes, and fp8 a K of 16."""


def lowered(problem: GemmProblem) -> Lowered | Refusal:
    """Lower ``problem``, whose result has elements, or return the reason why the library does not take it."""
    refusal = check_types(problem)
    if refusal is not None:
        return refusal
    problem = fold_batch(problem) or problem
    call = _reading(problem)
    if isinstance(call, Refusal):
        return call
    dim, outer = lowering.split(call.batch)
    if dim.count > MAX_BATCH:
        return Refusal(f"a batch of {dim.count} products: cuBLASLt allows {MAX_BATCH}", "multiply in parts")
    launches = 1
    for each in outer:
        launches *= each.count
    if launches > MAX_LAUNCHES:
        return Refusal(
            f"the batch is not evenly spaced and takes {launches} launches: at most {MAX_LAUNCHES} are allowed",
            "pass contiguous operands, or multiply in parts",
        )
    c_operand = problem.c or problem.out
    first, second = (problem.b, problem.a) if call.swapped else (problem.a, problem.b)
    m, n, k = call.m, call.n, call.k
    sizes = ((k, m) if call.trans_a else (m, k), (n, k) if call.trans_b else (k, n), (m, n), (m, n))
    lds = (call.lda, call.ldb, call.ldc, call.ldd)
    strides = dim.strides
    a, b, c, d = (
        Matrix(
            TYPE[operand.dtype.name], *sizes[i], lds[i], strides[i],
            lowering.alignment(operand, [each.strides[i] for each in (*outer, dim)]),
        )
        for i, operand in enumerate((first, second, c_operand, problem.out))
    )  # fmt: skip
    epilogue = ACTIVATION[problem.activation] | (BIAS if problem.bias else 0)
    compute = problem.compute_dtype.name
    form = Form(
        # Also for "bf16": the library's own bfloat16 mode is no faster.
        compute=FAST_TF32 if problem.permits_tf32 else COMPUTE[compute],
        scale=TYPE[compute],
        trans_a=call.trans_a,
        trans_b=call.trans_b,
        a=a,
        b=b,
        c=c,
        d=d,
        count=dim.count,
        epilogue=epilogue or NO_EPILOGUE,
        bias_type=TYPE[problem.bias.dtype.name] if problem.bias else None,
        addend=problem.c is not None,
    )
    refusal = _narrow(form) if k else None
    if refusal is not None:
        return refusal
    # An integer product is finite, so that alpha = 0 gives 0 without a form of its own.
    zero = k == 0 or not (problem.alpha_is_one or compute == "int32")
    return Lowered(
        form if k else None,
        _without_product(form, m, n, first.dtype.itemsize) if zero else None,
        call.swapped,
        tuple(lowering.offsets(outer, [x.dtype.itemsize for x in (first, second, c_operand, problem.out)])),
    )


def check_types(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of dtypes or an epilogue that the library does not support."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    results = _RESULTS.get((a, b))
    if results is None:
        why = "no product of two float8_e5m2" if a == b == "float8_e5m2" else f"no product of {a} by {b}"
        return Refusal(f"cuBLASLt has {why}", "convert an operand, so that both have the dtype of the wider one")
    if out not in results:
        return Refusal(
            f"cuBLASLt has no {a} by {b} with a result of {out}", f"give out_dtype= one of {', '.join(sorted(results))}"
        )
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}: cuBLASLt adds only a c of the result's dtype", f"convert c to {out}")
    if problem.activation not in ACTIVATION:
        return Refusal(f"cuBLASLt has no activation {problem.activation}", "apply it to the product afterwards")
    if problem.compute_dtype.name != "float32" and (problem.bias or problem.activation):
        return Refusal(
            f"cuBLASLt has no bias or activation for products accumulated in {problem.compute_dtype}",
            "add a bias as c= (broadcast to the result's shape by a copy), apply an activation afterwards",
        )
    if problem.bias is not None:
        wanted = "bfloat16" if a.startswith("float8") and out == "float32" else out
        if problem.bias.dtype.name != wanted:
            return Refusal(
                f"the bias is {problem.bias.dtype}: cuBLASLt adds {wanted} to {a} by {b} with a result of {out}",
                f"convert the bias to {wanted}" if wanted == out else "give out_dtype='bfloat16', or add it afterwards",
            )
        if problem.bias.stride != 1:
            return Refusal(
                f"the bias has a stride of {problem.bias.stride} elements: cuBLASLt takes contiguous ones",
                "pass a contiguous copy of the bias",
            )
    return None


def _reading(problem: GemmProblem) -> BlasCall | Refusal:
    """Return the problem as a column-major call whose bias, if any, has one element for each row of the result."""
    calls = readings(problem, "col")
    return calls if isinstance(calls, Refusal) else with_bias(calls, problem, "cuBLASLt")


def _narrow(form: Form) -> Refusal | None:
    """Refuse int8 matrices for which the library proposes algorithms that fail or compute wrong results."""
    if form.a.type != TYPE["int8"]:
        return None
    for matrix in (form.a, form.b, form.c) if form.addend else (form.a, form.b):
        if matrix.ld % 4 or matrix.alignment % 4:
            return Refusal(
                f"a matrix of {_NAME[matrix.type]} has leading dimension {matrix.ld} and is aligned to "
                f"{matrix.alignment} bytes; cuBLASLt's int8 products need multiples of 4",
                "pad the operands to sizes that are multiples of 4 (16 is best)",
            )
    return None


def _without_product(form: Form, m: int, n: int, itemsize: int) -> Form:
    """Return ``form`` with A^T and B of zeros, whose K is just long enough for every dtype."""
    k = _ZERO_COLUMN // itemsize
    a, b = (Matrix(x.type, k, count, k, 0, 256) for x, count in ((form.a, m), (form.b, n)))
    return replace(form, trans_a=True, trans_b=False, a=a, b=b)


_NAME = {code: name for name, code in TYPE.items()}


def stored(form: Form) -> str:
    """Describe how the operands are stored, for refusals."""
    words = [
        f"{name} {_NAME[x.type]} {x.rows}x{x.cols} with leading dimension {x.ld}, aligned to {x.alignment} bytes"
        for name, x in (("A", form.a), ("B", form.b), ("D", form.d))
    ]
    letters = "".join("T" if x else "N" for x in (form.trans_a, form.trans_b))
    return f"column-major {letters}: {'; '.join(words)}"


def advice(problem: GemmProblem, form: Form) -> str:
    """Return the most likely remedy where the library has no algorithm."""
    if form.epilogue & RELU:
        return "apply relu to the product afterwards: algorithms older than Hopper's turn NaN into 0"
    if form.epilogue & GELU and form.d.type == TYPE["float32"]:
        return "apply gelu to the product afterwards, or ask for a 16-bit result: the library's gelu has 18 bits"
    if form.addend and form.bias_type is not None:
        return "add the bias afterwards: algorithms older than Hopper's round the sum before they add it"
    if problem.a.dtype.itemsize == 1:
        multiple = 16 if problem.a.dtype.name.startswith("float8") else 4
        hints = []
        if not form.trans_a or form.trans_b:
            hints.append("pass a row-major and b as the transpose of a contiguous (n, k) array")
        hints.append(f"sizes and leading dimensions that are multiples of {multiple} (16 is best), aligned to 16 bytes")
        return "; ".join(hints)
    if form.count > 1 or any(x.ld % 8 for x in (form.a, form.b, form.d)):
        return "pass contiguous operands; sizes that are multiples of 8 have the most algorithms"
    return "use another backend, or float32 operands"
