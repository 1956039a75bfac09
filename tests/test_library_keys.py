"""Repeated calls with arrays of registered libraries: no analysis precedes them, and none runs what was decided for
other arrays.
"""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub
from gemmhub import Backend, Candidate, Device, InputError, Kernel, Offer, OutputError, Ready, api, array_library
from gemmhub.backend import BASIC


class Table:
    """An array without a shape, a dtype or strides of its own."""

    def __init__(self, values, writable=True):
        self.values, self.writable = values, writable


class Derived(Table):
    pass


class Views(array_library.HostArrays):
    """Viewed as ndarrays, as in docs/array-libraries.md."""

    name = "tables"

    def view(self, x, argument):
        if not isinstance(x, Table):
            raise InputError(argument, f"a {type(x).__name__}", "a Table")
        return x.values

    def holds(self, out):
        return isinstance(out, Table) and out.writable

    def wrap(self, result, operands):
        assert type(result) is np.ndarray
        assert all(isinstance(x, (Table, gemmhub.PackedB)) for x in operands)
        return Table(result)


class Keyed(Views):
    """Results are memory of the library's own, so that calls are looked up by its keys."""

    allocations = 0

    def empty(self, shape, dtype):
        Keyed.allocations += 1
        return super().empty(shape, dtype)


class WithoutStrides(Keyed):
    """The mutation."""

    def key(self, x):
        return x.values.dtype, x.values.shape


class Strides(Backend):
    """Counts the calls whose operands have other strides than the problem that the kernel was prepared for."""

    name = "strides"
    takes = BASIC

    def __init__(self):
        self.calls = self.others = 0

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        return Offer((Candidate(seconds=1e-9),))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, **operands):
            self.calls += 1
            steps = [tuple(step // x.itemsize for step in x.strides) for x in (a, b)]
            self.others += steps != [(x.layout.row_stride, x.layout.col_stride) for x in (problem.a, problem.b)]
            result = alpha * (a @ b) + operands.get("bias", 0)
            out[...] = np.maximum(result, 0) if problem.activation else result

        return Kernel(run, "NumPy")


@pytest.fixture(params=[Views, Keyed])
def library(request):
    yield registered(request.param())
    array_library.unregister(Table)


def registered(library):
    array_library.register(Table, lambda x: library)
    return library


@pytest.fixture
def analysed(monkeypatch):
    """The calls that :func:`gemmhub.matmul` analyses, or looks up on its slow path."""
    seen, whole = [], api._call
    monkeypatch.setattr(api, "_call", lambda *given: seen.append(given) or whole(*given))
    return seen


def arrays(rng, *shapes):
    return [Table(rng.integers(-4, 5, shape).astype(np.float32)) for shape in shapes]


CALLS = {
    "alone": {},
    "alpha": {"alpha": 2.0},
    "bias": {"bias": (3,)},
    "bias and activation": {"bias": (3,), "activation": "relu"},
    "addend": {"c": (5, 3), "beta": 0.5},
    "pre-activation": {"activation": "relu", "pre_activation": (5, 3)},
}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_is_not_analysed(library, analysed, rng, name, with_out):
    a, b, out = arrays(rng, (5, 7), (7, 3), (5, 3))
    options = {x: arrays(rng, value)[0] if isinstance(value, tuple) else value for x, value in CALLS[name].items()}
    native = {x: value.values.copy() if isinstance(value, Table) else value for x, value in options.items()}
    if with_out:
        options["out"] = out
    for turn in range(5):
        if turn == 2:
            analysed.clear()
        a.values += 1
        result = gemmhub.matmul(a, b, **options)
        assert type(result) is Table
        assert result is out or not with_out
        assert np.array_equal(result.values, gemmhub.matmul(a.values, b.values, **native))
        if "pre_activation" in native:
            assert np.array_equal(options["pre_activation"].values, native["pre_activation"])
    assert [given for given in analysed if type(given[0]) is Table] == []


def test_results_are_memory_of_the_library(rng):
    registered(Keyed())
    a, b = arrays(rng, (5, 7), (7, 3))
    for _ in range(3):
        before = Keyed.allocations
        gemmhub.matmul(a, b)
        assert Keyed.allocations == before + 1
    array_library.unregister(Table)


def strides_that_differ(library, rng):
    backend = Strides()
    registered(library)
    gemmhub.register(backend)
    try:
        for x in (np.ones((6, 6), np.float32), np.ones((6, 12), np.float32)[:, ::2], np.ones((6, 6), np.float32).T) * 2:
            assert np.array_equal(gemmhub.matmul(Table(x), Table(x)).values, x @ x)
    finally:
        gemmhub.unregister("strides")
        array_library.unregister(Table)
    assert backend.calls == 6
    return backend.others


@pytest.mark.parametrize("kind", [Views, Keyed])
def test_other_strides_are_another_call(kind, rng):
    assert strides_that_differ(kind(), rng) == 0


def test_a_key_without_strides_would_be_seen(rng):
    assert strides_that_differ(WithoutStrides(), rng) > 0


@pytest.mark.parametrize("change", [
    lambda x: x.astype(np.float64), lambda x: x[:3], lambda x: x.T, lambda x: np.ones((4, 8), np.float32)[:, ::2],
    lambda x: np.frombuffer(b"\0" * 65, np.uint8)[1:].view(np.float32).reshape(4, 4),
])  # fmt: skip
def test_keys_differ(library, change):
    x = np.ones((4, 4), np.float32)
    assert library.key(Table(x)) == library.key(Table(x.copy() if x.flags.owndata else x))
    assert library.key(Table(x)) != library.key(Table(change(x)))
    locked = x.copy()
    locked.flags.writeable = False
    assert library.key(Table(x)) != library.key(Table(locked))


def test_what_is_refused_at_first_is_refused_later(library, rng):
    a, b, out = arrays(rng, (4, 4), (4, 4), (4, 4))
    for _ in range(3):
        gemmhub.matmul(a, b, out=out)
        gemmhub.matmul(a, b, bias=Table(out.values[0]))
    out.writable = False
    with pytest.raises(OutputError, match="a Table; allowed"):
        gemmhub.matmul(a, b, out=out)
    out.writable, out.values.flags.writeable = True, False
    with pytest.raises(OutputError, match="read-only"):
        gemmhub.matmul(a, b, out=out)
    with pytest.raises(InputError, match="one kind of array"):
        gemmhub.matmul(a, b.values)
    with pytest.raises(InputError, match="one kind of array"):
        gemmhub.matmul(a, b, bias=out.values[0])
    with pytest.raises(gemmhub.ShapeError):
        gemmhub.matmul(a, Table(np.ones((3, 4), np.float32)))


def test_subclasses_vectors_and_packed_operands(library, rng):
    a, b, v = arrays(rng, (4, 4), (4, 4), (4,))
    packed = gemmhub.pack(b)
    for _ in range(4):
        assert np.array_equal(gemmhub.matmul(Derived(a.values), b).values, a.values @ b.values)
        assert np.array_equal(gemmhub.matmul(a, Derived(b.values)).values, a.values @ b.values)
        assert gemmhub.matmul(v, v).values == v.values @ v.values
        assert np.array_equal(gemmhub.matmul(a, packed).values, a.values @ b.values)


def test_every_function_takes_them(library, rng):
    a, b, bias = arrays(rng, (5, 7), (7, 3), (3,))
    expected = np.maximum(a.values @ b.values + bias.values, 0)
    options = {"bias": bias, "activation": "relu"}
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, **options), **options)
    assert gemmhub.compare(a, b, **options)
    assert gemmhub.tune(a, b, **options).best.backend
    assert gemmhub.explain(a, b, **options).chosen
    planned = gemmhub.plan(a, b, **options)
    for _ in range(3):
        assert np.array_equal(planned(a, b, bias=bias).values, expected)
        out = Table(np.empty((5, 3), np.float32))
        assert planned(a, b, out, bias=bias) is out
        assert np.array_equal(out.values, expected)
    with pytest.raises(InputError):
        planned(a, Table(b.values[:, :2]), bias=bias)
    with pytest.raises(InputError):
        planned(a, b.values, bias=bias)
    alone = gemmhub.plan(a, b)
    for _ in range(3):
        assert np.array_equal(alone(a, b).values, a.values @ b.values)


def test_a_deferring_library_of_the_type_gets_every_call(library, rng):
    a, b = arrays(rng, (4, 4), (4, 4))
    gemmhub.matmul(a, b)
    seen = []
    array_library.register_deferring(Table, lambda *given: seen.append(given) or NotImplemented)
    for _ in range(3):
        gemmhub.matmul(a, b)
    assert len(seen) == 3


def test_another_library_of_the_type_is_used_at_once(library, rng):
    a, b = arrays(rng, (4, 4), (4, 4))
    for _ in range(3):
        gemmhub.matmul(a, b)

    class Negative(Views):
        def wrap(self, result, operands):
            return Table(-result)

    registered(Negative())
    for _ in range(3):
        assert np.array_equal(gemmhub.matmul(a, b).values, -(a.values @ b.values))


def test_a_type_with_two_libraries(rng):
    first, second = Views(), Keyed()
    second.name = "others"
    array_library.register(Table, lambda x: first if x.writable else second)
    a, b = arrays(rng, (4, 4), (4, 4))
    c, d = (Table(x.values, writable=False) for x in (a, b))
    for _ in range(3):
        assert np.array_equal(gemmhub.matmul(a, b).values, a.values @ b.values)
        assert np.array_equal(gemmhub.matmul(c, d).values, a.values @ b.values)
    array_library.unregister(Table)
