"""Warm calls with an epilogue or a packed b: one native call, with few functions of Python before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import limits, probe

import gemmhub
from gemmhub import accuracy
from gemmhub.numpy_backend.probe import cpu_flags

pytestmark = pytest.mark.skipif(not probe.look().native, reason="no kernels of its own here")

BF16 = np.dtype(ml_dtypes.bfloat16)
MOST = 11
"""Functions of Python that a warm call may enter: the call, its key, the kernel's function, and its thread limit."""


def _random(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def _entered(call: Callable[[], object]) -> list[str]:
    """The functions of Python that ``call`` enters beside itself."""
    names: list[str] = []

    def see(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names[1:]


@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("options", [("bias",), ("bias", "activation"), ("alpha", "beta", "c"), ()])
@pytest.mark.parametrize("packed", [True, False])
def test_a_warm_call_enters_few_functions(packed: bool, options: tuple[str, ...], out: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = _random(rng, BF16, 64, 64), _random(rng, BF16, 64, 64)
    every = {"bias": a[0].copy(), "activation": "relu", "alpha": 0.5, "beta": 2.0, "c": b.copy()}
    named: dict[str, Any] = {name: every[name] for name in options}
    if out:
        named["out"] = np.empty((64, 64), BF16)
    right = gemmhub.pack(b, backend="cpu") if packed else b
    if not packed:
        named["backend"] = "cpu"

    def call() -> Any:
        return gemmhub.matmul(a, right, **named)

    call()
    entered = _entered(call)
    assert len(entered) <= MOST, entered


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("c_shape", [(7, 40), (40,), (1, 40), (7, 1), (3, 7, 40), (3, 1, 40), ()])
@pytest.mark.parametrize("bias_shape", [(40,), (1, 40), (7, 1)])
def test_addends_broadcast(dtype: Any, packed: bool, c_shape: tuple[int, ...], bias_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    a, b = _random(rng, dtype, 3, 7, 33), _random(rng, dtype, 33, 40)
    c, bias = _random(rng, dtype, *c_shape), _random(rng, dtype, *bias_shape)
    right = gemmhub.pack(b, a_dtype=dtype, backend="cpu") if packed else b
    backend = None if packed else "cpu"
    options: dict[str, Any] = {"c": c, "beta": 0.5, "bias": bias, "alpha": 2.0, "backend": backend}
    first, second = (gemmhub.matmul(a, right, **options) for _ in range(2))  # the second call is a warm one
    model = accuracy.error_model(dtype, dtype, dtype, np.dtype(np.float32))
    reference = accuracy.reference(a, b, model=model, out_dtype=dtype, alpha=2.0, beta=0.5, c=c, bias=bias)
    for result in (first, second):
        assert reference.ratio(result).max() <= 1
    assert (first.view(np.uint16) == second.view(np.uint16)).all()


def test_subnormal_infinite_and_nan_biases_are_read_exactly() -> None:
    """But for subnormal numbers of bfloat16, which vcvtneps2bf16 stores as 0."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), BF16):
        bias = bits.view(dtype)
        a, b = np.zeros((2, 4), dtype), np.zeros((4, bits.size), dtype)
        out = np.empty((2, bits.size), dtype)
        for _ in range(2):
            gemmhub.matmul(a, b, bias=bias, out=out, backend="cpu")
        expected = bias.astype(np.float32)
        subnormal = (expected != 0) & (np.abs(expected) < np.finfo(np.float32).tiny)
        for row in out.astype(np.float32):
            stored_as_zero = subnormal & (row == 0) & ("avx512_bf16" in cpu_flags())
            np.testing.assert_array_equal(np.where(stored_as_zero, expected, row), expected)


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_out_may_overlap_each_operand(name: str) -> None:
    rng = np.random.default_rng(3)

    def operands() -> dict[str, Any]:
        memory = _random(rng, BF16, 40, 32)
        shapes = {"a": (32, 32), "b": (32, 32), "c": (32, 32), "bias": (32,)}
        others: dict[str, Any] = {x: _random(rng, BF16, *shape) for x, shape in shapes.items()}
        others[name] = memory[4] if name == "bias" else memory[4:36]
        return {**others, "out": memory[:32]}

    for _ in range(2):
        shared = operands()
        apart = {x: value.copy() for x, value in shared.items()}
        results = []
        for x in (shared, apart):
            options = {"c": x["c"], "beta": 1.0, "bias": x["bias"], "out": x["out"], "backend": "cpu"}
            results.append(gemmhub.matmul(x["a"], x["b"], **options))
        assert results[0] is shared["out"]
        assert (results[0].view(np.uint16) == results[1].view(np.uint16)).all()


def test_c_may_be_out() -> None:
    rng = np.random.default_rng(4)
    a, b, c = (_random(rng, BF16, 48, 48) for _ in range(3))
    expected = gemmhub.matmul(a, b, c=c, beta=1.0, backend="cpu")
    for _ in range(2):
        out = c.copy()
        gemmhub.matmul(a, b, c=out, beta=1.0, out=out, backend="cpu")
        assert (out.view(np.uint16) == expected.view(np.uint16)).all()


def test_two_packed_operands_of_one_shape_keep_their_kernels() -> None:
    rng = np.random.default_rng(5)
    a, b = _random(rng, BF16, 8, 64), _random(rng, BF16, 64, 64)
    ours, theirs = (gemmhub.pack(b, backend=name) for name in ("cpu", "numpy"))
    expected = [gemmhub.matmul(a, x) for x in (ours, theirs)]
    for _ in range(2):
        for packed, result in zip((ours, theirs), expected):
            assert (gemmhub.matmul(a, packed).view(np.uint16) == result.view(np.uint16)).all()


def test_a_packed_operand_refuses_what_does_not_fit() -> None:
    rng = np.random.default_rng(6)
    a, b = _random(rng, BF16, 8, 64), _random(rng, BF16, 64, 32)
    packed = gemmhub.pack(b, backend="cpu")
    kernel = gemmhub.plan(a, packed).kernel
    assert kernel.direct is not None
    out = np.zeros((8, 32), BF16)
    for wrong, into in ((a[:, :60], out), (a, np.zeros((8, 30), BF16)), (a, np.zeros((7, 32), BF16))):
        with pytest.raises(gemmhub.KernelError):
            kernel.direct(wrong, packed.payload, into)
        assert not into.any()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("how", ["scalars", "list", "tuple", "memory map"])
def test_operands_that_are_no_arrays(how: str, packed: bool, tmp_path: Path) -> None:
    """A list, a tuple, a scalar or a memory map is read as the array that it stands for, in every call."""
    rng = np.random.default_rng()
    a, b, bias = (_random(rng, np.float16, *shape) for shape in ((64, 64), (64, 64), (64,)))
    c: Any = np.float16(0.5)
    forms: dict[str, Any] = {"scalars": bias, "list": list(bias), "tuple": tuple(bias)}
    if how == "memory map":
        stored = np.memmap(tmp_path / "bias", np.float16, "w+", shape=(64,))
        stored[:] = bias
        forms[how] = stored
    right = gemmhub.pack(b, backend="cpu") if packed else b
    named = {} if packed else {"backend": "cpu"}
    expected = gemmhub.matmul(a, right, bias=bias, c=np.full((64, 64), 0.5, np.float16), beta=1.0, **named)
    for _ in range(3):
        done = gemmhub.matmul(a, right, bias=forms[how], c=c, beta=1.0, **named)
        np.testing.assert_array_equal(done, expected)


def test_a_thread_limit_is_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_chosen", -9)
    assert limits.chosen() == 1
