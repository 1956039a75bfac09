"""Lowers a problem to calls of cublasLtMatmul, or returns a refusal. No library is called.

The library multiplies dense column-major matrices with a leading dimension, one evenly spaced batch of them, and adds a
bias with one element for each row of the column-major result.
"""

from __future__ import annotations

from typing import NamedTuple

from gemmhub import lowering
from gemmhub.capability import Refusal
from gemmhub.dtypes import DType, as_dtype
from gemmhub.lowering import BlasCall, equivalent_calls, fold_batch, with_bias
from gemmhub.problem import Bias, GemmProblem, Operand
from gemmhub_cublas import scales
from gemmhub_cublas.scales import Scaling

TYPE = {
    "float32": 0, "float64": 1, "float16": 2, "int8": 3, "complex64": 4, "complex128": 5, "int32": 10,
    "bfloat16": 14, "float8_e4m3fn": 28, "float8_e5m2": 29,
}  # fmt: skip
"""cudaDataType by dtype."""
NAME = {code: name for name, code in TYPE.items()}
"""The dtype's name by type code."""
ITEMSIZE = {code: as_dtype(name).itemsize for name, code in TYPE.items()}
"""Bytes of an element, by type code."""
COMPUTE = {"float32": 68, "float64": 70, "int32": 72, "complex64": 68, "complex128": 70}
"""cublasComputeType by gemmhub's compute dtype."""
FAST_TF32 = 77
"""cublasComputeType of tf32 products."""
RELU, BIAS, GELU = 2, 4, 32
NO_EPILOGUE = 1
"""cublasLtEpilogue: flags that are combined, and the code of none."""
ACTIVATIONS = {"relu": RELU, "gelu_tanh": GELU}
"""The activations that the library has, and their flags. Its GELU is the tanh form."""
MAX_LAUNCHES = 4096
"""Largest number of launches of a call whose batch is not evenly spaced."""
MAX_BATCH = 2**31 - 1
"""Largest batch of one launch."""
BIAS_ALIGNMENT = 16
"""The alignment of a bias in bytes that every algorithm takes. Arrays have it; slices may not, and are copied."""
SCRATCH_ALIGNMENT = 256
"""The alignment in bytes of a workspace for the library, which follows the copy of a bias in scratch memory."""

_CODE = {as_dtype(name): code for name, code in TYPE.items()}
"""cudaDataType by the dtype itself, whose name takes numpy some microseconds."""
_FLOAT32, _FLOAT16, _BFLOAT16 = map(as_dtype, ("float32", "float16", "bfloat16"))
_FLOAT8 = _E4M3, _E5M2 = as_dtype("float8_e4m3fn"), as_dtype("float8_e5m2")
FLOAT8 = (TYPE["float8_e4m3fn"], TYPE["float8_e5m2"])
"""The types whose elements have quantization scales."""
_SMALL = "float16", "bfloat16", "float32", "float8_e4m3fn"
_RESULTS = {
    (as_dtype(a), as_dtype(b)): frozenset(map(as_dtype, results))
    for a, b, *results in (
        ("float16", "float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16", "float32"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("complex64", "complex64", "complex64"),
        ("complex128", "complex128", "complex128"),
        ("int8", "int8", "int32"),
        ("float8_e4m3fn", "float8_e4m3fn", *_SMALL),
        ("float8_e4m3fn", "float8_e5m2", *_SMALL, "float8_e5m2"),
        ("float8_e5m2", "float8_e4m3fn", *_SMALL, "float8_e5m2"),
    )
}
"""The result dtypes that the library supports for each pair of operands."""


class Matrix(NamedTuple):
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


class Form(NamedTuple):
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
    products: int = 1
    """Number of products of the batch."""
    epilogue: int = NO_EPILOGUE
    bias_type: int | None = None
    """The cudaDataType of the bias, whose address is a multiple of :data:`BIAS_ALIGNMENT`; None without a bias."""
    addend: bool = False
    """Whether beta * C is added."""
    scaling: Scaling | None = None
    """The quantization scales; None where there are none and D is not float8."""

    @property
    def k(self) -> int:
        """The K of the product."""
        return self.a.rows if self.trans_a else self.a.cols

    @property
    def bias_bytes(self) -> int:
        """Bytes of the bias, which has an element for each row of D; 0 without one."""
        return 0 if self.bias_type is None else self.d.rows * ITEMSIZE[self.bias_type]


class Lowered(NamedTuple):
    """A problem as one or several calls of cublasLtMatmul."""

    main: Form | None
    """The form of the product; None where K is 0."""
    zero: Form | None
    """The form for the same result without the product, by two matrices of zeros: where K is 0, or alpha may be 0."""
    swapped: bool
    """Whether the library's A is the problem's b, and its B the problem's a."""
    offsets: tuple[tuple[int, int, int, int], ...]
    """For each launch, the offsets in bytes of the library's A, B, C and D."""
    forms: tuple[Form, ...]
    """The forms that calls may need, the usual one first: ``main`` and ``zero``, where they are not None."""

    @property
    def in_blocks(self) -> bool:
        """Whether the product has scales that differ along k."""
        scaling = self.forms[0].scaling
        return scaling is not None and scaling.in_blocks

    @property
    def zero_bytes(self) -> int:
        """Bytes of the zeros that serve as A and as B of ``zero``."""
        return _ZERO_COLUMN * max(self.zero.a.cols, self.zero.b.cols) if self.zero else 0

    @property
    def copy_bytes(self) -> int:
        """Bytes of scratch memory before the algorithm's workspace for a copy of the bias; 0 without a bias."""
        return -(-self.forms[0].bias_bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT

    @property
    def extra_bytes(self) -> int:
        """Bytes of device memory that count as workspace beside the algorithm's: zeros, and the copy of a bias."""
        return self.zero_bytes + self.copy_bytes

    def with_rows(self, m: int) -> Lowered | None:
        """Return what :func:`lowered` returns for the same problem with ``m`` rows, without that problem.

        The problem has no batch. None where :func:`lowered` refuses ``m`` rows, from or to a single row, which has
        both storage orders, and with scales of blocks, whose layout depends on m.
        """
        d = self.forms[0].d
        if m < 2 or (d.cols if self.swapped else d.rows) < 2 or self.in_blocks:
            return None
        forms = tuple([_with_rows(form, self.swapped, m) for form in self.forms])
        first = forms[0]
        a, b, c, d = first.a, first.b, first.c, first.d
        if a.rows > a.ld or b.rows > b.ld or c.rows > c.ld or d.rows > d.ld or (self.main and _narrow(first)):
            return None
        main, zero = self.main and first, self.zero and forms[1 if self.main else 0]
        return Lowered(main, zero, self.swapped, self.offsets, forms)


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
    scaling = scales.scaling(problem, call.swapped)
    if isinstance(scaling, Refusal):
        return scaling
    if scaling is not None and scaling.amax and (launches > 1 or dim.count > 1):
        return Refusal("cuBLASLt writes amax= for single products, not for batches", "multiply the matrices one by one")
    first, second = (problem.b, problem.a) if call.swapped else (problem.a, problem.b)
    m, n, k = call.m, call.n, call.k
    dims = (*outer, dim) if call.batch else ()

    def matrix(operand: Operand, rows: int, cols: int, ld: int, which: int) -> Matrix:
        alignment = lowering.alignment(operand, [each.strides[which] for each in dims]) if dims else operand.alignment
        return Matrix(_CODE[operand.dtype], rows, cols, ld, dim.strides[which], alignment)

    d = matrix(problem.out, m, n, call.ldd, 3)
    bias, scale = problem.bias, _CODE[problem.compute_dtype]
    flags = (ACTIVATIONS[problem.activation] if problem.activation else 0) | (BIAS if bias else 0)
    form = Form(
        # Also for "bf16": the library's own bfloat16 mode is no faster.
        compute=FAST_TF32 if problem.permits_tf32 else COMPUTE[NAME[scale]],
        scale=scale,
        trans_a=call.trans_a,
        trans_b=call.trans_b,
        a=matrix(first, k, m, call.lda, 0) if call.trans_a else matrix(first, m, k, call.lda, 0),
        b=matrix(second, n, k, call.ldb, 1) if call.trans_b else matrix(second, k, n, call.ldb, 1),
        c=_addend_of(d, bias.dtype if bias else None) if problem.c is None else matrix(problem.c, m, n, call.ldc, 2),
        d=d,
        products=dim.count,
        epilogue=flags or NO_EPILOGUE,
        bias_type=_CODE[bias.dtype] if bias else None,
        addend=problem.c is not None,
        scaling=scaling,
    )
    refusal = _narrow(form) if k else None
    if refusal is not None:
        return refusal
    # An integer product is finite, so that alpha = 0 gives 0 without a form of its own.
    zero = k == 0 or not (problem.alpha_is_one or scale == TYPE["int32"])
    main = form if k else None
    without = _without_product(form, m, n, ITEMSIZE[form.a.type]) if zero else None
    forms: tuple[Form, ...] = (form,)
    if without is not None:
        forms = (without,) if main is None else (main, without)
    offsets = tuple(lowering.offsets(outer, [ITEMSIZE[x.type] for x in (form.a, form.b, form.c, form.d)]))
    return Lowered(main, without, call.swapped, offsets, forms)


def check_types(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of dtypes or an epilogue that the library does not support."""
    a, b, out = problem.a.dtype, problem.b.dtype, problem.out.dtype
    refusal = scales.check_types(problem)
    if refusal is not None:
        return refusal
    results = _RESULTS.get((a, b))
    if results is None:
        why = "no product of two float8_e5m2" if a == b == _E5M2 else f"no product of {a} by {b}"
        return Refusal(f"cuBLASLt has {why}", "convert an operand, so that both have the dtype of the wider one")
    if out not in results:
        allowed = ", ".join(sorted(x.name for x in results))
        return Refusal(f"cuBLASLt has no {a} by {b} with a result of {out}", f"give out_dtype= one of {allowed}")
    if out in _FLOAT8:
        return _check_terms(problem)
    if problem.c is not None and problem.c.dtype != problem.out.dtype:
        return Refusal(f"c is {problem.c.dtype}: cuBLASLt adds only a c of the result's dtype", f"convert c to {out}")
    if (problem.bias or problem.activation) and problem.compute_dtype != _FLOAT32:
        return Refusal(
            f"cuBLASLt has no bias or activation for products accumulated in {problem.compute_dtype}",
            "add a bias as c= (broadcast to the result's shape by a copy), apply an activation afterwards",
        )
    if problem.bias is not None:
        wanted = _BFLOAT16 if a.itemsize == 1 and out == _FLOAT32 else out
        if problem.bias.dtype != wanted:
            return Refusal(
                f"the bias is {problem.bias.dtype}: cuBLASLt adds {wanted} to {a} by {b} with a result of {out}",
                f"convert the bias to {wanted}" if wanted == out else "give out_dtype='bfloat16', or add it afterwards",
            )
    return _check_stride(problem.bias)


def _check_stride(bias: Bias | None) -> Refusal | None:
    if bias is None or bias.stride == 1:
        return None
    return Refusal(
        f"the bias has a stride of {bias.stride} elements: cuBLASLt takes contiguous ones",
        "pass a contiguous copy of the bias",
    )


def _check_terms(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of what is added to a float8 result: c and a bias of one 16-bit dtype, which is that of C."""
    terms = {name: x.dtype for name, x in (("c", problem.c), ("the bias", problem.bias)) if x is not None}
    if len({*terms.values()}) > 1 or not {*terms.values()} <= {_FLOAT16, _BFLOAT16}:
        given = " and ".join(f"{name} is {dtype}" for name, dtype in terms.items())
        return Refusal(
            f"{given}: cuBLASLt adds float16, or bfloat16, to a result of {problem.out.dtype}",
            "convert what is added to bfloat16",
        )
    return _check_stride(problem.bias)


def _reading(problem: GemmProblem) -> BlasCall | Refusal:
    """Return the problem as a column-major call whose bias, if any, has one element for each row of the result."""
    calls = equivalent_calls(problem, "col")
    return calls if isinstance(calls, Refusal) else with_bias(calls, problem, "cuBLASLt")


def _narrow(form: Form) -> Refusal | None:
    """Refuse int8 matrices for which the library proposes algorithms that fail or compute wrong results."""
    if form.a.type != TYPE["int8"]:
        return None
    for matrix in (form.a, form.b, form.c) if form.addend else (form.a, form.b):
        if matrix.ld % 4 or matrix.alignment % 4:
            return Refusal(
                f"a matrix of {NAME[matrix.type]} has leading dimension {matrix.ld} and is aligned to "
                f"{matrix.alignment} bytes; cuBLASLt's int8 products need multiples of 4",
                "pad the operands to sizes that are multiples of 4 (16 is best)",
            )
    return None


def _addend_of(d: Matrix, bias: DType | None) -> Matrix:
    """Return C where nothing is added: D itself, but in 16 bits, those of a bias, where D is float8."""
    return d._replace(type=_CODE[bias or _BFLOAT16]) if d.type in FLOAT8 else d


def _without_product(form: Form, m: int, n: int, itemsize: int) -> Form:
    """Return ``form`` with A^T and B of zeros, whose K is just long enough for every dtype."""
    k = _ZERO_COLUMN // itemsize
    a, b = (Matrix(x.type, k, count, k, 0, 256) for x, count in ((form.a, m), (form.b, n)))
    # No factors either: 0 times an infinite one is NaN.
    scaling = form.scaling.of_result if form.scaling and form.d.type in FLOAT8 else None
    return form._replace(trans_a=True, trans_b=False, a=a, b=b, scaling=scaling)


def _with_rows(form: Form, swapped: bool, m: int) -> Form:
    """Return ``form`` with ``m`` rows of the problem's a, c and result, more than one before and after."""
    compute, scale, trans_a, trans_b, a, b, c, d, products, epilogue, bias_type, addend, scaling = form
    own = c is d
    if swapped:
        b, d = _resized(b, trans_b, m), _resized(d, False, m)
    else:
        a, d = _resized(a, not trans_a, m), _resized(d, True, m)
    c = d if own else _resized(c, not swapped, m)
    return Form(compute, scale, trans_a, trans_b, a, b, c, d, products, epilogue, bias_type, addend, scaling)


def _resized(x: Matrix, rows: bool, size: int) -> Matrix:
    """Return ``x`` with ``size`` rows, else columns, in storage. The leading dimension of a single column is its size,
    and any other stays.
    """
    code, height, width, ld, stride, alignment = x
    if not rows:
        return Matrix(code, height, size, ld, stride, alignment)
    return Matrix(code, size, width, size if width == 1 else ld, stride, alignment)


def stored(form: Form) -> str:
    """Describe how the operands are stored, for refusals."""
    words = [
        f"{name} {NAME[x.type]} {x.rows}x{x.cols} with leading dimension {x.ld}, aligned to {x.alignment} bytes"
        for name, x in (("A", form.a), ("B", form.b), ("D", form.d))
    ]
    letters = "".join("T" if x else "N" for x in (form.trans_a, form.trans_b))
    return f"column-major {letters}: {'; '.join(words)}"


def advice(problem: GemmProblem, form: Form) -> str:
    """Return the most likely remedy where the library has no algorithm."""
    if form.epilogue & RELU:
        return "apply relu to the product afterwards: algorithms older than Hopper's turn NaN into 0"
    if form.epilogue & GELU and form.d.type == TYPE["float32"]:
        return "apply gelu_tanh to the product afterwards, or ask for a 16-bit result: the library's has 18 bits"
    if form.addend and form.bias_type is not None:
        return "add the bias afterwards: algorithms older than Hopper's round the sum before they add it"
    if problem.a.dtype.itemsize == 1:
        multiple = 16 if problem.a.dtype.name.startswith("float8") else 4
        hints = []
        if not form.trans_a or form.trans_b:
            hints.append("pass a row-major and b as the transpose of a contiguous (n, k) array")
        hints.append(f"sizes and leading dimensions that are multiples of {multiple} (16 is best), aligned to 16 bytes")
        return "; ".join(hints)
    if form.products > 1 or any(x.ld % 8 for x in (form.a, form.b, form.d)):
        return "pass contiguous operands; sizes that are multiples of 8 have the most algorithms"
    return "use another backend, or float32 operands"
