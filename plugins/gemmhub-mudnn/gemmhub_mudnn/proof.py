"""Proves each kind of product right: a small one is compared with NumPy before the first problem of its kind runs.

Only public programs that call muDNN show what it computes. Whether it honours leading dimensions, takes a bias with a
batch and keeps TF32 out of float32 is tried on the installed library and device, with sizes that fit no tile. A kind
whose product is wrong, or not taken, is refused from then on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from gemmhub_musa import proof, selftest
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST

from gemmhub import accuracy
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.errors import AllocationError, BackendError
from gemmhub.problem import GemmProblem
from gemmhub_mudnn.engine import Engine
from gemmhub_mudnn.launch import Gemm
from gemmhub_mudnn.library import MudnnError
from gemmhub_mudnn.lower import Form, Lowered, Tensor, lowered

M, N, K, COUNT = 13, 17, 259, 3
"""Sums of 259 products of one sign: an accumulator of half precision shows, too."""
ALPHA, BETA = -0.5, 1.5
LIMIT = 64 * 2**20
OTHER = "use another backend (mublas), or convert the operands"
"""The remedy for what muDNN does not take."""
_REPORT = "use another backend (mublas), and report this with the output of `gemmhub doctor musa`"


@dataclass(frozen=True)
class Kind:
    """The properties of a form, except its sizes, that the library may get wrong."""

    dtype: str
    result: str
    tensor_math: bool
    trans_a: bool
    trans_b: bool
    stack: bool
    shared_a: bool
    shared_b: bool
    padded: bool
    """Whether a leading dimension or batch stride is larger than a dense matrix's."""
    aligned: bool
    addend: bool
    bias: bool
    deterministic: bool

    @classmethod
    def of(cls, form: Form, aligned: bool) -> Kind:
        """Return the kind of ``form``."""
        return cls(
            form.dtype, form.result, form.tensor_math, form.trans_a, form.trans_b, form.stack,
            form.stack and form.a.count == 1, form.stack and form.b.count == 1,
            not all(tensor.dense for tensor in (form.a, form.b, form.c, form.d)), aligned, form.addend, form.bias,
            form.deterministic,
        )  # fmt: skip

    def __str__(self) -> str:
        math = "tensor" if self.tensor_math else "scalar"
        words = [f"{self.dtype} to {self.result} by {math} math", f"{M}x{K} by {K}x{N}"]
        letters = "".join("T" if x else "N" for x in (self.trans_a, self.trans_b))
        words.append(f"stored {letters}")
        if self.stack:
            shared = {(True, False): ", one a", (False, True): ", one b"}.get((self.shared_a, self.shared_b), "")
            words.append(f"{COUNT} at once{shared}")
        words += ["padded"] * self.padded + ["unaligned"] * (not self.aligned)
        words += ["with an addend"] * self.addend + ["with a bias"] * self.bias
        return ", ".join(words + ["deterministic"] * self.deterministic)

    @property
    def form(self) -> Form:
        """The small product of this kind."""
        pad = 3 * self.padded

        def tensor(rows: int, cols: int, shared: bool = False) -> Tensor:
            ld, count = cols + pad, COUNT if self.stack and not shared else 1
            return Tensor(count, rows, cols, ld, rows * ld + (pad if count > 1 else 0))

        c = tensor(M, N)
        return Form(
            self.dtype, self.result, self.tensor_math, self.trans_a, self.trans_b,
            tensor(*(K, M) if self.trans_a else (M, K), self.shared_a),
            tensor(*(N, K) if self.trans_b else (K, N), self.shared_b),
            c, c, self.stack, self.addend, self.bias, self.deterministic,
        )  # fmt: skip

    @property
    def advice(self) -> str:
        """A remedy that makes the problem one of a more common kind."""
        if self.bias or self.addend:
            return "add the bias or c afterwards, or use another backend (mublas)"
        if self.padded or not self.aligned:
            return "pass contiguous operands, or use another backend (mublas)"
        return OTHER


def first(engine: Engine, dtype: str, result: str) -> Refusal | None:
    """Run the self-test that all MUSA backends share: a tiny product in every storage order, exact.

    Raises AllocationError, which decides nothing about the library.
    """

    def prepare(problem: GemmProblem) -> Kernel | Refusal:
        found = lowered(problem)
        if isinstance(found, Refusal):
            return found
        try:
            return Kernel(Gemm(engine, found, LIMIT).run, "muDNN")
        except MudnnError as error:
            return Refusal(f"muDNN does not take {dtype} by {dtype} with a result of {result}: {error}", OTHER)

    refusal = selftest.check(prepare, engine.runtime, engine.index, dtype, result)
    if refusal is not None and AllocationError.__name__ in refusal.reason:
        raise AllocationError(refusal.reason)
    return refusal


def prove(engine: Engine, kind: Kind) -> Refusal | None:
    """Run the product of ``kind``; None where it is right. Raises AllocationError, as :func:`first` does."""
    try:
        with engine.runtime.device(engine.index), ExitStack() as stack:
            return _compare(engine, kind, stack)
    except (MudnnError, BackendError) as error:
        return Refusal(f"muDNN does not take products of this kind ({kind}): {error}", kind.advice)


def _compare(engine: Engine, kind: Kind, stack: ExitStack) -> Refusal | None:
    form, rng = kind.form, np.random.default_rng(7)
    dtype, result = as_dtype(kind.dtype), as_dtype(kind.result)
    a, b = (_Operand(engine, stack, rng, dtype, x, kind.aligned) for x in (form.a, form.b))
    c, d = (_Operand(engine, stack, rng, result, x, kind.aligned) for x in (form.c, form.d))
    bias = _Operand(engine, stack, rng, result, Tensor(1, 1, N, N, N), False)
    b.alternate(1 if kind.trans_b else 2)
    alpha, beta = (ALPHA, BETA) if kind.addend else (1.0, 0.0)
    precision = "tf32" if kind.dtype == "float32" and kind.tensor_math else "ieee"
    right = accuracy.reference(
        a.values.swapaxes(1, 2) if kind.trans_a else a.values,
        b.values.swapaxes(1, 2) if kind.trans_b else b.values,
        model=accuracy.error_model(dtype, dtype, result, as_dtype("float32"), precision),
        alpha=alpha, beta=beta, c=c.values if kind.addend else None, bias=bias.values[0, 0] if kind.bias else None,
        out_dtype=result,
    )  # fmt: skip
    gemm = Gemm(engine, Lowered(form, None, False, ((0, 0, 0, 0),), kind.aligned), LIMIT)
    # An addend in memory of its own, then one in the result's.
    for addend in (c, d) if kind.addend else (None,):
        d.reset(c.values if addend is d else np.nan)
        others = {"c": addend.address} if addend else {}
        others |= {"bias": bias.address} if kind.bias else {}
        gemm.run(a.address, b.address, d.address, alpha, beta, 0, **others)
        engine.runtime.synchronize()
        refusal = _verdict(kind, right, *d.read())
        if refusal is not None:
            return refusal
    return None


def _verdict(kind: Kind, right: accuracy.Reference, got: Any, strays: int) -> Refusal | None:
    wrong = proof.wrong_elements(right, got)
    if wrong:
        return Refusal(f"muDNN's product is wrong ({kind}): {wrong}", _REPORT)
    if strays:
        return Refusal(f"muDNN writes {strays} bytes outside the result ({kind})", kind.advice)
    return None


class _Operand:
    """A tensor in device memory and its values on the host: (count, rows, cols)."""

    def __init__(
        self, engine: Engine, stack: ExitStack, rng: np.random.Generator, dtype: Any, tensor: Tensor, aligned: bool
    ) -> None:
        self._runtime, self._dtype, self._tensor = engine.runtime, dtype, tensor
        self._first = 0 if aligned else 1
        self._size = self._first + tensor.count * max(tensor.stride, tensor.rows * tensor.ld)
        self._base = engine.runtime.malloc(self._size * dtype.itemsize)
        stack.callback(engine.runtime.free, self._base)
        self.address = self._base + self._first * dtype.itemsize
        self._image = np.full(self._size, np.nan, dtype)
        self.values = self._view(self._image)
        self.values[...] = rng.uniform(0.5, 1.5, self.values.shape).astype(dtype)
        self._write()

    def alternate(self, axis: int) -> None:
        """Negate every second slice along ``axis``."""
        odd = np.arange(self.values.shape[axis]) % 2 == 1
        np.moveaxis(self.values, axis, 0)[odd] *= -1
        self._write()

    def reset(self, values: Any) -> None:
        """Write ``values``, with NaN around them: a result that depends on its old content shows."""
        self._image.fill(np.nan)
        self.values[...] = values
        self._write()

    def read(self) -> tuple[Any, int]:
        """Return the values in device memory, and how many bytes around them :meth:`reset` did not write."""
        image = np.empty_like(self._image)
        self._runtime.memcpy(image.ctypes.data, self._base, image.nbytes, TO_HOST)
        values = self._view(image).copy()
        self._view(image)[...] = self.values
        return values, int(np.count_nonzero(image.view(np.uint8) != self._image.view(np.uint8)))

    def _view(self, image: Any) -> Any:
        tensor, size = self._tensor, self._dtype.itemsize
        shape, strides = (tensor.count, tensor.rows, tensor.cols), (tensor.stride * size, tensor.ld * size, size)
        return np.ndarray(shape, self._dtype, buffer=image, offset=self._first * size, strides=strides)

    def _write(self) -> None:
        self._runtime.memcpy(self._base, self._image.ctypes.data, self._image.nbytes, TO_DEVICE)
