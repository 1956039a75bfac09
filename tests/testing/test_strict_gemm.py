"""The strict model of BLAS rejects what BLAS rejects, and computes what the formula says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmhub.testing.strict_gemm import Flat, StrictGemmError, strict_gemm

Array = Any

RIGHT = {
    "order": "col",
    "trans_a": False,
    "trans_b": False,
    "m": 2,
    "n": 3,
    "k": 4,
    "alpha": 1,
    "lda": 2,
    "ldb": 4,
    "beta": 0,
    "ldc": 2,
    "ldd": 2,
}


def strict(a_size: int = 8, b_size: int = 12, d_size: int = 6, **changes) -> Array:
    """The product of column-major 2 x 4 and 4 x 3 matrices, with parameters changed."""
    arguments = {
        **RIGHT,
        "a": Flat(np.arange(float(a_size))),
        "b": Flat(np.arange(float(b_size)) - 5),
        "c": None,
        "d": Flat(np.full(d_size, np.nan)),
        **changes,
    }
    strict_gemm(**arguments)
    return arguments["d"].buffer


def test_strict_gemm_multiplies():
    a, b = np.arange(8.0).reshape(4, 2).T, (np.arange(12.0) - 5).reshape(3, 4).T
    np.testing.assert_array_equal(strict(), (a @ b).T.ravel())
    a, b = np.arange(8.0).reshape(2, 4), (np.arange(12.0) - 5).reshape(4, 3)
    np.testing.assert_array_equal(strict(order="row", lda=4, ldb=3, ldc=3, ldd=3), (a @ b).ravel())


def test_strict_gemm_written_out():
    """Two by two by hand, with everything on: D = relu(2 A^T B + 3 C + bias)."""
    d = np.full(5, 77.0)
    strict_gemm(
        "row", True, False, 2, 2, 2, 2, Flat(np.array([1.0, 2, 9, 3, 4])), 3, Flat(np.array([5.0, 6, 7, 8])), 2,
        3, Flat(np.array([-99.0, 1, 0, -1]), 0), 2, Flat(d, 1), 2,
        bias=np.array([10.0, 20]), bias_axis="m", activation="relu",
    )  # fmt: skip
    # A^T = [[1, 3], [2, 4]] and B = [[5, 6], [7, 8]]: A^T B = [[26, 30], [38, 44]].
    np.testing.assert_array_equal(d, [77, 0, 60 + 3 + 10, 76 + 20, 88 - 3 + 20])


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("order", {"order": "C"}),
        ("trans_a", {"trans_a": "N"}),
        ("trans_b", {"trans_b": 1}),
        ("m", {"m": -1}),
        ("n", {"n": -1}),
        ("k", {"k": -1}),
        ("batch", {"batch": (-1, 0, 0, 0, 0)}),
        ("lda", {"lda": 1}),
        ("lda", {"trans_a": True, "lda": 3}),
        ("lda", {"m": 0, "lda": 0}),
        ("lda", {"order": "row", "lda": 3}),
        ("ldb", {"ldb": 3}),
        ("ldb", {"trans_b": True, "ldb": 2}),
        ("ldc", {"ldc": 1}),
        ("ldc", {"order": "row", "lda": 4, "ldb": 3, "ldc": 2}),
        ("ldd", {"ldd": 1}),
        ("a", {"a_size": 7}),
        ("a", {"lda": 3}),
        ("a", {"a": Flat(np.zeros(8), -1)}),
        ("a", {"a": Flat(np.zeros(8), 1)}),
        ("a", {"a": Flat(np.zeros((2, 4)))}),
        ("a", {"a": Flat(np.zeros(8)), "b_size": 24, "d_size": 12, "batch": (2, 1, 12, 0, 6)}),
        ("b", {"b_size": 11}),
        ("b", {"batch": (2, 0, 12, 0, 6), "d_size": 12}),
        ("b", {"batch": (2, 0, -1, 0, 6), "d_size": 12}),
        ("c", {"beta": 1}),
        ("c", {"beta": 1, "c": Flat(np.zeros(5))}),
        ("d", {"d_size": 5}),
        ("d", {"ldd": 3}),
        ("d", {"d_size": 20, "batch": (2, 0, 0, 0, 5)}),
        ("d", {"d_size": 20, "batch": (2, 0, 0, 0, 0)}),
        ("bias", {"bias": np.zeros(2), "bias_axis": "n"}),
        ("bias_axis", {"bias": np.zeros(2)}),
        ("bias_axis", {"bias_axis": "m"}),
        ("bias_axis", {"bias": np.zeros(2), "bias_axis": "rows"}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_strict_gemm_rejects(argument, changes):
    with pytest.raises(StrictGemmError) as caught:
        strict(**changes)
    assert caught.value.argument == argument


def test_strict_gemm_rejects_shared_memory_but_not_the_addend_in_place():
    memory = np.arange(40.0)
    for shared, where in (("a", Flat(memory, 5)), ("b", Flat(memory, 1)), ("c", Flat(memory, 4))):
        with pytest.raises(StrictGemmError, match=f"shared with {shared}"):
            strict(**{shared: where, "beta": 1 if shared == "c" else 0, "d": Flat(memory, 6)})
    np.testing.assert_array_equal(memory, np.arange(40.0))
    product_only = strict()
    strict(c=Flat(memory, 6), d=Flat(memory, 6), beta=2)
    np.testing.assert_array_equal(memory[6:12], product_only + 2 * np.arange(6.0, 12.0))
    strict(c=Flat(memory, 4), d=Flat(memory, 6))  # not read, so not shared


def test_strict_gemm_never_reads_c_when_beta_is_zero():
    np.testing.assert_array_equal(strict(c=Flat(np.full(6, np.nan))), strict())
    np.testing.assert_array_equal(strict(c=Flat(np.full(1, np.nan))), strict())


def test_strict_gemm_reads_and_writes_nothing_for_an_empty_result():
    nothing = Flat(np.empty(0))
    strict(m=0, a=nothing, b_size=12, d=nothing)
    strict(n=0, b=nothing, d=nothing)
    strict(batch=(0, 8, 12, 6, 6), a=nothing, b=nothing, d=nothing)
    np.testing.assert_array_equal(strict(k=0, a=nothing, b=nothing), np.zeros(6))


@pytest.mark.parametrize(
    ("operand", "result"), [("float16", "float32"), ("int8", "int32"), ("complex64", "complex64"), ("int8", "float32")]
)
def test_strict_gemm_takes_other_dtypes(operand, result):
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-9, 10, size).astype(operand) for size in (8, 12))
    d = strict(a=Flat(a), b=Flat(b), d=Flat(np.zeros(6, result)))
    wide = np.result_type(result, np.int64)
    expected = a.reshape(4, 2).T.astype(wide) @ b.reshape(3, 4).T.astype(wide)
    np.testing.assert_array_equal(d, expected.T.ravel())
