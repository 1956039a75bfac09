"""Bad input: one tree of errors that name the argument, what was given and what is allowed; out stays as it was."""

from __future__ import annotations

import datetime
import fractions
import pickle
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from products import BF16, E4M3, F16, F32, F64, I8, I32, I64, draw

import gemmhub
from gemmhub import errors
from gemmhub.errors import (
    AllocationError,
    ConfigError,
    DeviceError,
    DTypeError,
    GemmhubError,
    InputError,
    KernelError,
    NoBackendError,
    OutputError,
    RecordError,
    ShapeError,
)

M, K, N = 3, 4, 5


class OnCuda:
    """An array on a GPU with the interface of CuPy and Numba."""

    shape, dtype, strides = (M, K), F32, (16, 4)
    __cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (0, False), "version": 3}  # noqa: RUF012


class OnDevice:
    """An array on a GPU with the interface of the array API."""

    shape, dtype, strides = (M, K), F32, (16, 4)

    def __init__(self, kind=2):
        self.kind = kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **_):
        raise BufferError("not for the CPU")


class BrokenArray:
    """Its conversion fails in an unusual way."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no data here")


class BrokenDLPack:
    def __dlpack_device__(self):
        raise RuntimeError("device lost")


class HalfDLPack:
    def __dlpack_device__(self):
        return 1, 0


class ListShape:
    """An array whose shape is a list, which cannot be a key."""

    shape, dtype, strides = [M, K], F32, [16, 4]

    def __array__(self, dtype=None, copy=None):
        return np.ones((M, K), object)


def packed_record(shape, dtype):
    return np.zeros(shape, [("x", dtype), ("y", dtype)])


def view_of_one(shape, dtype, strides):
    return np.lib.stride_tricks.as_strided(np.zeros(100, dtype), shape, strides)


def readonly(shape, dtype=F32):
    out = np.zeros(shape, dtype)
    out.flags.writeable = False
    return out


SHAPED = {"a": (M, K), "b": (K, N), "c": (M, N), "out": (M, N), "bias": (N,)}

WRONG_KINDS = {
    "None": None,
    "a scalar": np.float32(1),
    "a str": "matrix",
    "bytes": b"matrix",
    "a set": {1, 2},
    "a dict": {1: 2},
    "a function": len,
    "a generator": (x for x in range(3)),
    "objects": np.full((M, K), None),
    "fractions": np.full((M, K), fractions.Fraction(1, 2)),
    "strings": np.full((M, K), "x"),
    "dates": np.full((M, K), datetime.datetime(2000, 1, 1), "M8[s]"),
    "durations": np.zeros((M, K), "m8[s]"),
    "records": packed_record((M, K), F32),
    "void": np.zeros((M, K), "V4"),
    "longdouble": np.ones((M, K), np.longdouble),
    "clongdouble": np.ones((M, K), np.clongdouble),
    "big-endian": np.ones((M, K), ">f4"),
    "ragged": [[1.0, 2.0], [3.0]],
    "ragged arrays": [np.ones(2), np.ones(3)],
    "text in a list": [["1", "2", "3", "4"]] * M,
    "None in a list": [[1.0, None, 1.0, 1.0]] * M,
    "too large ints": [[2**70, 1, 1, 1]] * M,
    "masked": np.ma.masked_array(np.ones((M, K), F32), mask=np.eye(M, K)),
    "on cuda": OnCuda(),
    "on a device": OnDevice(),
    "on rocm": OnDevice(10),
    "broken __array__": BrokenArray(),
    "broken dlpack": BrokenDLPack(),
    "half dlpack": HalfDLPack(),
    "shape in a list": ListShape(),
}


def base(dtype=F32):
    rng = np.random.default_rng(3)
    return {"a": draw(rng, (M, K), dtype), "b": draw(rng, (K, N), dtype), "out": draw(rng, (M, N), dtype)}


def refused(changes, kind, *, warm, dtype=F32):
    """Make the call with ``changes``, cold or after equal valid calls; returns what it raised."""
    valid = base(dtype)
    if warm:
        for _ in range(2):
            gemmhub.matmul(valid["a"], valid["b"])
            gemmhub.matmul(valid["a"], valid["b"], out=valid["out"])
    options = valid | changes
    a, b = options.pop("a"), options.pop("b")
    out = options["out"]
    before = np.array(out, copy=True) if isinstance(out, np.ndarray) else None
    raised = None
    for function in (gemmhub.matmul, gemmhub.explain, gemmhub.plan, gemmhub.matmul):
        with pytest.raises(GemmhubError) as caught:
            function(a, b, **options)
        assert isinstance(caught.value, kind), f"{function.__name__}: {caught.value!r}"
        raised = raised or caught.value
    if before is not None:
        assert np.asarray(out).tobytes() == before.tobytes()
    if isinstance(raised, InputError):
        assert raised.argument
        assert raised.given
        assert raised.allowed
        assert str(raised).startswith(raised.argument)
    return raised


@pytest.fixture(params=[False, True], ids=["cold", "warm"])
def warm(request):
    return request.param


# Operands


@pytest.mark.parametrize("argument", ["a", "b"])
@pytest.mark.parametrize("name", WRONG_KINDS)
def test_operands_that_are_none(name, argument, warm):
    wrong = WRONG_KINDS[name]
    if argument == "b" and isinstance(wrong, np.ndarray):
        wrong = wrong.T.repeat(2, axis=1)[:, :N]
    if argument == "b" and name in ("text in a list", "None in a list", "too large ints"):
        wrong = np.array(wrong, object if name != "text in a list" else None).T.tolist()
    error = refused({argument: wrong}, InputError, warm=warm)
    assert argument in error.argument
    if "cuda" in name or "device" in name or "rocm" in name:
        assert isinstance(error, DeviceError)


def test_a_numpy_matrix(warm):
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(np.ones((M, K), F32))
    assert refused({"a": matrix}, InputError, warm=warm).argument == "a"
    assert refused({"out": np.ones((M, N), F32).view(np.matrix)}, InputError, warm=warm).argument == "out"


@pytest.mark.parametrize("argument", ["c", "bias"])
@pytest.mark.parametrize("name", [x for x in WRONG_KINDS if x not in ("None", "a scalar")])
def test_addends_that_are_none(name, argument, warm):
    wrong = WRONG_KINDS[name]
    if isinstance(wrong, np.ndarray):
        wrong = np.broadcast_to(wrong[:1, :1], (M, N)) if "masked" not in name else wrong
        wrong = wrong if argument == "c" else wrong[0]
    options = {argument: wrong} | ({"beta": 1} if argument == "c" else {})
    error = refused(options, InputError, warm=warm)
    assert argument in error.argument


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "argument"),
    [
        ((), (K, N), "a"),
        ((M, K), (), "b"),
        ((M, K + 1), (K, N), "a, b"),
        ((M, K), (N,), "a, b"),
        ((K + 1,), (K, N), "a, b"),
        ((2, M, K), (3, K, N), "a, b"),
        ((M, K, 0), (K, N), "a, b"),
    ],
)
def test_shapes(a_shape, b_shape, argument, dtype, warm, rng):
    a, b = draw(rng, a_shape, dtype), draw(rng, b_shape, dtype)
    error = refused({"a": np.asarray(a), "b": np.asarray(b)}, ShapeError, warm=warm, dtype=dtype)
    assert error.argument == argument


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (N + 1,), (2, N), (M, N), (1, M), (1, 1, N), (0,)], ids=str)
def test_shapes_of_bias(shape, dtype, warm):
    assert refused({"bias": np.zeros(shape, dtype)}, ShapeError, warm=warm, dtype=dtype).argument == "bias"


@pytest.mark.parametrize("beta", [1, 0])
@pytest.mark.parametrize("shape", [(M,), (N, M), (M, 2), (2, M, N), (1, M, N), (0, N)], ids=str)
def test_shapes_of_c(shape, beta, warm):
    options = {"c": np.zeros(shape, F32), "beta": beta}
    assert refused(options, ShapeError, warm=warm).argument == "c"


def test_dtypes_of_addends(warm):
    for wrong in (F64, F16, I32, np.dtype(np.complex64)):
        options = {"c": np.zeros((M, N), wrong), "beta": 1}
        assert refused(options, DTypeError, warm=warm).argument == "c"
        assert refused({"bias": np.zeros(N, wrong)}, DTypeError, warm=warm).argument == "bias"


def test_fp8_needs_out_dtype(warm):
    error = refused({"a": np.ones((M, K), E4M3), "b": np.ones((K, N), E4M3), "out": None}, DTypeError, warm=warm)
    assert error.argument == "out_dtype"
    assert "out_dtype" in error.remedy


# Kinds of array that do not mix


class OnCpu:
    """A CPU array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("argument", ["a", "b", "out", "c", "bias"])
@pytest.mark.parametrize("make", [lambda x: OnCuda(), lambda x: OnDevice(), OnCpu], ids=["cuda", "dlpack", "other"])
def test_arrays_that_do_not_live_together(make, argument, warm):
    changes = {argument: make(np.ones(SHAPED[argument], F32))} | ({"beta": 1} if argument == "c" else {})
    error = refused(changes, DeviceError, warm=warm)
    assert argument in error.argument or argument in error.given


def test_device_arrays_alone(warm):
    for make in (OnCuda, OnDevice):
        refused({"a": make(), "b": make(), "out": None}, DeviceError, warm=warm)
        refused({"a": make(), "b": [[1.0] * N] * K, "out": make()}, DeviceError, warm=warm)


# out=


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
@pytest.mark.parametrize(
    "shape", [(), (N,), (M, N, 1), (1, M, N), (2, M, N), (N, M), (M, N + 1), (M + 1, N), (M - 1, N), (0, N)], ids=str
)
def test_shapes_of_out(shape, dtype, warm):
    error = refused({"out": np.ones(shape, dtype)}, OutputError, warm=warm, dtype=dtype)
    assert "non-broadcastable" in error.given  # NumPy's word, in a ValueError as NumPy's
    assert error.argument == "out"


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
def test_out_that_would_be_broadcast_to(dtype, warm, rng):
    """numpy.matmul would write the same product twice."""
    a, b = draw(rng, (1, M, K), dtype), draw(rng, (1, K, N), dtype)
    if warm:
        gemmhub.matmul(a, b, out=np.ones((1, M, N), dtype))
    planned = gemmhub.plan(a, b)
    out = np.ones((2, M, N), dtype)
    for function in (lambda: gemmhub.matmul(a, b, out=out), lambda: planned(a, b, out)):
        with pytest.raises(OutputError):
            function()
    assert np.all(out == 1)


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
@pytest.mark.parametrize(
    "strides", [(0, 1), (1, 0), (0, 0), (1, 1), (2, 1), (N - 1, 1), (-1, 1), (1, -2), (1, M - 1)], ids=str
)
def test_out_that_shares_memory_with_itself(strides, dtype, warm):
    size = dtype.itemsize
    out = view_of_one((M, N), dtype, tuple(stride * size for stride in strides))
    if min(strides) < 0:  # start at the other end
        memory = np.zeros(100, dtype)[50:]
        out = np.lib.stride_tricks.as_strided(memory, (M, N), tuple(stride * size for stride in strides))
    error = refused({"out": out}, OutputError, warm=warm, dtype=dtype)
    assert "share" in error.given


@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
def test_out_that_is_read_only(dtype, warm):
    assert "read-only" in refused({"out": readonly((M, N), dtype)}, OutputError, warm=warm, dtype=dtype).given
    frozen = np.frombuffer(bytes(M * N * dtype.itemsize), dtype).reshape(M, N)
    assert "read-only" in refused({"out": frozen}, OutputError, warm=warm, dtype=dtype).given


@pytest.mark.parametrize(
    "out",
    [[[0.0] * N] * M, (), 0.0, np.float32(0), memoryview(bytearray(4 * M * N)).cast("f", (M, N)), BrokenArray()],
    ids=["list", "tuple", "float", "scalar", "memoryview", "broken"],
)
def test_out_that_is_no_array(out, warm):
    assert refused({"out": out}, OutputError, warm=warm).argument == "out"


@pytest.mark.parametrize("wrong", [I32, I8, np.dtype(bool), np.dtype(">f4"), np.dtype(object),
                                   np.dtype(np.longdouble), np.dtype("M8[s]"), np.dtype("U3")],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_dtypes_of_out(wrong, dtype, warm):
    error = refused({"out": np.zeros((M, N), wrong)}, OutputError, warm=warm, dtype=dtype)
    assert error.argument == "out"
    assert isinstance(error, TypeError)  # as numpy.matmul's, whose words it has
    assert "Cannot cast ufunc 'matmul' output" in error.given


def test_out_against_out_dtype(warm):
    error = refused({"out_dtype": F64}, OutputError, warm=warm)
    assert "float64" in error.given
    assert "float32" in error.given


# Options


@pytest.mark.parametrize("argument", ["alpha", "beta"])
@pytest.mark.parametrize(
    "value",
    ["1", None, [1], np.ones(2), {}, 1j, np.complex64(1j), fractions.Fraction(1, 2), 10**400, -(10**400), object],
    ids=lambda value: f"{value!r:.12}",
)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_scalars(argument, value, dtype, warm):
    options = {argument: value, "c": np.zeros((M, N), dtype)}
    options.setdefault("beta", 1)
    assert refused(options, InputError, warm=warm, dtype=dtype).argument == argument


@pytest.mark.parametrize("value", [0.5, 2.5, np.nan, np.inf, 2**31, -(2**40), 1e300, 2.0**31, np.float32(1.5)])
@pytest.mark.parametrize("argument", ["alpha", "beta"])
@pytest.mark.parametrize("dtype", [I64, I8], ids=str)
def test_scalars_of_integer_products(argument, value, dtype, warm, rng):
    """Also after calls with numbers of the same type that are allowed."""
    a, b = draw(rng, (M, K), dtype), draw(rng, (K, N), dtype)
    out = np.ones((M, N), I32 if dtype == I8 else dtype)
    c = out.copy()
    planned = None
    if warm:
        for fine in (2, 2.0, -3, -3.0, 0, 0.0, 1, 1.0):
            gemmhub.matmul(a, b, out=out, c=c, **({"alpha": 2, "beta": 2} | {argument: fine}))
        planned = gemmhub.plan(a, b, c=c, alpha=2, beta=2)
        out[...] = 1
    options = {"alpha": 2, "beta": 2} | {argument: value}
    calls = [lambda: gemmhub.matmul(a, b, out=out, c=c, **options)]
    if planned is not None:
        calls.append(lambda: planned(a, b, out, c=c, **options))
    for call in calls:
        with pytest.raises(InputError) as raised:
            call()
        assert raised.value.argument == argument
    assert np.all(out == 1)


def test_scalars_of_boolean_products():
    x = np.ones((2, 2), bool)
    for alpha in (2, -1, 5):
        with pytest.raises(InputError, match="alpha"):
            gemmhub.matmul(x, x, alpha=alpha)


def test_c_and_beta_belong_together(warm):
    assert refused({"c": np.zeros((M, N), F32)}, InputError, warm=warm).argument == "c"
    for beta in (1, -0.5, np.nan):
        assert refused({"beta": beta}, InputError, warm=warm).argument == "beta"


@pytest.mark.parametrize("argument", ["activation", "precision"])
@pytest.mark.parametrize("value", ["", "RELU", "swish", "fp32", 1, True, ["relu"], np.array(["relu", "x"]), b"relu"])
def test_unknown_option_values(argument, value, warm):
    assert refused({argument: value}, InputError, warm=warm).argument == argument


@pytest.mark.parametrize("value", ["", "numpi", "numpy,cpu", 1, ["numpy"], True, np.array("numpy")])
def test_unknown_backend(value, warm):
    error = refused({"backend": value}, InputError, warm=warm)
    assert error.argument == "backend"


@pytest.mark.parametrize("value", [0, 1, "", "yes", "Run", True, np.True_, 2.5, ["run"]])
def test_reproducible_names_a_promise(value, warm):
    assert refused({"reproducible": value}, InputError, warm=warm).argument == "reproducible"


@pytest.mark.parametrize(
    "value", ["float33", "f4,(", "object", object, "M8[s]", [("x", "f4")], {"x": 1}, 7, np.ones(2), I32, bool]
)
def test_out_dtype(value, warm):
    assert refused({"out_dtype": value, "out": None}, DTypeError, warm=warm).argument == "out_dtype"


def test_out_dtype_is_distinguished_from_equal_values():
    """1.0 == True == 1, but only the first has a dtype."""
    x = np.ones((2, 2))
    assert gemmhub.matmul(x, x, out_dtype=np.float64(1)).dtype == F64
    for value in (True, 1):
        with pytest.raises(DTypeError, match="out_dtype"):
            gemmhub.matmul(x, x, out_dtype=value)


@pytest.mark.parametrize("dtype", [np.dtype(np.complex64), I64, np.dtype(bool)], ids=str)
def test_activations_that_make_no_sense(dtype):
    x = np.ones((2, 2), dtype)
    with pytest.raises(DTypeError, match="activation"):
        gemmhub.matmul(x, x, activation="gelu")


@pytest.mark.parametrize("stream", [0, 7, object()])
def test_streams_are_for_devices(stream, warm):
    assert refused({"stream": stream}, InputError, warm=warm).argument == "stream"


def test_unknown_keywords_and_missing_operands():
    x = np.ones((2, 2), F32)
    for function in (gemmhub.matmul, gemmhub.plan, gemmhub.explain, gemmhub.tune):
        with pytest.raises(TypeError, match=r"'gamma'.*alpha"):
            function(x, x, gamma=1)
        with pytest.raises(TypeError):
            function(x)
        with pytest.raises(TypeError):
            function(a=x, b=x)
        with pytest.raises(TypeError):
            function(x, x, x)


# Sizes

EIGHTH = 2**30


@pytest.mark.parametrize("dtype", [F32, F16, F64, I8, I64, BF16, np.dtype(np.complex64)], ids=str)
@pytest.mark.parametrize("m", [EIGHTH, 2**31, 2**40], ids=["2**60", "2**62", "2**80"])
def test_results_that_no_machine_holds(dtype, m):
    """2**60 elements and more from two elements: refused at once, without swapping."""
    one = np.ones((), dtype)
    a, b = np.broadcast_to(one, (m, 1)), np.broadcast_to(one, (1, m))
    start = time.perf_counter()
    for options in ({}, {}, {"alpha": 2}, {"bias": np.broadcast_to(np.ones((), I32 if dtype == I8 else dtype), (m,))}):
        with pytest.raises(AllocationError, match=r"GiB|memory"):
            gemmhub.matmul(a, b, **options)
    assert gemmhub.explain(a, b).chosen == "numpy"
    assert time.perf_counter() - start < 2


def test_a_broadcast_batch_that_no_machine_holds():
    a, b = np.broadcast_to(np.float32(1), (2**28, 2**28, 8)), np.ones((8, 8), F32)
    with pytest.raises(AllocationError):
        gemmhub.matmul(a, b)


def test_an_out_that_cannot_be_doubled_is_not_written(monkeypatch, rng):
    """Where out overlaps an operand the product needs a temporary; without memory for it nothing happens."""
    from gemmhub._arrays.host.operands import NumpyArrays

    x = draw(rng, (8, 8), F16)
    kept = x.copy()

    def no_memory(*_):
        raise AllocationError("none left")

    monkeypatch.setattr(NumpyArrays, "empty_strided_like", no_memory)
    monkeypatch.setattr(NumpyArrays, "empty", no_memory)
    with pytest.raises(AllocationError):
        gemmhub.matmul(x, x, out=x)
    assert np.array_equal(x, kept)


# The tree


def test_every_error_is_one_of_the_tree():
    found = {x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)}
    assert all(issubclass(x, GemmhubError) for x in found)
    assert issubclass(InputError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(AllocationError, MemoryError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NoBackendError, RuntimeError)
    assert issubclass(RecordError, ValueError)
    assert all(getattr(gemmhub, x.__name__) is x for x in found)
    assert all(x.__name__ in errors.__doc__ for x in found), "the tree at the head of errors.py"


@pytest.mark.parametrize(
    "error", [ShapeError("a", "given", "allowed", "remedy"), KernelError("numpy", "broke"), AllocationError("none")]
)
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_no_backend_error_travels_with_its_decision(rng):
    x = draw(rng, (3, 3), F32)
    packed = gemmhub.pack(x)
    packed.backend = "someone"
    with pytest.raises(NoBackendError) as raised:
        gemmhub.matmul(x, packed)
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    assert again.decision.chosen is None


@pytest.mark.parametrize("argument", ["c", "bias"])
def test_allowed_dtypes_are_named_once(argument):
    """The result and the accumulator have one dtype here, and two there."""
    for dtype, allowed in ((np.float32, "float32"), (np.float16, "float16 or float32")):
        a = np.ones((2, 2), dtype)
        with pytest.raises(DTypeError) as caught:
            gemmhub.matmul(a, a, **{argument: np.ones(2, np.float64)}, **({"beta": 1} if argument == "c" else {}))
        assert caught.value.allowed == allowed


@pytest.mark.parametrize(
    ("named", "hint"),
    [
        ({"dtype": F32}, "out_dtype= is the dtype of the result"),
        ({"preferred_element_type": F32}, "did you mean out_dtype=?"),
        ({"activaton": "relu"}, "did you mean activation=?"),
        ({"zebra": 1}, "'zebra'; allowed: out, out_dtype"),
    ],
    ids=str,
)
def test_a_wrong_keyword_is_told_the_right_one(named, hint):
    a = np.ones((2, 2), F32)
    for function in (gemmhub.matmul, gemmhub.plan, gemmhub.explain, gemmhub.tune):
        with pytest.raises(TypeError, match=re.escape(hint)):
            function(a, a, **named)


SETTING = "it holds for the process: set "
UNKNOWN: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "use precision": (gemmhub.use, {"precison": "tf32"}, "did you mean precision=?; allowed: backend, precision, "),
    "use backend": (gemmhub.use, {"backends": "numpy"}, "did you mean backend=?; allowed: backend, precision, "),
    "use workspace": (gemmhub.use, {"workspace_mib": 3}, f"{SETTING}GEMMHUB_WORKSPACE_MIB, or workspace_mib in a file"),
    "use allow": (gemmhub.use, {"allow": "cpu"}, f"{SETTING}GEMMHUB_PLUGINS, or allow in a file"),
    "use deny": (gemmhub.use, {"deny": "cpu"}, f"{SETTING}GEMMHUB_DISABLE, or deny in a file"),
    "pack": (partial(gemmhub.pack, np.ones((2, 2), F32)), {"rows": 3}, "did you mean m=?; allowed: a_dtype, m, "),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_wrong_keyword_of_use_and_pack(case):
    function, named, hint = UNKNOWN[case]
    (name,) = named
    with pytest.raises(TypeError, match=re.escape(f"unexpected keyword argument {name!r}; {hint}")):
        function(**named)


@pytest.mark.parametrize(
    ("named", "meant"), [({"activation": "Relu"}, "relu"), ({"precision": "TF32"}, "tf32"), ({"activation": 3}, "")]
)
def test_a_name_that_resembles_another_one(named, meant):
    a = np.ones((2, 2), F32)
    with pytest.raises(InputError) as caught:
        gemmhub.matmul(a, a, **named)
    assert caught.value.remedy == (f"did you mean {meant!r}?" if meant else "")


def test_a_positional_argument_too_many():
    a = np.ones((2, 2), F32)
    for function in (gemmhub.matmul, gemmhub.plan, gemmhub.explain, gemmhub.tune):
        for _ in range(2):
            out = np.zeros((2, 2), F32)
            with pytest.raises(TypeError, match=r"3 positional arguments, the third an ndarray.* write out="):
                function(a, a, out)
            assert not out.any()
            gemmhub.matmul(a, a)
        with pytest.raises(TypeError, match=r"4 positional arguments, the third a str.* write its name"):
            function(a, a, "numpy", 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [("numpy", "backend='numpy'"), ("tf32", "precision='tf32'"), ("first", "tune='first'"), (3, "=...")],
)
def test_use_takes_names(value, text):
    with pytest.raises(
        TypeError, match=re.escape(f"use(): {value!r} without a name; allowed: named settings. Write use(")
    ):
        gemmhub.use(value)
    with pytest.raises(TypeError, match=re.escape(text)):
        gemmhub.use(value)
