"""Plans, packed operands and the caches of decided calls."""

from __future__ import annotations

import contextvars
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from products import BF16, F16, F32, F64, I8, I32, I64, U8, draw, ratio, relaid

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Kernel, Ready, api, config
from gemmhub._call import cache
from gemmhub._choice import decide, records, registry
from gemmhub.errors import ConfigError, DTypeError, GemmhubError, InputError, NoBackendError, OutputError, ShapeError

PATHS = (F32, F16, I8, I64)


def result_of(dtype):
    return I32 if dtype in (I8, U8) else dtype


# Plans


@pytest.mark.parametrize("dtype", [*PATHS, BF16, F64], ids=str)
@pytest.mark.parametrize("shapes", [((5, 6), (6, 7)), ((6,), (6, 7)), ((5, 6), (6,)), ((6,), (6,)),
                                    ((3, 5, 6), (6, 7)), ((2, 1, 5, 6), (3, 6, 7)), ((0, 6), (6, 7)),
                                    ((5, 0), (0, 7))], ids=str)  # fmt: skip
def test_a_plan_multiplies_what_it_is_given(shapes, dtype, rng):
    examples = [draw(rng, shape, dtype) for shape in shapes]
    planned = gemmhub.plan(*examples)
    assert planned.decision.chosen == "numpy"
    assert isinstance(planned.kernel, Kernel)
    for _ in range(3):
        a, b = (draw(rng, shape, dtype) for shape in shapes)
        with np.errstate(all="ignore"):
            got = planned(a, b)
            assert type(got) is (np.ndarray if got.shape else got.dtype.type)
            assert ratio(got, a, b) <= 1
            left, right = relaid(rng, a)[0], relaid(rng, b)[0]
            assert ratio(planned(left, right), a, b) <= 1
            if got.shape:
                poison = draw(rng, got.shape, result_of(dtype))
                out, memory = relaid(rng, poison)
                before = memory.copy()
                for given in ((left, right, out), (a, b, out)):
                    assert planned(*given) is out
                    assert ratio(out, a, b) <= 1
                out[...] = poison
                assert np.array_equal(memory, before)


def test_a_plan_looks_at_no_stride_without_meaning(rng):
    """Where backends depend on layouts: the other stride of a result of one row or column has no effect."""
    backend = Laid()
    description = BackendDescription(backend.name, lambda: backend, "for tests", contract=2)
    registry.registry().add(description, backend.name, "gemmhub-laid")
    for shapes in (((1, 4), (4, 5)), ((4,), (4, 5)), ((5, 4), (4,)), ((5, 4), (4, 1)), ((2, 1, 4), (4, 5))):
        a, b = (draw(rng, shape, F32) for shape in shapes)
        planned = gemmhub.plan(a, b, backend="laid")
        out = np.repeat(np.matmul(a, b)[..., np.newaxis], 1, axis=-1)[..., 0]
        assert planned(a, b, out) is out
        assert ratio(out, a, b) <= 1
    planned = gemmhub.plan(np.ones((5, 4), F32), np.ones((4, 5), F32), backend="laid")
    with pytest.raises(InputError, match="planned"):
        planned(np.ones((4, 5), F32).T, np.ones((4, 5), F32))


class Laid(Backend):
    """NumPy with ``layout_sensitive``."""

    name = "laid"

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        return gemmhub.Offer()

    def prepare(self, problem, candidate, workspace_limit):
        return Kernel(lambda a, b, out, *_: np.matmul(a, b, out=out), "laid")


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_a_plan_keeps_nothing_of_its_examples(dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    bias = draw(rng, (7,), result_of(dtype))
    c = draw(rng, (5, 7), result_of(dtype))
    planned = gemmhub.plan(a, b)
    with_bias = gemmhub.plan(a, b, bias=bias)
    with_c = gemmhub.plan(a, b, c=c, beta=2)
    watched = [weakref.ref(x) for x in (a, b, c, bias)]
    del a, b, c, bias
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    assert ratio(planned(a, b), a, b) <= 1
    bias, c = draw(rng, (7,), result_of(dtype)), draw(rng, (5, 7), result_of(dtype))
    assert ratio(with_bias(a, b, bias=bias), a, b, bias=bias) <= 1
    assert ratio(with_c(a, b, c=c), a, b, c=c, beta=2) <= 1


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_operands_that_are_not_as_planned(dtype, rng):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    poison = draw(rng, (5, 7), result_of(dtype))
    other = F64 if dtype != F64 else F32
    planned = gemmhub.plan(a, b)
    out = poison.copy()
    wrong = {
        "a of other sizes": (a[:4], b),
        "k": (a[:, :5], b[:5]),
        "a that does not fit": (a[:, :5], b),
        "b that does not fit": (a, b[:, :6]),
        "a batch": (a[np.newaxis], b),
        "a vector": (a[0], b),
        "dtype of a": (a.astype(other), b),
        "dtype of both": (a.astype(other), b.astype(other)),
        "byte order": (a.astype(a.dtype.newbyteorder()) if a.itemsize > 1 else a.astype(">i2"), b),
        "None": (None, b),
        "objects": (a.astype(object), b),
        "objects in b": (a, b.astype(object)),
        "ragged": ([[1], [1, 2]], b),
        "masked": (np.ma.masked_array(a), b),
    }
    for name, (left, right) in wrong.items():
        for arguments in ((left, right, out), (left, right)):
            with pytest.raises(InputError):
                planned(*arguments)
            assert np.array_equal(out, poison), name
    for left, right in {"dtype of b": (a, b.astype(other)), "b as a stack": (a, b[np.newaxis])}.values():
        with pytest.raises(InputError):
            planned(left, right)
    frozen = poison.copy()
    frozen.flags.writeable = False
    for target in (frozen, poison.copy()[:, :6], np.zeros((1, 5, 7), out.dtype), out.astype(np.complex128),
                   [[0] * 7] * 5, np.broadcast_to(out[:, :1], (5, 7))):  # fmt: skip
        before = np.array(target, copy=True)
        with pytest.raises(OutputError):
            planned(a, b, target)
        assert np.array_equal(target, before)


def test_a_plan_names_the_difference(rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    planned = gemmhub.plan(a, b)
    with pytest.raises(InputError) as raised:
        planned(a[:4], b)
    assert raised.value.argument == "m"
    assert "4x7x6" in raised.value.given
    assert "5x7x6" in raised.value.allowed
    assert "another plan" in raised.value.remedy
    with pytest.raises(InputError) as raised:
        planned(a.astype(F16), b)
    assert raised.value.argument == "a"
    with pytest.raises(ShapeError):
        planned(a, b[:5])


@pytest.mark.parametrize("dtype", [F32, F16, I8, I64], ids=str)
def test_plans_with_an_epilogue(dtype, rng):
    result = result_of(dtype)
    a, b, c, bias = (draw(rng, shape, x) for shape, x in
                     (((5, 6), dtype), ((6, 7), dtype), ((5, 7), result), ((5, 1), result)))  # fmt: skip
    options = {"alpha": 2, "beta": -3, "c": c, "bias": bias, "activation": "relu"}
    planned = gemmhub.plan(a, b, **options)
    for _ in range(3):
        for x in (a, b, c, bias):
            x[...] = draw(rng, x.shape, x.dtype)
        with np.errstate(all="ignore"):
            assert ratio(planned(a, b, c=c, bias=bias), a, b, **options) <= 1
            other = options | {"alpha": 5, "beta": 2}
            assert ratio(planned(a, b, c=c, bias=bias, alpha=5, beta=2), a, b, **other) <= 1
            out = c.copy()
            assert planned(a, b, out, c=out, bias=bias) is out
            assert ratio(out, a, b, **options) <= 1
    out[...] = 7
    refused = [
        {},
        {"c": c},
        {"bias": bias},
        {"c": c[:4], "bias": bias},
        {"c": c, "bias": bias[:, 0]},
        {"c": c, "bias": bias.T},
        {"c": c.astype(np.complex64), "bias": bias},
        {"c": c, "bias": bias, "beta": 0},
        {"c": c, "bias": bias, "alpha": "2"},
        {"c": c, "bias": bias, "beta": None, "alpha": [2]},
        {"c": c, "bias": bias, "beta": 1j},
        {"c": c, "bias": bias, "stream": 3},
    ]
    for given in refused:
        with pytest.raises(InputError):
            planned(a, b, out, **given)
        assert np.all(out == 7)
    with pytest.raises(TypeError):
        planned(a, b, c=c, bias=bias, gamma=1)


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_a_plain_plan_takes_no_epilogue(dtype, rng):
    """It may refuse with Python's message or gemmhub's, but it may not ignore an argument."""
    a, b = draw(rng, (5, 6), dtype), draw(rng, (6, 7), dtype)
    planned = gemmhub.plan(a, b)
    addend = draw(rng, (5, 7), result_of(dtype))
    for given in ({"c": addend}, {"c": addend, "beta": 1}, {"beta": 1}, {"bias": addend[0]}, {"alpha": 2}):
        with pytest.raises((TypeError, InputError)):
            planned(a, b, **given)


def test_a_plan_may_be_made_from_lists_and_called_with_them():
    planned = gemmhub.plan([[1.0, 2.0]], [[3.0], [4.0]])
    assert planned([[1.0, 1.0]], [[3.0], [4.0]]) == 7
    assert planned(np.array([[1.0, 1.0]]), np.array([[3.0], [4.0]])) == 7
    with pytest.raises(InputError):
        planned([[1.0, 1.0, 1.0]], [[3.0], [4.0], [5.0]])


def test_a_plan_with_out_of_another_dtype(rng):
    a, b = draw(rng, (5, 6), F16), draw(rng, (6, 7), F16)
    out = np.empty((5, 7), F32)
    for planned in (gemmhub.plan(a, b, out=out), gemmhub.plan(a, b, out_dtype=F32)):
        assert ratio(planned(a, b), a, b, out_dtype=F32) <= 1
        assert ratio(planned(a, b, out), a, b, out_dtype=F32) <= 1
        with pytest.raises(OutputError):
            planned(a, b, np.empty((5, 7), F16))


def test_a_plan_outlives_a_reload_and_the_context_it_was_made_in(rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    with gemmhub.use(backend="numpy"):
        planned = gemmhub.plan(a, b)
    gemmhub.reload()
    assert ratio(planned(a, b), a, b) <= 1


# Threads


@pytest.mark.parametrize("dtype", PATHS, ids=str)
def test_threads_share_plans_and_caches(dtype, rng):
    """Each thread with data and sizes of its own, through one plan, one packed operand and the same caches."""
    shapes = [((40, 30), (30, 20)), ((40, 30), (30, 21)), ((3, 40, 30), (30, 20))]
    examples = [[draw(rng, shape, dtype) for shape in pair] for pair in shapes]
    planned = gemmhub.plan(*examples[0])
    biased = gemmhub.plan(*examples[0], bias=draw(rng, (20,), result_of(dtype)))
    packs = dtype != I64
    packed = gemmhub.pack(examples[0][1]) if packs else None
    gate = threading.Barrier(4)

    def work(seed):
        own = np.random.default_rng(seed)
        gate.wait()
        worst = 0.0
        for turn in range(12):
            pair = shapes[turn % 3]
            a, b = (draw(own, shape, dtype) for shape in pair)
            worst = max(worst, ratio(gemmhub.matmul(a, b), a, b))
            out = np.empty((*a.shape[:-1], b.shape[-1]), result_of(dtype))
            worst = max(worst, ratio(gemmhub.matmul(a, b, out=out), a, b))
            if turn % 3 == 0:
                bias = draw(own, (20,), result_of(dtype))
                worst = max(worst, ratio(planned(a, b), a, b), ratio(planned(a, b, out), a, b))
                worst = max(worst, ratio(biased(a, b, bias=bias), a, b, bias=bias))
                if packed is not None:
                    worst = max(worst, ratio(gemmhub.matmul(a, packed), a, examples[0][1]))
            if turn == 6 and seed == 0:
                gemmhub.reload()
        return worst

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert max(pool.map(work, range(4))) <= 1
    finally:
        sys.setswitchinterval(interval)


# Packed operands


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64, I8, U8, np.dtype(np.complex64)], ids=str)
def test_a_packed_operand_is_a_copy(dtype, rng):
    b = draw(rng, (6, 7), dtype)
    kept = b.copy()
    packed = gemmhub.pack(relaid(rng, b)[0])
    again = gemmhub.pack(b)
    b[...] = draw(rng, b.shape, dtype)
    for a_shape in ((1, 6), (5, 6), (300, 6), (6,), (2, 3, 6), (0, 6)):
        a = draw(rng, a_shape, dtype)
        for handle in (packed, again):
            for _ in range(2):
                assert ratio(gemmhub.matmul(a, handle), a, kept) <= 1
            if len(a_shape) > 1:
                out = np.empty((*a_shape[:-1], 7), result_of(dtype))
                assert gemmhub.matmul(a, handle, out=out) is out
                assert ratio(out, a, kept) <= 1
    planned = gemmhub.plan(a := draw(rng, (5, 6), dtype), packed)
    assert ratio(planned(a, packed), a, kept) <= 1
    assert ratio(planned(a, again), a, kept) <= 1


def test_packed_operands_with_an_epilogue(rng):
    a, b, c = draw(rng, (5, 6), F16), draw(rng, (6, 7), F16), draw(rng, (5, 7), F16)
    options = {"alpha": 2.0, "beta": 0.5, "c": c, "bias": draw(rng, (5, 1), F16), "activation": "gelu"}
    assert ratio(gemmhub.matmul(a, gemmhub.pack(b), **options), a, b, **options) <= 1
    square = draw(rng, (6, 6), F16)
    packed, x = gemmhub.pack(square), square.copy()
    gemmhub.matmul(x, packed, out=x)
    assert ratio(x, square, square) <= 1


def test_packed_operands_of_other_dtypes(rng):
    b = draw(rng, (6, 7), F16)
    for left in (F32, F64, BF16, I8, np.dtype(np.complex64)):
        if left == I8:
            b = draw(rng, (6, 7), np.dtype(np.int16))
        a = draw(rng, (5, 6), left)
        assert ratio(gemmhub.matmul(a, gemmhub.pack(b, a_dtype=left)), a, b) <= 1


def test_what_a_packed_operand_refuses(rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    packed = gemmhub.pack(b)
    assert repr(packed) == "<PackedB 6x7 float32 by 'numpy' for a of float32>"
    assert (packed.shape, packed.dtype, packed.ndim, packed.backend) == ((6, 7), F32, 2, "numpy")
    for call, kind, argument in (
        (lambda: gemmhub.matmul(a.astype(F64), packed), InputError, "b"),
        (lambda: gemmhub.matmul(packed, b), InputError, "a"),
        (lambda: gemmhub.matmul(a, b, out=packed), InputError, "out"),
        (lambda: gemmhub.matmul(a, b, bias=packed), InputError, "bias"),
        (lambda: gemmhub.matmul(a[:, :5], packed), ShapeError, "a, b"),
        (lambda: gemmhub.pack(packed), InputError, "b"),
        (lambda: gemmhub.pack(b[np.newaxis]), ShapeError, "b"),
        (lambda: gemmhub.pack(b[0]), ShapeError, "b"),
        (lambda: gemmhub.pack(b.astype(object)), DTypeError, "b"),
        (lambda: gemmhub.pack(None), InputError, "b"),
        (lambda: gemmhub.pack(b, m=0), InputError, "m"),
        (lambda: gemmhub.pack(b, m=2.5), InputError, "m"),
        (lambda: gemmhub.pack(b, a_dtype="float33"), DTypeError, "a_dtype"),
        (lambda: gemmhub.pack(b, backend="nobody"), InputError, "backend"),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert raised.value.argument == argument
    planned = gemmhub.plan(a, packed)
    for wrong in (b, gemmhub.pack(b[:, :6]), gemmhub.pack(b, a_dtype=F64)):
        with pytest.raises(InputError):
            planned(a, wrong)
    with pytest.raises(NoBackendError) as raised:
        gemmhub.pack(draw(rng, (6, 7), I64))
    assert raised.value.decision["numpy"].reason
    assert raised.value.decision["numpy"].remedy


class Other(Backend):
    """A second backend that counts questions, packs in its own format, and notes operands unlike its problem.

    (It notes rather than raises: after an exception a warm call is decided again, and would then be correct.)
    """

    name = "other"
    layout_sensitive = True
    takes: ClassVar = {"bias": frozenset({"n"})}
    seconds = 1e-9

    def __init__(self):
        self.asked = []
        self.surprised = False

    def probe(self):
        self.asked.append("probe")
        return Ready((Device(),))

    def offer(self, problem):
        self.asked.append("offer")
        return gemmhub.Offer((gemmhub.Candidate(seconds=self.seconds),))

    def prepare(self, problem, candidate, workspace_limit):
        self.asked.append("prepare")

        def run(a, b, out, alpha, beta, stream, bias=None):
            b = b["b"] if isinstance(b, dict) else b
            told = [(a, problem.a), (out, problem.out)] + ([] if problem.packed_by else [(b, problem.b)])
            for x, operand in told:
                rows, cols = operand.layout.row_stride, operand.layout.col_stride
                self.surprised |= (x.shape[-2:], x.dtype) != ((operand.layout.rows, operand.layout.cols), operand.dtype)
                self.surprised |= x.shape[-2] > 1 and x.strides[-2] != rows * x.itemsize
                self.surprised |= x.shape[-1] > 1 and x.strides[-1] != cols * x.itemsize
                self.surprised |= operand.alignment != (x.itemsize if x.flags.aligned else 1)
            self.surprised |= np.may_share_memory(out, a)
            out[...] = np.matmul(a, b) if bias is None else np.matmul(a, b) + bias

        return Kernel(run, "other")

    def pack(self, b, problem):
        return {"b": b.copy()}


@pytest.fixture
def other():
    backend = Other()
    registry.registry().add(
        BackendDescription("other", lambda: backend, "for tests", contract=2), "other", "gemmhub-other"
    )
    return backend


def test_only_the_packer_may_use_what_it_packed(other, rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    theirs = gemmhub.pack(b, backend="other")
    assert theirs.backend == "other"
    assert ratio(gemmhub.matmul(a, theirs), a, b) <= 1
    with pytest.raises(NoBackendError, match="packed by 'other'"):
        gemmhub.matmul(a, theirs, backend="numpy")
    with gemmhub.use(backend="numpy"), pytest.raises(NoBackendError):
        gemmhub.matmul(a, theirs)
    planned = gemmhub.plan(a, theirs)
    with pytest.raises(InputError):
        planned(a, gemmhub.pack(b, backend="numpy"))


# Caches


def test_a_backend_is_asked_once_for_each_kind_of_call(other, rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    for _ in range(5):
        gemmhub.matmul(a, b)
    assert other.asked == ["probe", "offer", "prepare"]
    out = np.empty((5, 7), F32)
    for _ in range(5):
        gemmhub.matmul(a, b, out=out, bias=b[0])
    assert other.asked == ["probe"] + ["offer", "prepare"] * 2


def test_a_layout_sensitive_backend_is_asked_for_each_layout(other, rng):
    """And never gets an array of another layout than its problem's; its kernel notes it."""
    a, b = draw(rng, (6, 6), F32), draw(rng, (6, 6), F32)
    odd, even = (np.zeros(4 * 36 + 1, np.uint8)[i : i + 144].view(F32).reshape(6, 6) for i in (1, 0))
    odd[...] = even[...] = draw(rng, (6, 6), F32)
    for _ in range(2):
        for left in (a, a.T, a[::-1], np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
            for out in (None, np.empty((6, 6), F32), np.empty((6, 6), F32, order="F"), np.empty((6, 12), F32)[:, ::2]):
                for right in (b, b.T):
                    assert ratio(gemmhub.matmul(left, right, out=out), left, right) <= 1
        for right in (even, odd):
            assert ratio(gemmhub.matmul(a, right), a, right) <= 1
            assert ratio(gemmhub.matmul(right, a), right, a) <= 1
            assert ratio(gemmhub.matmul(a, b, out=right.copy()), a, b) <= 1
            kept = right.copy()
            gemmhub.matmul(a, b, out=right)
            assert ratio(right, a, b) <= 1
            right[...] = kept
        x = a.copy()
        gemmhub.matmul(x, b, out=x)  # beside, and in the same layout
        assert ratio(x, a, b) <= 1
        x = a.copy()
        gemmhub.matmul(x.T, b, out=x.T)
        assert ratio(x.T, a.T, b) <= 1
    planned = gemmhub.plan(a, b)
    with pytest.raises(InputError):
        planned(a.T, b)
    assert not other.surprised


def test_caches_are_bounded(monkeypatch):
    monkeypatch.setattr(cache, "_MAX_ENTRIES", 16)
    for size in range(1, 60):
        gemmhub.matmul(np.ones((1, size), F32), np.ones((size, 1), F32))
        gemmhub.matmul(np.ones((1, size), F16), np.ones((size, 1), F16), alpha=2)
        assert len(api._cache) <= 16


def test_settings_of_calls_do_not_pile_up(rng):
    x = draw(rng, (2, 2), F32)
    gemmhub.matmul(x, x, backend="numpy", precision="tf32")
    before = len(config._interned), len(api._cache)
    for _ in range(50):
        gemmhub.matmul(x, x, backend="numpy", precision="tf32")
        with gemmhub.use(precision="bf16"):
            gemmhub.matmul(x, x)
    assert len(config._interned) <= before[0] + 4
    assert len(api._cache) <= before[1] + 4


def test_reload_forgets_everything(monkeypatch, rng):
    x = draw(rng, (2, 2), F32)
    gemmhub.matmul(x, x)
    assert len(api._cache)
    monkeypatch.setenv("GEMMHUB_BACKEND", "no such")
    assert ratio(gemmhub.matmul(x, x), x, x) <= 1  # not read again
    gemmhub.reload()
    assert not len(api._cache)
    assert not registry._registry
    monkeypatch.setenv("GEMMHUB_PRECISION", "nonsense")
    with pytest.raises(ConfigError, match="GEMMHUB_PRECISION"):
        gemmhub.matmul(x, x)
    monkeypatch.setenv("GEMMHUB_PRECISION", "tf32")
    gemmhub.reload()
    assert gemmhub.explain(x, x).problem.precision == "tf32"


@pytest.mark.parametrize("module", [config, registry, records, decide])
def test_a_call_in_another_thread_while_reloading_leaves_nothing_behind(module, monkeypatch, rng):
    x = draw(rng, (2, 2), F32)
    forget = module.forget

    def interrupted():
        with ThreadPoolExecutor(1) as pool:
            assert ratio(pool.submit(gemmhub.matmul, x, x).result(), x, x) <= 1
        forget()

    with monkeypatch.context() as patch:
        patch.setattr(module, "forget", interrupted)
        gemmhub.reload()
    monkeypatch.setenv("GEMMHUB_PRECISION", "nonsense")
    config.forget()
    with pytest.raises(ConfigError):
        gemmhub.matmul(x, x)


@pytest.mark.parametrize("function", [gemmhub.matmul, lambda a, b: gemmhub.plan(a, b)(a, b)])
def test_a_call_that_is_being_decided_while_reloading_leaves_nothing_behind(function, other, monkeypatch, rng):
    x = draw(rng, (2, 2), F32)
    runs = []

    def interrupted(problem, candidate, workspace_limit):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(gemmhub.reload).result()
        return Kernel(lambda a, b, out, *_: runs.append(np.matmul(a, b, out=out)), "other")

    monkeypatch.setattr(other, "prepare", interrupted)
    for _ in range(3):
        assert ratio(function(x, x), x, x) <= 1
    assert len(runs) == 1  # the other calls were decided after the reload, which found no such backend


def test_settings_that_are_being_read_while_reloading_are_read_again(monkeypatch):
    read = config.read

    def interrupted():
        found = read()
        gemmhub.reload()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(config, "read", interrupted)
        assert config.current().precision == "ieee"
    monkeypatch.setenv("GEMMHUB_PRECISION", "tf32")
    assert config.current().precision == "tf32"


@pytest.mark.parametrize(("function", "module"), [(config.root, config), (registry.registry, registry)])
def test_who_looks_while_another_thread_reloads_finds_something(function, module):
    """Whenever the other thread runs: here, before every line."""

    def turn(frame, event, _):
        if frame.f_code is function.__code__:
            module.forget()
            return turn
        return None

    before = sys.gettrace()
    sys.settrace(turn)
    try:
        found = function()
    finally:
        sys.settrace(before)
    assert found is not None


def test_what_distinguishes_calls(rng):
    """Calls alike but for one thing, in both orders: the cache of the first does not answer the second."""
    a = draw(rng, (4, 4), I32)
    variants = {
        "plain": ((a, a), {}),
        "byte order": ((a.astype(">i4"), a), {}),
        "unsigned": ((a.view("u4"), a), {}),
        "float": ((a.view(F32), a), {}),
        "out": ((a, a), {"out": np.zeros((4, 4), I32)}),
        "out_dtype": ((a, a), {"out_dtype": I64}),
        "out of another dtype": ((a, a), {"out": np.zeros((4, 4), I64)}),
        "shape": ((a[:2], a), {}),
        "vector": ((a[0], a), {}),
        "stack": ((a[np.newaxis], a), {}),
        "subclass": ((a.view(np.recarray), a), {}),
        "masked": ((np.ma.masked_array(a), a), {}),
        "list": ((a.tolist(), a), {}),
        "alpha": ((a, a), {"alpha": 3}),
        "negative alpha": ((a, a), {"alpha": -3}),
        "activation": ((a, a), {"activation": "relu"}),
        "c": ((a, a), {"c": a, "beta": 2}),
        "bias": ((a, a), {"bias": a[0]}),
        "column bias": ((a, a), {"bias": a[:, :1]}),
        "packed": ((a.astype("i2"), gemmhub.pack(a.astype("i2"))), {}),
    }

    def answer(operands, options):
        try:
            with np.errstate(all="ignore"):
                got = gemmhub.matmul(*operands, **options)
        except GemmhubError as error:
            return type(error), str(error)
        return got.dtype, got.shape, got.tobytes()

    fresh = {}
    for name, call in variants.items():
        gemmhub.reload()
        fresh[name] = answer(*call)
    assert len({repr(x) for x in fresh.values()}) >= 14
    for first in variants:
        gemmhub.reload()
        for _ in range(2):
            answer(*variants[first])
        for second, call in variants.items():
            assert answer(*call) == fresh[second], f"{second} after {first}"


# Contexts


def test_use_is_seen_by_warm_calls_and_left_behind(other, rng):
    a, b = draw(rng, (5, 6), F32), draw(rng, (6, 7), F32)
    for _ in range(3):
        assert gemmhub.explain(a, b).chosen == "other"
        before = len(other.asked)
        with gemmhub.use(backend="numpy"):
            gemmhub.matmul(a, b)
            assert gemmhub.explain(a, b).chosen == "numpy"
            with gemmhub.use(backend="other"):
                assert gemmhub.explain(a, b).chosen == "other"
            assert gemmhub.explain(a, b).chosen == "numpy"
        assert "prepare" not in other.asked[before:]
        gemmhub.matmul(a, b)
        assert "prepare" in other.asked


def test_use_does_not_leak_into_other_threads(rng):
    x = draw(rng, (3, 3), F32)
    inside, seen = threading.Event(), threading.Event()
    found = {}

    def elsewhere():
        inside.wait(10)
        found["elsewhere"] = gemmhub.explain(x, x).problem.precision
        with gemmhub.use(precision="bf16"):
            found["its own"] = gemmhub.explain(x, x).problem.precision
            seen.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with gemmhub.use(precision="tf32"):
        inside.set()
        assert seen.wait(10)
        assert gemmhub.explain(x, x).problem.precision == "tf32"
        found["copied"] = contextvars.copy_context().run(lambda: gemmhub.explain(x, x).problem.precision)
    thread.join()
    assert found == {"elsewhere": "ieee", "its own": "bf16", "copied": "tf32"}
    assert gemmhub.explain(x, x).problem.precision == "ieee"


def test_one_use_object_in_many_threads_and_nested(rng):
    x = draw(rng, (3, 3), F32)
    shared = gemmhub.use(precision="tf32")
    gate = threading.Barrier(4)

    def work(_):
        for _ in range(20):
            gate.wait(10)
            with shared:
                gate.wait(10)
                with gemmhub.use(precision="bf16"), shared:
                    assert gemmhub.explain(x, x).problem.precision == "tf32"
                assert gemmhub.explain(x, x).problem.precision == "tf32"
            assert gemmhub.explain(x, x).problem.precision == "ieee"
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert config.context.get() is None


def test_use_is_left_by_an_exception(rng):
    x = draw(rng, (3, 3), F32)
    with pytest.raises(ZeroDivisionError), gemmhub.use(precision="tf32"):
        raise ZeroDivisionError
    assert gemmhub.explain(x, x).problem.precision == "ieee"


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 2.0}, {"out_dtype": "float64"}, {"activation": "relu", "reproducible": "run"}], ids=str
)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, I8], ids=str)
def test_plans_pickle(dtype, options, rng):
    """And are decided again where they are loaded, with strides, batches, vectors and epilogues."""
    if dtype == I8 and "activation" in options:
        options = {**options, "out_dtype": "int32"}
    a, b = draw(rng, (2, 7, 9), dtype)[:, ::-1], draw(rng, (5, 9), dtype).T
    planned = gemmhub.plan(a, b, **options)
    again = pickle.loads(pickle.dumps(planned))
    assert again is not planned
    assert again.decision == planned.decision
    assert np.array_equal(again(a, b), planned(a, b))
    with pytest.raises(InputError):
        again(a, b[:, :3])
    c, out = draw(rng, (2, 7, 5), gemmhub.matmul(a, b).dtype), None
    added = gemmhub.plan(a, b, c=c, beta=1, out=out)
    assert np.array_equal(pickle.loads(pickle.dumps(added))(a, b, c=c), added(a, b, c=c))


def test_plans_pickle_into_another_process(rng, tmp_path):
    a, b = draw(rng, (6, 4), F16), draw(rng, (4, 3), F16)
    planned = gemmhub.plan(a, b, alpha=3.0)
    (tmp_path / "plan").write_bytes(pickle.dumps((planned, a, b)))
    text = (
        "import pickle, sys; p, a, b = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "sys.stdout.buffer.write(p(a, b).tobytes())"
    )
    command = [sys.executable, "-W", "ignore", "-c", text, tmp_path / "plan"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == planned(a, b).tobytes()


def test_a_plan_for_a_packed_operand_does_not_pickle(rng):
    from gemmhub._call.recipe import Recipe

    class Packed(gemmhub.PackedB):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="cannot be pickled: a packed operand is of one process; make it anew"):
        pickle.dumps(Recipe(draw(rng, (3, 4), F32), Packed(), None, {}))
