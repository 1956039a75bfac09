"""Products of device arrays: values, types, layouts, the epilogue, and the memory of the result."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import DTYPES, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemmhub

F32 = np.dtype(np.float32)
SHAPES = [((5, 6), (6, 7)), ((6,), (6, 7)), ((5, 6), (6,)), ((6,), (6,)), ((3, 5, 6), (6, 7)),
          ((2, 1, 5, 6), (3, 6, 7)), ((1, 1), (1, 1)), ((1, 6), (6, 4)), ((4, 2), (2, 1))]  # fmt: skip
EMPTY = [((0, 6), (6, 7)), ((5, 6), (6, 0)), ((0, 5, 6), (6, 7)), ((5, 0), (0, 7)), ((0,), (0,)), ((0, 0), (0, 0)),
         ((2, 5, 0), (0, 7))]  # fmt: skip


def exact(a, b, dtype, *, alpha=1, beta=0, c=None, bias=None):
    result = alpha * np.matmul(a.astype(np.complex128), b.astype(np.complex128))
    if c is not None:
        result = result + beta * c.astype(np.complex128)
    if bias is not None:
        result = result + bias.astype(np.complex128)
    if dtype.kind == "b":
        return result != 0
    return (result if dtype.kind == "c" else np.real(result)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(library, backend, dtype, rng):
    x, y = small(rng, (5, 6), dtype), small(rng, (6, 7), dtype)
    a, b = library.array(x), library.array(y)
    options = {"out_dtype": "float32"} if dtype.itemsize == 1 and "float8" in dtype.name else {}
    for _ in range(3):
        c = gemmhub.matmul(a, b, **options)
        assert library.owns(c)
        assert c.host.dtype == (
            np.dtype(options["out_dtype"]) if options else gemmhub.dtypes.result_dtype(dtype, dtype)
        )
        assert np.array_equal(c.host, exact(x, y, c.host.dtype))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("shapes", SHAPES + EMPTY, ids=str)
def test_shapes_are_those_of_numpy(library, backend, machine, shapes, device, rng):
    x, y = (small(rng, shape) for shape in shapes)
    a, b = library.array(x, device), library.array(y, device)
    wanted = np.matmul(x, y)
    planned = gemmhub.plan(a, b)
    for call in (gemmhub.matmul, gemmhub.matmul, planned, planned):
        c = call(a, b)
        assert library.owns(c)
        assert tuple(c.shape) == np.shape(wanted)
        assert library.device(c) == device
        assert np.array_equal(c.host, wanted)
        out = library.array(np.full(np.shape(wanted), 9, F32), device)
        assert call(a, b, out=out) is out
        assert np.array_equal(out.host, wanted)
    assert gemmhub.explain(a, b).chosen == "addresses"
    assert machine.device == 0
    assert not machine.done("synchronize")
    assert not machine.done("copy")


def test_results_with_no_sum_are_the_epilogue(library, backend, rng):
    a, b = library.array(np.ones((3, 0), F32)), library.array(np.ones((0, 4), F32))
    c, bias = small(rng, (3, 4)), small(rng, (4,))
    got = gemmhub.matmul(a, b, c=library.array(c), beta=3, bias=library.array(bias))
    assert np.array_equal(got.host, 3 * c + bias)


@pytest.mark.parametrize("case", [
    {"alpha": 2}, {"alpha": -1.5, "bias": (7,)}, {"bias": (1, 7)}, {"bias": (5, 1)}, {"c": (5, 7), "beta": 1},
    {"c": (7,), "beta": 2}, {"c": (5, 1), "beta": -1, "bias": (7,)}, {"c": (), "beta": 1}, {"c": (5, 7), "beta": 0},
], ids=str)  # fmt: skip
def test_the_epilogue(library, backend, case, rng):
    x, y = small(rng, (5, 6)), small(rng, (6, 7))
    host = {name: small(rng, case[name]) for name in ("c", "bias") if name in case}
    there = case | {name: library.array(value) for name, value in host.items()}
    wanted = exact(x, y, F32, **(case | host))
    a, b = library.array(x), library.array(y)
    planned = gemmhub.plan(a, b, **there)
    addends = {name: there[name] for name in host}
    for call in (lambda **o: gemmhub.matmul(a, b, **there, **o), lambda **o: planned(a, b, **addends, **o)):
        for _ in range(2):
            assert np.array_equal(call().host, wanted)
        out = library.array(np.zeros((5, 7), F32))
        assert call(out=out) is out
        assert np.array_equal(out.host, wanted)
    assert all(bias is not None for *_, bias in backend.calls) == ("bias" in case)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (1, 1)])
def test_c_in_place_takes_no_temporary(library, backend, machine, shape, rng):
    x, y, z = small(rng, (shape[0], 6)), small(rng, (6, shape[1])), small(rng, shape)
    a, b, out = library.array(x), library.array(y), library.array(z)
    assert not gemmhub.explain(a, b, out=out, c=out, beta=1).copies
    machine.room = 0
    for times in (1, 2):
        assert gemmhub.matmul(a, b, out=out, c=out, beta=1) is out
        assert np.array_equal(out.host, z + times * (x @ y))
    assert not machine.done("copy")


@pytest.mark.parametrize("name", ["a", "b", "bias", "c"])
def test_an_overlapping_out_gets_the_right_bits(library, backend, machine, name, rng):
    """Through a temporary that the decision announces, and a copy on the same stream."""
    x, y = small(rng, (6, 6)), small(rng, (6, 6))
    memory = machine.allocate(4 * 80, 0)
    out = library.at(memory, 0, F32, (6, 6), (24, 4))
    operands = {"a": library.array(x), "b": library.array(y)}
    options = {}
    if name in operands:
        operands[name] = library.at(memory, 24, F32, (6, 6), (24, 4))
        operands[name].host[...] = {"a": x, "b": y}[name]
    elif name == "bias":
        options = {"bias": library.at(memory, 12, F32, (6,), (4,))}
    else:
        options = {"c": library.at(memory, 24, F32, (6, 6), (24, 4)), "beta": 2}
    for times in range(2):
        for array in (*operands.values(), options.get("bias"), options.get("c")):
            if array is not None and times:
                array.host[...] = small(rng, tuple(array.shape))
        host = {key: value.host.copy() for key, value in options.items() if key != "beta"}
        if name in ("bias", "c") and not times:
            options[name].host[...] = host[name] = small(rng, tuple(options[name].shape))
        wanted = exact(operands["a"].host, operands["b"].host, F32, **(options | host))
        (copy,) = gemmhub.explain(*operands.values(), out=out, **options).copies
        assert copy.operand == "out"
        assert name in copy.why
        with library.current(0x70):
            gemmhub.matmul(*operands.values(), out=out, **options)
        assert np.array_equal(out.host, wanted)
    assert machine.done("copy") == [("copy", 0x70)] * 2
    assert backend.streams == [0x70] * 2


def test_out_may_have_any_strides(library, backend, machine, rng):
    x, y = small(rng, (5, 6)), small(rng, (6, 7))
    a, b = library.array(x), library.array(y)
    for strides in ((4, 20), (8, 56), (60, 8)):
        memory = machine.allocate(4 * 120, 0)
        before = memory.copy()
        out = library.at(memory, 4, F32, (5, 7), strides)
        for call in (gemmhub.matmul, gemmhub.matmul, gemmhub.plan(a, b, out=out)):
            out.host[...] = 9
            assert call(a, b, out=out) is out
            assert np.array_equal(out.host, x @ y)
        out.host.view("V4")[...] = b"\xa5" * 4
        assert np.array_equal(memory, before)


@pytest.mark.parametrize("step", [4, 12, 0, 6], ids="{} bytes".format)
def test_a_bias_of_one_element_has_no_stride(library, backend, machine, step, rng):
    """Kernels that take contiguous ones only need not refuse it."""
    if library.name == "torch" and step % 4:
        pytest.skip("torch counts strides in elements")
    x, y = small(rng, (5, 6)), small(rng, (6, 1))
    bias = library.at(machine.allocate(64, 0), 4, F32, (1,), (step,))
    bias.host[...] = 3
    for _ in range(2):
        got = gemmhub.matmul(library.array(x), library.array(y), bias=bias)
        assert np.array_equal(got.host, x @ y + 3)
    assert backend.problems[-1].bias.stride == 1


def steps(draw, shape, dtype, negative):
    """A view of that shape: axes permuted, stepped through, perhaps reversed or broadcast."""
    order = draw(st.permutations(range(len(shape))))
    step = [draw(st.sampled_from([1, 1, 2, 3] + [-1, -2] * negative)) for _ in shape]
    wide = [shape[axis] * abs(step[axis]) for axis in order]
    view = np.zeros(wide, dtype)[tuple(slice(None, None, step[axis]) for axis in order)]
    view = view.transpose(np.argsort(order))
    if draw(st.integers(0, 5)) == 0:
        axis = draw(st.integers(0, len(shape) - 1))
        one = tuple(slice(0, 1) if i == axis else slice(None) for i in range(len(shape)))
        view = np.broadcast_to(view[one], shape)
    return view


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_layout_multiplies_as_in_numpy(library, backend, data, seed):
    """Strides, broadcasts, offsets that misalign, an out that may overlap operands: never a wrong element."""
    draw, rng = data.draw, np.random.default_rng(seed)
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    batch = draw(st.sampled_from([(), (), (2,), (2, 3)]))
    dtype = draw(st.sampled_from([np.dtype(np.float16), F32, np.dtype(np.int64), np.dtype(np.complex64)]))
    negative = library.name == "cupy"  # torch has none
    arrays = []
    for shape in ((*batch, m, k), (*draw(st.sampled_from([batch, ()])), k, n)):
        layout = steps(draw, shape, dtype, negative)
        filled = library.array(layout, offset=draw(st.sampled_from([0, 0, 16, 64, dtype.itemsize])))
        filled.host[...] = small(rng, shape, dtype)
        arrays.append(filled)
    a, b = arrays
    wanted = exact(a.host, b.host, dtype)
    order = draw(st.permutations(range(wanted.ndim)))
    out = library.array(np.zeros([wanted.shape[i] for i in order], dtype).transpose(np.argsort(order)))
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(a, b).host, wanted)
        assert gemmhub.matmul(a, b, out=out) is out
        assert np.array_equal(out.host, wanted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_overlap_multiplies_as_if_there_were_none(library, backend, machine, data, seed):
    """The backend writes garbage into out before it reads anything else."""
    draw, rng = data.draw, np.random.default_rng(seed)
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    memory = machine.allocate(4 * 80, 0)

    def lay(shape):
        step = draw(st.integers(1, 2))
        by_rows = (4 * shape[1] * step, 4 * step)
        strides = list(by_rows if draw(st.booleans()) else (4 * step, 4 * shape[0] * step))
        first = 4 * draw(st.integers(0, 16))
        if library.name == "cupy" and draw(st.booleans()):
            first, strides[0] = first + (shape[0] - 1) * strides[0], -strides[0]
        return library.at(memory, first, F32, shape, tuple(strides))

    a, b, out = lay((m, k)), lay((k, n)), lay((m, n))
    options = {"c": out if draw(st.booleans()) else lay((m, n)), "beta": 2} if draw(st.booleans()) else {}
    for _ in range(3):
        memory.view(F32)[:] = small(rng, 80)
        before = memory.view(F32).copy()
        wanted = exact(a.host, b.host, F32, **(options | ({"c": options["c"].host.copy()} if options else {})))
        gemmhub.matmul(a, b, out=out, **options)
        assert np.array_equal(out.host, wanted)
        out.host[...] = 7
        first = (out.host.ctypes.data - memory.ctypes.data) // 4
        rows, cols = (step // 4 for step in out.host.strides)
        index = first + rows * np.arange(m)[:, np.newaxis] + cols * np.arange(n)
        before[index] = 7
        assert np.array_equal(memory.view(F32), before), "something beside out was written"
