"""Accepted arrays: NumPy's, objects that it converts, and CPU arrays of other libraries."""

from __future__ import annotations

import array
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from products import BF16, F16, F32, F64, I8, I32, I64, draw, ratio, relaid

import gemmhub
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._base import geometry
from gemmhub._base.geometry import reach
from gemmhub._call import describe
from gemmhub.errors import DeviceError, InputError, OutputError


class Tensor:
    """A CPU array of a library of its own: the array API's minimum."""

    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return 1, 0

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=lambda x: Tensor(np.from_dlpack(x).copy()))


# NumPy


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1, 2], [3, 4]], [[5, 6], [7, 8]]),
        ([[1.0, 2], [3, 4]], ((5, 6), (7, 8))),
        ([1, 2], [3, 4]),
        ([np.float32(1), np.float32(2)], [[1], [2]]),
        ([np.ones(3, np.float32), np.zeros(3, np.float32)], np.ones((3, 2), np.float32)),
        ([[True, False]], [[True], [True]]),
        ([[1j]], [[2]]),
        ([[]], np.empty((0, 3))),
        ([range(3), range(3)], [[1], [2], [3]]),
    ],
)
def test_sequences_are_what_numpy_makes_of_them(a, b):
    for _ in range(2):
        got, expected = gemmhub.matmul(a, b), np.matmul(a, b)
        assert type(got) is type(expected)
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


def test_lists_of_different_shapes_are_different_calls():
    for size in (1, 2, 3):
        a = [[1.0] * size] * size
        assert np.array_equal(gemmhub.matmul(a, a), np.full((size, size), float(size)))


def test_memory_maps_and_buffers(tmp_path, rng):
    a, b = draw(rng, (5, 6), F16), draw(rng, (6, 7), F16)
    np.save(tmp_path / "a.npy", a)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for x in (mapped, memoryview(a)):
        got = gemmhub.matmul(x, b)
        assert type(got) is np.ndarray
        assert ratio(got, a, b) <= 1
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", F16, (5, 7))
    assert gemmhub.matmul(mapped, b, out=out) is out
    out.flush()
    assert ratio(np.load(tmp_path / "out.npy"), a, b) <= 1
    assert gemmhub.matmul(array.array("d", [1, 2]), array.array("d", [3, 4])) == 11


class Plain(np.ndarray):
    """NumPy's own results are of this type."""


class Metres(np.ndarray):
    """A subclass that defines its own product."""

    def __array_ufunc__(self, ufunc, method, *operands, **options):
        assert (ufunc, method) == (np.matmul, "__call__")
        return "metres"


class Frame:
    """As a DataFrame, or an array of a lazy library: it converts to numbers, and defines its own product."""

    shape, dtype, strides = (6, 6), F32, (24, 4)
    __array_ufunc__ = Metres.__array_ufunc__

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("gemmhub does not compute lazy arrays")


class Lazy(Frame):
    __array_ufunc__ = None
    __array_function__ = Metres.__array_ufunc__


def special(kind, a):
    return a.view(kind) if issubclass(kind, np.ndarray) else kind()


@pytest.mark.parametrize("kind", [Plain, Metres, np.recarray, Frame, Lazy, np.ma.MaskedArray, np.matrix])
@pytest.mark.parametrize("dtype", [F32, F16, I64], ids=str)
def test_arrays_that_mean_more_than_numbers(kind, dtype, rng):
    """Refused by name, but for matmul itself of types that multiply; before and after calls with plain arrays."""
    a = draw(rng, (6, 6), dtype)
    x = special(kind, a)
    planned = gemmhub.plan(a, a, alpha=1)
    for _ in range(2):
        for argument in ("a", "b", "c"):
            given = {"a": a, "b": a, argument: x} | ({"beta": 1} if argument == "c" else {})
            for function in (gemmhub.matmul, gemmhub.explain, gemmhub.plan, planned):
                if argument == "c" and function is planned:
                    continue
                if function is gemmhub.matmul and argument != "c" and kind in (Plain, Metres, np.recarray, Frame):
                    continue
                options = dict(given)
                with pytest.raises(InputError, match=rf"{kind.__name__}.*numpy\.asarray\({argument}\)") as raised:
                    function(options.pop("a"), options.pop("b"), **options)
                assert raised.value.argument == argument
        gemmhub.matmul(a, a), planned(a, a)


@pytest.mark.parametrize("kind", [Plain, Metres, np.recarray, Frame])
def test_types_that_multiply_do_so(kind, rng):
    """They get the result of numpy.matmul, and no options."""
    a = draw(rng, (6, 6), F32)
    x = special(kind, a)
    gemmhub.matmul(a, a)
    for operands in ((x, a), (a, x), (x, x)):
        got, expected = gemmhub.matmul(*operands), np.matmul(*operands)
        assert type(got) is type(expected)
        assert got is expected or np.array_equal(got, expected)
        for options in ({"alpha": 2}, {"out_dtype": F32}):
            with pytest.raises(InputError, match=rf"{next(iter(options))}: given for .*{kind.__name__}"):
                gemmhub.matmul(*operands, **options)
    if kind is Plain:
        out = np.zeros((6, 6), F32).view(Plain)
        assert gemmhub.matmul(x, a, out=out) is out
        assert np.array_equal(out, np.matmul(a, a))


def test_an_out_of_a_subclass_stays_what_it_is(rng):
    """Unless the subclass computes by itself."""
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    out = np.zeros((5, 7), F32)
    for _ in range(2):
        plain = out.view(Plain)
        assert gemmhub.matmul(a, b, out=plain) is plain
        assert ratio(out, a, b) <= 1
        with pytest.raises(InputError, match="Metres"):
            gemmhub.matmul(a, b, out=out.view(Metres))


def test_records_that_are_not_aligned(rng):
    """Fields of packed records: strides of 5 bytes for float32, and batches 49 bytes apart."""
    a, b = draw(rng, (4, 6), F32), draw(rng, (6, 3), F32)
    packed = np.zeros((4, 6), [("tag", "i1"), ("x", F32)])
    packed["x"] = a
    stacked = np.zeros(5, [("tag", "i1"), ("x", F32, (6, 3))])
    stacked["x"] = draw(rng, (5, 6, 3), F32)
    call = describe.describe(packed["x"], stacked["x"], None, _request())
    assert call.problem.a.layout.order is None
    assert call.problem.b.layout.order is None
    assert call.problem.a.alignment == call.problem.b.alignment == 1
    for _ in range(2):
        assert ratio(gemmhub.matmul(packed["x"], b), a, b) <= 1
        assert ratio(gemmhub.matmul(a, stacked["x"]), a, stacked["x"]) <= 1
    bias = np.zeros(3, [("tag", "i1"), ("x", F32)])
    bias["x"] = draw(rng, (3,), F32)
    described = describe.describe(a, b, None, _request(bias=bias["x"]))
    assert described.problem.bias.stride == 1
    assert described.operands["bias"].strides == (4,)
    assert described.operands["bias"].flags.aligned
    assert ratio(gemmhub.matmul(a, b, bias=bias["x"]), a, b, bias=bias["x"]) <= 1
    out = np.zeros((4, 3), [("tag", "i1"), ("x", F32)])
    gemmhub.matmul(a, b, out=out["x"])
    assert ratio(out["x"], a, b) <= 1
    assert not out["tag"].any()


def _request(**options):
    from gemmhub._call.options import request

    return request(options)


def test_alignment_is_part_of_what_is_decided(rng):
    """Equal strides, but an odd address: a backend that relies on alignment must be asked again."""
    memory = np.zeros(4 * 12 + 1, np.uint8)
    odd, even = (memory[i : i + 48].view(F32).reshape(3, 4) for i in (1, 0))
    assert odd.strides == even.strides
    assert describe.describe(even, even.T, None, _request()).problem.a.alignment == 4
    assert describe.describe(odd, odd.T, None, _request()).problem.a.alignment == 1
    assert describe.describe(even, even.T, odd[:, :3], _request()).problem.out.alignment == 1
    odd[...] = draw(rng, (3, 4), F32)
    assert ratio(gemmhub.matmul(odd, odd.T), odd, odd.T) <= 1


def test_the_layout_in_the_problem(rng):
    x, _ = draw(rng, (3, 4), F32), None
    for a, expected in (
        (x, (4, 1)),
        (x.T, (1, 4)),
        (x[::-1], (-4, 1)),
        (x[:, ::2], (4, 2)),
        (np.broadcast_to(x[0], (3, 4)), (0, 1)),
        (np.asfortranarray(x), (1, 3)),
    ):
        b = np.ones((a.shape[1], 2), F32)
        layout = describe.describe(a, b, None, _request()).problem.a.layout
        assert (layout.row_stride, layout.col_stride) == expected
    stack = np.ones((2, 1, 3, 4), F32)
    layout = describe.describe(stack, np.ones((5, 4, 2), F32), None, _request()).problem.a.layout
    assert (layout.batch, layout.batch_strides) == ((2, 5), (12, 0))
    layout = describe.describe(stack, np.ones((5, 4, 2), F32), None, _request()).problem.b.layout
    assert (layout.batch, layout.batch_strides) == ((2, 5), (0, 8))


@pytest.mark.parametrize(("length", "expected"), [(0, 1), (1, 1), (2, 3)])
def test_the_stride_of_a_bias(length, expected):
    x = np.ones((2, length), F32)
    bias = np.ones(3 * length, F32)[::3]
    for axis in (0, None):  # (n,) and (1, n)
        given = bias if axis is None else bias[np.newaxis]
        problem = describe.describe(x[:, :0], np.ones((0, length), F32), None, _request(bias=given)).problem
        assert problem.bias.stride == expected


# Other libraries


@pytest.mark.parametrize("dtype", [F32, F16, F64, I8, I64, np.dtype(np.complex64)], ids=str)
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4,)), ((0, 4), (4, 5))], ids=str)
def test_tensors_give_tensors(dtype, shapes, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    for _ in range(2):
        got = gemmhub.matmul(Tensor(a), Tensor(b))
        assert type(got) is Tensor
        assert ratio(got.data, a, b) <= 1
        options = {"alpha": 2, "c": got.data, "beta": 3}
        again = gemmhub.matmul(Tensor(a), Tensor(b), **(options | {"c": got}))
        assert ratio(again.data, a, b, **options) <= 1


def test_tensors_in_every_layout(rng):
    a, b = draw(rng, (3, 4), F16), draw(rng, (4, 5), F16)
    for _ in range(20):
        left, right = relaid(rng, a)[0], relaid(rng, b)[0]
        if all(x.strides[i] % 2 == 0 for x in (left, right) for i in range(2)):
            assert ratio(gemmhub.matmul(Tensor(left), Tensor(right)).data, a, b) <= 1


def test_out_as_a_tensor(rng):
    a, b = draw(rng, (4, 4), F32), draw(rng, (4, 4), F32)
    out = Tensor(np.zeros((4, 4), F32))
    if not np.from_dlpack(out).flags.writeable:
        pytest.skip("this NumPy imports DLPack read-only")
    for _ in range(2):
        assert gemmhub.matmul(Tensor(a), Tensor(b), out=out) is out
        assert ratio(out.data, a, b) <= 1
    same = Tensor(a.copy())
    gemmhub.matmul(same, Tensor(b), out=same)
    assert ratio(same.data, a, b) <= 1
    with pytest.raises(OutputError):
        gemmhub.matmul(Tensor(a), Tensor(b), out=[[0.0] * 4] * 4)


class Described(Tensor):
    """An array with the interface of a torch tensor: strides are a method, and in elements."""

    device = "cpu"

    @property
    def dtype(self):
        return self.data.dtype

    @property
    def shape(self):
        return self.data.shape

    def stride(self):
        return tuple(step // self.data.itemsize for step in self.data.strides)

    def data_ptr(self):
        return self.data.ctypes.data


def test_out_as_a_tensor_without_strides_in_bytes(rng):
    if not np.from_dlpack(Tensor(np.zeros(1))).flags.writeable:
        pytest.skip("this NumPy imports DLPack read-only")
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    for out in (np.zeros((3, 5), F32), np.zeros((3, 5), F32, order="F"), np.zeros((3, 10), F32)[:, ::2]):
        for _ in range(2):
            target = Described(out)
            assert gemmhub.matmul(Described(a), Described(b), out=target) is target
            assert ratio(out, a, b) <= 1
        assert ratio(gemmhub.matmul(Described(a), Described(b)).data, a, b) <= 1


def test_sequences_take_the_library_of_the_tensor(rng):
    b = draw(rng, (2, 3), F64)
    for left, right in (([[1.0, 2.0]], Tensor(b)), (Tensor(b.T.copy()), [1.0, 2.0])):
        got = gemmhub.matmul(left, right)
        assert type(got) is Tensor
    got = gemmhub.matmul([[1.0, 2.0]], [[1.0], [2.0]], c=Tensor(np.ones((1, 1))), beta=1)
    assert type(got) is Tensor
    assert got.data == 6
    got = gemmhub.matmul(Tensor(b), Tensor(b.T.copy()), bias=[1.0, 2.0])
    assert ratio(got.data, b, b.T, bias=np.array([1.0, 2.0])) <= 1


def test_plans_and_packing_of_tensors(rng):
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    planned = gemmhub.plan(Tensor(a), Tensor(b))
    for _ in range(3):
        a[...] = draw(rng, a.shape, F32)
        got = planned(Tensor(a), Tensor(b))
        assert type(got) is Tensor
        assert ratio(got.data, a, b) <= 1
    packed = gemmhub.pack(Tensor(b))
    got = gemmhub.matmul(Tensor(a), packed)
    assert type(got) is Tensor
    assert ratio(got.data, a, b) <= 1


def test_a_result_that_a_library_has_no_array_for():
    class Poor(Tensor):
        def __array_namespace__(self, api_version=None):
            def from_dlpack(x):
                raise BufferError("no such dtype")

            return types.SimpleNamespace(from_dlpack=from_dlpack)

    x = Poor(np.ones((2, 2), F16))
    with pytest.raises(InputError, match=r"a result of float16 cannot become a .*Poor.*no such dtype"):
        gemmhub.matmul(x, x)


def test_a_tensor_without_memory():
    """NumPy makes up memory for an address of 0, as torch's fake tensors export."""

    class Fake(Tensor):
        def data_ptr(self):
            return 0

    x = Tensor(np.ones((2, 2), F32))
    for a, b, argument in ((Fake(x.data), x, "a"), (x, Fake(x.data), "b")):
        for _ in range(2):
            with pytest.raises(InputError, match="no memory") as raised:
                gemmhub.matmul(a, b)
            assert raised.value.argument == argument


def test_arrays_whose_attributes_raise():
    """Only the conversion of the whole operand shows the error."""

    class Nested(Tensor):
        dtype = F32

        @property
        def shape(self):
            raise RuntimeError("it has several shapes")

        def __dlpack__(self, **options):
            raise BufferError("cannot be exported")

    x = Nested(np.ones((2, 2), F32))
    for function in (gemmhub.matmul, gemmhub.explain, gemmhub.plan, gemmhub.matmul):
        with pytest.raises(InputError, match="cannot be exported"):
            function(x, x)


def test_a_library_without_a_namespace():
    """Results go back through from_dlpack of the module that the array's type comes from."""

    def bare(module):
        methods = {name: Tensor.__dict__[name] for name in ("__init__", "__dlpack__", "__dlpack_device__")}
        return type("Bare", (), {**methods, "__module__": module})(np.eye(2))

    x = bare("numpy.somewhere")
    assert np.array_equal(gemmhub.matmul(x, x), np.eye(2))
    x = bare("math")
    with pytest.raises(InputError, match="cannot become"):
        gemmhub.matmul(x, x)


def test_kinds_of_array_do_not_mix(rng):
    a = draw(rng, (3, 3), F32)
    for left, right in ((a, Tensor(a)), (Tensor(a), a)):
        with pytest.raises(DeviceError, match=r"a is .*, b is"):
            gemmhub.matmul(left, right)


# Broadcasting, overlap and reach

SHORT = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(SHORT, SHORT)
def test_shapes_broadcast_as_in_numpy(x, y):
    try:
        expected = np.broadcast_shapes(x, y)
    except ValueError:
        with pytest.raises(ValueError, match="do not broadcast"):
            geometry.broadcast_shapes(x, y)
        return
    assert geometry.broadcast_shapes(x, y) == expected


def test_a_device_view_broadcasts_to_any_number_of_dimensions():
    shape = (*[1] * 60, 7, 2, 3)
    wide = geometry.DeviceView(4096, F32, (2, 1), (4, 8)).broadcast(shape)
    assert (wide.shape, wide.strides) == (shape, (*[0] * 61, 4, 0))


def test_reach_is_the_memory_that_an_array_spans(rng):
    memory = np.arange(200, dtype=np.uint8)
    x = memory.view(F16).reshape(10, 10)[2:8:2, 9:3:-2]
    before, size = reach(x)
    flat = np.lib.stride_tricks.as_strided(x[0:1, 0:1].view(np.uint8), (2,), (1,))
    start = x.__array_interface__["data"][0] - before - memory.__array_interface__["data"][0]
    touched = np.zeros(200, bool)
    offsets = [i * x.strides[0] + j * x.strides[1] + byte for i in range(3) for j in range(3) for byte in range(2)]
    first = flat.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    touched[[first + offset for offset in offsets]] = True
    assert (start, start + size) == (touched.argmax(), 200 - touched[::-1].argmax())
    assert reach(np.empty((0, 3))) == (0, 0)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32], ids=str)
def test_a_twin_has_the_same_strides(dtype, rng):
    for _ in range(20):
        x, _ = relaid(rng, draw(rng, tuple(rng.integers(0, 4, rng.integers(0, 4))), dtype))
        twin = NUMPY.empty_strided_like(x)
        assert (twin.shape, twin.dtype, twin.strides) == (x.shape, x.dtype, x.strides)
        assert not np.may_share_memory(twin, x)
        twin[...] = x
        assert twin.tobytes() == x.tobytes()
