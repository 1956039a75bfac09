"""Packed operands: exact for every result dtype, and errors of packing."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from products import BF16, C64, C128, E4M3, E5M2, F16, F32, F64, I8, I32, I64, NATURAL, U32, U64, draw, ratio

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Ready, dtypes
from gemmhub._choice import registry
from gemmhub.errors import AllocationError, DTypeError, InputError, NoBackendError

OUT = tuple(dtypes.as_dtype(name) for name in dtypes.STANDARD)


def results(a, b):
    """The product in every result dtype that there is."""
    for out_dtype in (None, *OUT):
        with suppress(DTypeError):
            yield gemmhub.matmul(a, b, out_dtype=out_dtype)


@pytest.mark.parametrize("left", [*NATURAL, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("right", [*NATURAL, E4M3, E5M2], ids=str)
def test_a_packed_product_is_right_in_every_result_dtype(left, right, rng):
    """Although packing only assumes a result dtype."""
    a, b = draw(rng, (3, 4), left), draw(rng, (4, 5), right)
    try:
        packed = gemmhub.pack(b, a_dtype=left)
    except NoBackendError:  # no BLAS multiplies such integers
        assert {left.kind, right.kind} <= set("biu")
        return
    with np.errstate(all="ignore"):
        found = list(results(a, packed))
        assert found
        for got in found:
            assert ratio(got, a, b, out_dtype=got.dtype) <= 1


@pytest.mark.parametrize(
    ("left", "b", "out_dtype"),
    [
        (I64, np.array([[2**62 + 1], [1]], U64), I64),
        (I8, np.array([[2**64 - 1], [2]], U64), U64),
        (U64, np.array([[2**62 + 1], [1]], I64), U64),
        (E4M3, np.array([[2**24 + 1], [2]], I32), F64),
        (E5M2, np.array([[2**32 - 1], [2]], U32), F64),
        (BF16, np.array([[2**24 + 1], [2]], U32), F64),
        (BF16, np.array([[2**24 + 1], [2]], U64), F64),
    ],
    ids=str,
)
def test_an_operand_that_the_assumed_result_would_round_is_packed_as_it_is(left, b, out_dtype):
    ones = np.ones((1, 2), left)
    packed = gemmhub.pack(b, a_dtype=left)
    assert gemmhub.matmul(ones, packed, out_dtype=out_dtype)[0, 0] == out_dtype.type(sum(map(int, b[:, 0])) % 2**64)


@pytest.mark.parametrize(("left", "right"), [(E4M3, C64), (C64, E4M3), (E5M2, C128), (BF16, E4M3)], ids=str)
def test_fp8_is_packed_for_complex_and_real_operands(left, right, rng):
    a, b = draw(rng, (3, 4), left), draw(rng, (4, 5), right)
    packed = gemmhub.pack(b, a_dtype=left)
    out_dtype = C64 if "c" in left.kind + right.kind else F16
    assert ratio(gemmhub.matmul(a, packed, out_dtype=out_dtype), a, b, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("backend", ["", 5, "a,b", ["numpy"]], ids=repr)
def test_backend_is_one_name(backend, rng):
    b = draw(rng, (4, 5), F32)
    with pytest.raises(InputError, match="the name of one backend") as raised:
        gemmhub.pack(b, backend=backend)
    assert raised.value.argument == "backend"


class Packer(Backend):
    name = "packer"
    error: Exception

    def probe(self):
        return Ready((Device(),))

    def supports(self, problem):
        return None

    def prepare(self, problem, candidate, workspace_limit):
        raise NotImplementedError

    def pack(self, b, problem):
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("4 GiB"), AllocationError),
        (AllocationError("b needs 4 GiB on cuda:0"), AllocationError),
        (RuntimeError("no MemoryError, but a mistake"), NoBackendError),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_what_a_backend_raises_while_packing(error, expected, rng):
    backend = Packer()
    backend.error = error
    registry.registry().add(BackendDescription("packer", lambda: backend, "packs", contract=1), "packer", "packer")
    with pytest.raises(expected, match=str(error)):
        gemmhub.pack(draw(rng, (4, 5), F64), backend="packer")
