"""Warm calls: the work that they omit, and the differences that need a new decision."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from address_backend import Addresses, add, small

import gemmhub
from gemmhub import api
from gemmhub._arrays.cupy import calls as cupy_calls
from gemmhub._arrays.torch import calls as torch_calls
from gemmhub._call import cache
from gemmhub.errors import InputError

F32 = np.dtype(np.float32)


def entered(function, *arguments, **options):
    """(module, name) of the functions of gemmhub that a call enters."""
    names = []

    def watch(frame, event, _):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("gemmhub"):
            names.append((frame.f_globals["__name__"], frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(before)
    return names


WARM = ("gemmhub.api", "matmul")
CALLS = {"gemmhub._arrays.torch.calls", "gemmhub._arrays.cupy.calls"}
TENSORS = "gemmhub._arrays.torch.tensors"
PLANNED = ("gemmhub._call.plan", "planned")


@pytest.fixture
def pair(library, backend, rng):
    return library.array(small(rng, (4, 4))), library.array(small(rng, (4, 4)))


def is_short(call, *arguments, **options):
    """(The kernel of these tests looks at layouts; the fake torch is of a version whose counters need a look; a layout
    that was not the last is kept as such.)
    """
    aside = "gemmhub.layout", "gemmhub._base.evicting", TENSORS
    first, *names = [x for x in entered(call, *arguments, **options) if x[0] not in aside]
    calls = {x[0] for x in names}
    return first in (WARM, PLANNED) and len(calls) == 1 and calls <= CALLS and names[0][1] == "call"


def test_a_warm_call_is_a_look_up_and_the_kernel(library, backend, pair):
    a, b = pair
    out = library.array(np.zeros((4, 4), F32))
    planned = gemmhub.plan(a, b)
    for _ in range(2):  # the first is decided, the second notes what later ones compare and read
        gemmhub.matmul(a, b), gemmhub.matmul(a, b, out=out)
        planned(a, b), planned(a, b, out)
    questions = backend.questions
    for _ in range(2):
        assert is_short(gemmhub.matmul, a, b)
        assert is_short(gemmhub.matmul, a, b, out=out)
        assert is_short(planned, a, b)
        assert is_short(planned, a, b, out)
    assert backend.questions == questions
    assert np.array_equal(out.host, a.host @ b.host)


def test_other_operands_of_the_same_layout_are_warm(library, backend, pair, rng):
    gemmhub.matmul(*pair), gemmhub.matmul(*pair)
    x, y = small(rng, (4, 4)), small(rng, (4, 4))
    a, b = library.array(x), library.array(y)
    assert is_short(gemmhub.matmul, a, b)
    assert np.array_equal(gemmhub.matmul(a, b).host, x @ y)


def changed(library, rng):
    """name -> (a, b) that differ from a pair of 4 x 4 float32 matrices on cuda:0 in one respect."""
    x, y = small(rng, (4, 4)), small(rng, (4, 4))
    wide = np.zeros((4, 8), F32)
    return {
        "dtype of a": (x.astype(np.float64), y, {}),
        "dtype of b": (x, y.astype(np.float64), {}),
        "bits alike": (x.view(np.int32), y.view(np.int32), {}),
        "strides of a": (np.asfortranarray(x), y, {}),
        "strides of b": (x, np.asfortranarray(y), {}),
        "leading dimension": (wide[:, :4], y, {}),
        "shape of a": (x[:3], y, {}),
        "shape of b": (x, y[:, :3], {}),
        "a vector": (x[0], y, {}),
        "a batch": (x[np.newaxis], y, {}),
        "device": (x, y, {"device": 1}),
        "low bits": (x, y, {"offset": 4}),
        "more low bits": (x, y, {"offset": 128}),
    }


@pytest.mark.parametrize("name", changed(None, np.random.default_rng(0)))
def test_a_different_call_is_decided_again(library, backend, pair, name, rng):
    """And the products stay correct in either order."""
    x, y, where = changed(library, rng)[name]
    a, b = library.array(x, **where), library.array(y, **where)
    out = library.array(np.zeros((4, 4), F32))
    for _ in range(2):
        gemmhub.matmul(*pair), gemmhub.matmul(*pair, out=out)
    known = len(backend.problems)
    for _ in range(3):
        assert np.array_equal(gemmhub.matmul(a, b).host, np.matmul(a.host, b.host))
        result = library.array(np.zeros(np.matmul(x, y).shape, np.result_type(x, y)), **where)
        gemmhub.matmul(a, b, out=result)
        assert np.array_equal(result.host, np.matmul(a.host, b.host))
        assert np.array_equal(gemmhub.matmul(*pair).host, pair[0].host @ pair[1].host)
    assert len(backend.problems) > known
    problem = backend.problems[-1]
    if "offset" in where:
        assert {problem.a.alignment, problem.b.alignment, problem.out.alignment} == {where["offset"]}
    else:
        assert problem.a.alignment == 256


@pytest.mark.parametrize("name", ["dtype", "strides", "low bits", "device", "overlap", "shape"])
def test_a_different_out_is_decided_again(library, backend, machine, pair, name):
    a, b = pair
    wanted = a.host @ b.host
    plain = library.array(np.zeros((4, 4), F32))
    for _ in range(2):
        gemmhub.matmul(a, b, out=plain)
    backend.calls.clear()
    if name in ("device", "shape"):
        out = library.array(np.zeros((4, 4) if name == "device" else (1, 4, 4), F32), device=int(name == "device"))
        for _ in range(2):
            with pytest.raises(InputError):
                gemmhub.matmul(a, b, out=out)
        assert not backend.calls
        return
    out = {
        "dtype": lambda: library.array(np.zeros((4, 4))),
        "strides": lambda: library.array(np.zeros((4, 8), F32)[:, ::2]),
        "low bits": lambda: library.array(np.zeros((4, 4), F32), offset=32),
        "overlap": lambda: a,
    }[name]()
    assert not is_short(gemmhub.matmul, a, b, out=out)
    assert np.array_equal(out.host, wanted)


def test_settings_are_part_of_the_key(library, backend, pair):
    other = add(Addresses("others", seconds=1e-3))
    gemmhub.matmul(*pair), gemmhub.matmul(*pair)
    with gemmhub.use(backend="others"):
        for _ in range(2):
            gemmhub.matmul(*pair)
        assert is_short(gemmhub.matmul, *pair)
    assert len(other.calls) == 3
    with gemmhub.use(precision="tf32"):
        gemmhub.matmul(*pair)
    assert backend.problems[-1].precision == "tf32"
    assert is_short(gemmhub.matmul, *pair)
    gemmhub.reload()
    again = add(Addresses("later"))
    gemmhub.matmul(*pair)
    assert len(again.calls) == 1


def test_reversed_operands_never_hide_an_overlap(library_of, backend, machine, rng):
    """The memory of a reversed array is before its first element."""
    library = library_of("cupy")
    for size in (1, 2):
        memory = machine.allocate(4096, 0)
        away = library.at(machine.allocate(64, 0), 0, F32, (size, size), (4 * size, 4))
        a = library.at(memory, 2048 + 4 * size * size - 4 * size, F32, (size, size), (-4 * size, 4))
        b = library.array(small(rng, (size, size)))
        for _ in range(2):
            a.host[...] = small(rng, (size, size))
            gemmhub.matmul(a, b, out=away)
        out = library.at(memory, 2048, F32, (size, size), (4 * size, 4))
        for step in range(3):
            a.host[...] = small(rng, (size, size))
            wanted = a.host @ b.host
            assert gemmhub.matmul(a, b, out=out) is out
            assert np.array_equal(out.host, wanted), step


# Plans


def test_a_plan_takes_operands_of_its_layout(library, backend, pair, rng):
    a, b = pair
    planned = gemmhub.plan(a, b)
    for wrong in (
        library.array(a.host.astype(np.float64)),
        library.array(np.asfortranarray(a.host)),
        library.array(a.host[:3].copy()),
        library.array(a.host, offset=64),
    ):
        for _ in range(2):
            with pytest.raises(InputError, match="plan"):
                planned(wrong, b)
        with pytest.raises(InputError):
            planned(a, b, wrong)
    away = library.array(a.host, device=1)
    with pytest.raises(InputError):
        planned(away, library.array(b.host, device=1))
    assert np.array_equal(planned(a, b).host, a.host @ b.host)
    assert planned.decision.chosen == "addresses"


def test_a_plan_takes_what_is_aligned_better(library, backend, pair):
    low = [library.array(x.host, offset=16) for x in pair]
    planned = gemmhub.plan(*low, out=low[0])
    for a, b in (low, pair, low):
        out = library.array(np.zeros((4, 4), F32))
        assert np.array_equal(planned(a, b, out).host, a.host @ b.host)
        assert np.array_equal(planned(a, b).host, a.host @ b.host)


def test_a_plan_keeps_nothing_of_its_examples(library, backend, pair):
    arrays = [library.array(np.ones((4, 4), F32)) for _ in range(4)]
    a, b, c, out = arrays
    bias = library.array(np.ones(4, F32))
    planned = [gemmhub.plan(a, b), gemmhub.plan(a, b, out=out), gemmhub.plan(a, b, c=c, beta=1, bias=bias)]
    watched = [weakref.ref(x) for x in (*arrays, bias)]
    del a, b, c, out, bias, arrays
    gc.collect()
    assert [ref() for ref in watched] == [None] * 5
    assert np.array_equal(planned[0](*pair).host, pair[0].host @ pair[1].host)


@pytest.mark.parametrize(("first", "second"), [
    (((4,), (4, 5)), ((1, 4), (4, 5))), (((5, 4), (4,)), ((5, 4), (4, 1))), (((1, 4), (4, 5)), ((1, 1, 4), (4, 5))),
], ids=str)  # fmt: skip
def test_a_plan_takes_no_vector_for_a_matrix_of_one_row(library, backend, first, second):
    for planned_for, called_with in ((first, second), (second, first)):
        a, b = (library.array(np.ones(shape, F32)) for shape in planned_for)
        x, y = (library.array(np.ones(shape, F32)) for shape in called_with)
        planned = gemmhub.plan(a, b)
        for _ in range(2):
            planned(a, b)
            with pytest.raises(InputError) as raised:
                planned(x, y)
            assert "a, b" in raised.value.argument


def test_a_plan_for_any_alpha_takes_1(library, backend, pair):
    a, b = pair
    planned = gemmhub.plan(a, b, alpha=0.5)
    for alpha in (1.0, 2, 0.5, 1):
        assert np.array_equal(planned(a, b, alpha=alpha).host, alpha * (a.host @ b.host))
    for plain in (gemmhub.plan(a, b), gemmhub.plan(a, b, out=library.array(np.zeros((4, 4), F32)))):
        with pytest.raises(InputError) as raised:
            plain(a, b, alpha=2)
        assert raised.value.argument == "alpha"


def test_a_plan_keeps_beta_0_or_other_than_0(library, backend, pair):
    """A kernel that adds c gets its address, and may read it for any beta."""
    a, b = pair
    c = library.array(np.full((4, 4), np.nan, F32))
    for first, second in ((0, 1), (0.5, 0.0)):
        planned = gemmhub.plan(a, b, c=c, beta=first)
        with pytest.raises(InputError) as raised:
            planned(a, b, c=c, beta=second)
        assert raised.value.argument == "beta"
    assert np.array_equal(gemmhub.plan(a, b, c=c, beta=0)(a, b, c=c).host, a.host @ b.host)


def test_a_plan_sees_overlaps(library, backend, machine, pair):
    a, b = pair
    out = library.array(np.zeros((4, 4), F32))
    planned = gemmhub.plan(a, b, out=out)
    planned(a, b, out)
    wanted = a.host @ b.host
    planned(a, b, a)
    assert np.array_equal(a.host, wanted)
    assert len(machine.done("copy")) == 1


def test_caches_are_bounded(library, backend, monkeypatch):
    for module in (torch_calls, cupy_calls, cache):
        monkeypatch.setattr(module, "_MAX_ENTRIES", 8)
    for n in range(1, 30):
        a = library.array(np.ones((n, n), F32))
        assert np.all(gemmhub.matmul(a, a).host == n)
        assert len(api._cache) <= 8


def test_several_threads(library, backend, machine, rng):
    """Each on a separate stream and device, on operands of many kinds."""
    planned = {}
    kinds = [(m, dtype, device) for m in (1, 3, 8) for dtype in (F32, np.dtype(np.float16)) for device in (0, 1)]
    operands = {}
    for m, dtype, device in kinds:
        a, b = (library.array(small(rng, (m, m), dtype), device) for _ in range(2))
        operands[m, dtype, device] = a, b, a.host @ b.host
        planned[m, dtype, device] = gemmhub.plan(a, b)
    start = threading.Barrier(6)

    def work(seed):
        own = np.random.default_rng(seed)
        start.wait()
        wrong = 0
        with library.current(0x100 + seed, 0), library.current(0x200 + seed, 1):
            for _ in range(150):
                key = kinds[own.integers(len(kinds))]
                a, b, wanted = operands[key]
                call = planned[key] if own.random() < 0.5 else gemmhub.matmul
                with machine.on(int(own.integers(2))):
                    got = call(a, b)
                wrong += not np.array_equal(got.host, wanted) or library.device(got) != key[2]
                if own.random() < 0.05:
                    api.forget_decisions()
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 0
    assert set(backend.streams) <= {base + seed for base in (0x100, 0x200) for seed in range(6)}


def test_a_new_m_in_a_known_bucket_is_prepared_and_nothing_else(library, backend, rng):
    """Where backends promise that candidates hold for a bucket: one question for each of the sizes 97 to 100."""
    backend.by_bucket = True
    b = library.array(small(rng, (4, 6)))
    asked = []
    for m in (98, 97, 100, 99):
        before = backend.questions
        a = small(rng, (m, 4))
        assert np.array_equal(gemmhub.matmul(library.array(a), b).host, a @ b.host)
        asked.append(backend.questions - before)
    assert asked[0] > 1
    assert asked[1:] == [1, 1, 1]
    assert [problem.m for problem in backend.problems] == [98, 97, 100, 99]
    before = backend.questions
    gemmhub.matmul(library.array(small(rng, (101, 4))), b)
    assert backend.questions - before > 1
