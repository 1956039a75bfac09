"""Grouped products of arrays on a device: by offsets there one kernel, by offsets on the host products of views."""

from __future__ import annotations

from typing import ClassVar

import address_backend
import numpy as np
import pytest
from address_backend import small
from grouped import operands

import gemmhub
from gemmhub import Candidate, Offer
from gemmhub._arrays.cupy.operands import CupyArrays
from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub.errors import (
    BackendError,
    DeviceError,
    DTypeError,
    InputError,
    KernelError,
    NoBackendError,
    OutputError,
    ShapeError,
)

DIVIDED = ("ragged m", "ragged k", "ragged n")
ENDS = np.array([2, 2, 5], np.int32)
SHAPES = {"ragged m": ((7, 3), (3, 3, 4)), "ragged k": ((4, 7), (7, 3)), "ragged n": ((3, 4, 3), (3, 7)),
          "dense": ((3, 4, 3), (3, 3, 5))}  # fmt: skip


@pytest.mark.parametrize("form", SHAPES)
def test_products_of_views(form, library, machine, backend, rng):
    a, b = (small(rng, shape, np.float32) for shape in SHAPES[form])
    ends = None if form == "dense" else ENDS
    expected = gemmhub.grouped_matmul(a, b, ends)
    x, y = library.array(a), library.array(b)
    got = gemmhub.grouped_matmul(x, y, ends)
    assert library.owns(got)
    np.testing.assert_array_equal(got.host, expected)
    out = library.array(np.full(expected.shape, 9, np.float32))
    assert gemmhub.grouped_matmul(x, y, ends, out=out) is out
    np.testing.assert_array_equal(out.host, expected)
    assert not backend.violations
    assert not machine.done("synchronize")


@pytest.fixture
def grouped(machine):
    made = address_backend.add(address_backend.Grouped("grouped", seconds=1e-7))
    yield made
    assert not made.violations


def drawn(rng, form, dtype=np.float32, sizes=(2, 0, 3, 1), beyond=2):
    """Operands of a form in whole numbers, NaN beyond the last end, and the ends."""
    a, b, ends = operands(rng, form, np.float32, sizes, beyond=beyond)
    a, b = (small(rng, x.shape, np.float64) for x in (a, b))
    last = ends[-1]
    for x, axis in {"ragged m": [(a, 0)], "ragged k": [(a, 1), (b, 0)], "ragged n": [(b, 1)]}[form]:
        np.moveaxis(x, axis, 0)[last:] = np.nan
    return a.astype(dtype), b.astype(dtype), ends


def on_host(form, a, b, ends, **options):
    with np.errstate(invalid="ignore"):
        return gemmhub.grouped_matmul(a, b, ends, backend="numpy", **options)


@pytest.mark.parametrize("form", DIVIDED)
def test_one_kernel_takes_offsets_on_the_device(form, library, machine, grouped, rng):
    for sizes in ((2, 0, 3, 1), (0, 0, 0), (7,), (1, 16, 9)):
        a, b, ends = drawn(rng, form, sizes=sizes)
        x, y, offsets = (library.array(z) for z in (a, b, ends))
        grouped.calls.clear()
        got = gemmhub.grouped_matmul(x, y, offsets)
        assert library.owns(got)
        np.testing.assert_array_equal(got.host, on_host(form, a, b, ends))
        out = library.array(np.full(got.host.shape, np.nan, np.float32))
        assert gemmhub.grouped_matmul(x, y, offsets, out=out) is out
        np.testing.assert_array_equal(out.host, got.host)
        assert len(grouped.calls) == 2
        assert gemmhub.spot_check_grouped(x, y, offsets, got)
    assert not machine.done("synchronize")
    assert not machine.done("copy")


@pytest.mark.parametrize("form", DIVIDED)
def test_no_number_is_read_from_the_device(form, library, machine, grouped, rng, monkeypatch):
    x, y, offsets = map(library.array, drawn(rng, form))

    def refused(*_):
        raise AssertionError("a number is read")

    for kind in (CupyArrays, TorchArrays):
        monkeypatch.setattr(kind, "to_host", refused)
    for name in ("cpu", "get", "item", "tolist"):
        monkeypatch.setattr(type(offsets), name, refused, raising=False)
    for _ in range(2):
        gemmhub.grouped_matmul(x, y, offsets)
    assert gemmhub.explain_grouped(x, y, offsets).chosen == ("grouped",)


@pytest.mark.parametrize("form", DIVIDED)
def test_ends_may_change_from_call_to_call(form, library, machine, grouped, rng):
    a, b, ends = drawn(rng, form, beyond=0)
    x, y, offsets = (library.array(z) for z in (a, b, ends))
    gemmhub.grouped_matmul(x, y, offsets)
    questions = grouped.questions
    for new in ([6, 6, 6, 6], [0, 1, 1, 2], [5, 3, 9, -1]):
        offsets.host[...] = new
        clamped = np.minimum(np.maximum.accumulate(new), 6).astype(np.int32)
        np.testing.assert_array_equal(
            gemmhub.grouped_matmul(x, y, offsets).host, on_host(form, a, b, clamped)
        )  # fmt: skip
    assert grouped.questions == questions  # a warm call decides nothing
    with pytest.raises(DTypeError, match="offsets: dtype int64"):
        gemmhub.grouped_matmul(x, y, library.array(ends.astype(np.int64)))


@pytest.mark.parametrize("form", DIVIDED)
def test_options_and_operands(form, library, machine, grouped, rng):
    a, b, ends = drawn(rng, form, sizes=(2, 0, 4))
    n = b.shape[-1]
    scales = {
        "ragged m": [((8, 1), (3, 1, n)), ((3, 1, 1), (1,)), ((8,), (1, n))],
        "ragged k": [((5, 1), (1, n)), ((3, 5, 1), (3, 1, n)), ((3, 1, 1), (n,))],
        "ragged n": [((3, 5, 1), (1, n)), ((1,), (3, 1, 1))],
    }[form]
    biases = [(n,)] + [(3, n)] * (form != "ragged n")
    for left, right in scales:
        for shape in biases:
            given = {"scale_a": small(rng, left), "scale_b": small(rng, right), "bias": small(rng, shape)}
            for more in ({"activation": "relu", "alpha": -2.0}, {"reproducible": "run"}):
                placed = {name: library.array(z) for name, z in given.items()}
                got = gemmhub.grouped_matmul(*map(library.array, (a, b, ends)), **placed, **more)
                np.testing.assert_array_equal(got.host, on_host(form, a, b, ends, **given, **more))
    own = {"ragged m": ("scale_a", (3, 8, 1)), "ragged k": ("scale_a", (3, 5, 2)), "ragged n": ("scale_b", (3, 1, n))}
    for name, shape in [("bias", (2, n)), ("scale_a", (3, 3, 3)), ("scale_b", (n, 5)), own[form]]:
        with pytest.raises(ShapeError, match=f"{name}: shape"):
            gemmhub.grouped_matmul(*map(library.array, (a, b, ends)), **{name: library.array(small(rng, shape))})


@pytest.mark.parametrize("form", DIVIDED)
def test_an_addend(form, library, machine, grouped, rng):
    """It may be the result; one that is multiplied by 0 is not read."""
    a, b, ends = drawn(rng, form, sizes=(2, 0, 4))
    shape = on_host(form, a, b, ends).shape
    c = small(rng, shape)
    x, y, offsets = map(library.array, (a, b, ends))
    for options in ({"beta": 1}, {"beta": -2.0, "alpha": 0.5, "activation": "relu"}):
        expected = on_host(form, a, b, ends, c=c, **options)
        got = gemmhub.grouped_matmul(x, y, offsets, c=library.array(c), **options)
        np.testing.assert_array_equal(got.host, expected)
        out = library.array(c.copy())
        assert gemmhub.grouped_matmul(x, y, offsets, out=out, c=out, **options) is out
        np.testing.assert_array_equal(out.host, expected)
    unread = library.array(np.full(shape, np.nan, np.float32))
    got = gemmhub.grouped_matmul(x, y, offsets, c=unread, beta=0)
    np.testing.assert_array_equal(got.host, on_host(form, a, b, ends))
    with pytest.raises(ShapeError, match="c: shape"):
        gemmhub.grouped_matmul(x, y, offsets, c=library.array(small(rng, (2, 2))), beta=1)
    with pytest.raises(DTypeError, match="c: dtype float64"):
        gemmhub.grouped_matmul(x, y, offsets, c=library.array(c.astype(np.float64)), beta=1)


def test_gated_activations(library, machine, grouped, rng):
    for form in ("ragged m", "ragged k"):
        a, b, ends = drawn(rng, form)
        got = gemmhub.grouped_matmul(*map(library.array, (a, b, ends)), activation="swiglu")
        np.testing.assert_allclose(got.host, on_host(form, a, b, ends, activation="swiglu"), rtol=1e-6)
    a, b, ends = drawn(rng, "ragged n")
    with pytest.raises(InputError, match="activation: swiglu, which pairs columns"):
        gemmhub.grouped_matmul(*map(library.array, (a, b, ends)), activation="swiglu")


@pytest.mark.parametrize("form", DIVIDED)
def test_strides_and_alignment_reach_the_kernel(form, library, machine, grouped, rng):
    a, b, ends = drawn(rng, form)
    x = library.array(a.swapaxes(-2, -1).copy().swapaxes(-2, -1), offset=4)
    y = library.array(b.swapaxes(-2, -1).copy().swapaxes(-2, -1), offset=12)
    got = gemmhub.grouped_matmul(x, y, library.array(ends, offset=4))
    np.testing.assert_array_equal(got.host, on_host(form, a, b, ends))
    problem = grouped.problems[-1]
    assert (problem.a.alignment, problem.b.alignment) == (4, 4)
    assert "col" in (problem.a.layout.order, problem.b.layout.order)


@pytest.mark.parametrize("form", DIVIDED)
def test_products_without_elements_or_terms(form, library, machine, grouped, rng):
    a, b, ends = drawn(rng, form)
    for cut_a, cut_b in (
        ((..., slice(0, 0)), (..., slice(0, 0), slice(None))), ((..., slice(0, 0), slice(None)), ...),
        (..., (..., slice(0, 0))),
    ):  # fmt: skip
        x, y = a[cut_a], b[cut_b]
        divided = {"ragged m": x.shape[0], "ragged k": x.shape[-1], "ragged n": y.shape[-1]}[form]
        own = np.minimum(ends, divided).astype(np.int32)
        grouped.calls.clear()
        got = gemmhub.grouped_matmul(*map(library.array, (x, y, own)))
        expected = on_host(form, x, y, own)
        assert got.host.shape == expected.shape
        zeros = form == "ragged k" and not x.shape[-1]  # nothing is added to them, so that no kernel runs
        assert len(grouped.calls) == (expected.size > 0 and not zeros)
        np.testing.assert_array_equal(got.host, expected)
    none = (a[:0] if a.ndim == 3 else a), (b[:0] if b.ndim == 3 else b), ends[:0]
    got = gemmhub.grouped_matmul(*map(library.array, none))
    assert got.host.size == 0 or not got.host.any()
    assert got.host.shape == on_host(form, *none).shape


def test_an_addend_of_sums_without_terms(library, machine, grouped, rng):
    """The gradients of weights are accumulated in a step without tokens, too: no kernel runs."""
    a, b, ends = library.array(np.empty((4, 0), np.float32)), library.array(np.empty((0, 3), np.float32)), np.zeros(2)
    ends, c = library.array(ends.astype(np.int32)), small(rng, (2, 4, 3))
    for beta in (1, -0.5, 1):
        other = library.array(c)
        got = gemmhub.grouped_matmul(a, b, ends, c=other, beta=beta)
        np.testing.assert_array_equal(got.host, beta * c)
        np.testing.assert_array_equal(other.host, c)
        out = library.array(np.full(c.shape, np.nan, np.float32))
        assert gemmhub.grouped_matmul(a, b, ends, c=other, beta=beta, out=out) is out
        np.testing.assert_array_equal(out.host, beta * c)
        writes = len(machine.log)
        assert gemmhub.grouped_matmul(a, b, ends, c=other, beta=beta, out=other) is other
        np.testing.assert_array_equal(other.host, beta * c)
        assert (len(machine.log) == writes) == (beta == 1)
    assert not grouped.calls
    gemmhub.grouped_matmul(a, b, ends, c=library.array(c), beta=1, activation="relu")
    assert grouped.calls


@pytest.mark.parametrize("form", DIVIDED)
def test_explanations_of_offsets_on_the_device(form, library, machine, grouped, backend, rng):
    a, b, ends = drawn(rng, form)
    x, y, offsets = (library.array(z) for z in (a, b, ends))
    decision = gemmhub.explain_grouped(x, y, offsets)
    (m, k), n = a.shape[-2:], b.shape[-1]
    assert (decision.form, decision.groups, decision.sizes) == (form, 4, ((m, n, k),))
    assert (decision.chosen, decision.empty, decision.imbalance) == (("grouped",), None, None)
    (one,) = decision.decisions
    assert one["addresses"].status == "refused"
    assert one["addresses"].reason.startswith("it has no grouped products whose offsets divide")
    for text in ("4 groups", "one product by offsets on the device", "grouped", "it has no grouped products"):
        assert text in str(decision)
    assert decision.to_dict()["on_device"] == 4
    assert one.problem.key.endswith(f"groups=4:{form[-1]}")
    assert not grouped.calls


def test_no_backend_for_offsets_on_the_device(library, machine, backend, rng):
    a, b, ends = drawn(rng, "ragged m")
    x, y, offsets = (library.array(z) for z in (a, b, ends))
    with pytest.raises(NoBackendError, match=r"by offsets on cuda:0, and .*pass offsets on the host") as caught:
        gemmhub.grouped_matmul(x, y, offsets)
    assert caught.value.decision["addresses"].remedy.startswith("pass offsets on the host")
    assert "it has no grouped products" in str(caught.value)
    assert gemmhub.explain_grouped(x, y, offsets).chosen == (None,)
    assert not machine.done("synchronize")
    with pytest.raises(NoBackendError):
        gemmhub.grouped_matmul(x, y, offsets, backend="addresses")


def test_a_backend_may_be_forced(library, machine, grouped, rng):
    other = address_backend.add(address_backend.Grouped("other", seconds=1.0))
    x, y, offsets = map(library.array, drawn(rng, "ragged m"))
    gemmhub.grouped_matmul(x, y, offsets, backend="other")
    with gemmhub.use(backend="other"):
        gemmhub.grouped_matmul(x, y, offsets)
    assert (len(other.calls), len(grouped.calls)) == (2, 0)
    gemmhub.grouped_matmul(x, y, offsets)
    assert (len(other.calls), len(grouped.calls)) == (2, 1)


class Ordered(address_backend.Grouped):
    """It states its order, and promises the bits of rows."""

    takes: ClassVar = {**address_backend.Grouped.takes, "reproducible": frozenset({"run", "batch"})}

    def offer(self, problem):
        return Offer((Candidate("first", self.seconds, order=f"fma.{self.name}"),))


class Single(Ordered):
    """It takes no groups."""

    takes: ClassVar = {name: forms for name, forms in Ordered.takes.items() if name != "groups"}


@pytest.mark.parametrize("first", ["single", "grouped"])
def test_bits_of_groups_are_those_of_single_products(first, library, machine, rng):
    """The order is that of the backend that runs single products, whichever call comes first."""
    address_backend.add(Single("single", seconds=1e-7))
    groups = address_backend.add(Ordered("ordered", seconds=1e-6))
    x, y, offsets = map(library.array, drawn(rng, "ragged m"))
    matrix = library.array(small(rng, (7, 6)))

    def single():
        assert gemmhub.explain(x, matrix, reproducible="batch").chosen == "single"

    def grouped():
        with pytest.raises(NoBackendError, match="it has no grouped products"):
            gemmhub.grouped_matmul(x, y, offsets, reproducible="batch")

    for call in (single, grouped) if first == "single" else (grouped, single):
        call()
    for options in ({"backend": "ordered", "reproducible": "batch"}, {"reproducible": "fma.ordered"}):
        gemmhub.grouped_matmul(x, y, offsets, **options)
    assert len(groups.calls) == 2


def test_wrong_offsets_on_the_device(library, machine, grouped, rng):
    a, b, ends = drawn(rng, "ragged m")
    x, y = library.array(a), library.array(b)
    wrong = {
        "offsets: dtype int64 on cuda:0; allowed: int32 on devices": ends.astype(np.int64),
        r"offsets: 3 ends for 4 groups": ends[:3],
        r"offsets: 5 ends for 4 groups; .*drop the leading zero": np.concatenate([[0], ends]).astype(np.int32),
        r"offsets: shape \(4, 1\)": ends[:, np.newaxis],
        r"offsets: strides \(8,\) in bytes; allowed: elements without gaps": np.repeat(ends, 2)[::2],
    }
    for message, offsets in wrong.items():
        with pytest.raises(InputError, match=message):
            gemmhub.grouped_matmul(x, y, library.array(offsets))
    with pytest.raises(DeviceError, match=r"offsets: .* on cuda:1 with operands of .* on cuda:0"):
        gemmhub.grouped_matmul(x, y, library.array(ends, device=1))
    with pytest.raises(DeviceError, match=r"offsets: .* with operands of numpy on cpu"):
        gemmhub.grouped_matmul(a, b, library.array(ends))
    with pytest.raises(InputError, match="offsets: given with shapes"):
        gemmhub.grouped_matmul(
            library.array(small(rng, (4, 2, 3))), library.array(small(rng, (4, 3, 2))), library.array(ends)
        )
    assert not machine.done("synchronize")
    assert not grouped.calls


def test_a_result_has_memory_of_its_own(library, machine, grouped, rng):
    *_, ends = drawn(rng, "ragged m", sizes=(4, 4), beyond=0)
    y = library.array(small(rng, (2, 7, 7)))
    x, offsets = library.array(small(rng, (8, 7))), library.array(ends)
    with pytest.raises(OutputError, match="out: it shares memory with a"):
        gemmhub.grouped_matmul(x, y, offsets, out=x)
    out = library.array(np.zeros((8, 7), np.float32))
    version = getattr(out, "_version", 0)
    gemmhub.grouped_matmul(x, y, offsets, out=out)
    assert library.name != "torch" or out._version > version
    with pytest.raises(OutputError, match="out: it shares memory with a"):  # a warm call, too
        gemmhub.grouped_matmul(x, y, offsets, out=x)


def test_a_kernel_that_raises_is_named(library, machine, grouped, rng):
    x, y, offsets = map(library.array, drawn(rng, "ragged m"))
    grouped.broken = RuntimeError("no such launch")
    with pytest.raises(KernelError, match=r"backend 'grouped': .*no such launch"):
        gemmhub.grouped_matmul(x, y, offsets)


def test_offsets_on_the_device_keep_to_the_stream(library, machine, grouped, rng):
    x, y, offsets = map(library.array, drawn(rng, "ragged m"))
    for stream in (library.stream(77), 77):
        gemmhub.grouped_matmul(x, y, offsets, stream=stream)
    with library.current(5):
        gemmhub.grouped_matmul(x, y, offsets)
    assert grouped.streams == [77, 77, 5]


def test_a_first_call_is_refused_while_a_graph_is_captured(library, machine, grouped, rng):
    x, y, offsets = map(library.array, drawn(rng, "ragged m"))
    machine.capturing.add(9)
    with library.current(9):
        with pytest.raises(BackendError, match="first of its kind"):
            gemmhub.grouped_matmul(x, y, offsets)
        machine.capturing.clear()
        gemmhub.grouped_matmul(x, y, offsets)
        machine.capturing.add(9)
        gemmhub.grouped_matmul(x, y, offsets)
    assert len(grouped.calls) == 2
    assert not machine.done("synchronize")


@pytest.mark.parametrize("form", DIVIDED)
@pytest.mark.parametrize("fault", ["an end is one too large", "no zeros beyond the end", "two groups exchanged"])
def test_spot_checks_find_faults(form, fault, library, machine, grouped, rng):
    if form == "ragged k" and fault != "two groups exchanged":
        fault = "sums beyond the end"
    grouped.fault = fault
    a, b, ends = drawn(rng, form, sizes=(3, 4, 5), beyond=3)
    a, b = (np.where(np.isnan(x), np.nan, x + 1) for x in (a, b))  # no zeros
    b += np.arange(b.size, dtype=np.float32).reshape(b.shape) % 7
    x, y, offsets = (library.array(z.astype(z.dtype)) for z in (a.astype(np.float32), b.astype(np.float32), ends))
    out = library.array(np.full(on_host(form, a.astype(np.float32), b.astype(np.float32), ends).shape, 9, np.float32))
    gemmhub.grouped_matmul(x, y, offsets, out=out)
    assert not gemmhub.spot_check_grouped(x, y, offsets, out)


def test_offsets_on_the_host_are_products_of_views(library, machine, grouped, rng):
    """Also where a backend takes offsets on the device: it is chosen by where they are."""
    a, b, ends = drawn(rng, "ragged m")
    got = gemmhub.grouped_matmul(library.array(a), library.array(b), ends)
    np.testing.assert_array_equal(got.host, on_host("ragged m", a, b, ends))
    assert len(grouped.calls) == 3
    assert grouped.problems[-1].groups is None


def test_all_work_is_on_the_stream_of_the_call(library, machine, backend, rng):
    a, b = (library.array(small(rng, shape, np.float32)) for shape in SHAPES["ragged m"])
    expected = gemmhub.grouped_matmul(a.host, b.host, ENDS)
    for stream in (library.stream(77), 77):
        backend.streams.clear()
        got = gemmhub.grouped_matmul(a, b, ENDS, stream=stream)
        assert backend.streams == [77, 77]
        np.testing.assert_array_equal(got.host, expected)
    assert {entry[1] for entry in machine.done("fill")} == {77}
    assert not machine.done("synchronize")


def test_tuning_of_a_function_does_not_count_offsets_on_the_device(library, machine, grouped, backend, rng):
    """They are computed, beside single products, which it tunes."""
    a, b, ends = map(library.array, drawn(rng, "ragged m"))
    x, y = (library.array(small(rng, (4, 4))) for _ in range(2))
    results = []

    def function():
        results.append(gemmhub.grouped_matmul(a, b, ends))
        return gemmhub.matmul(x, y)

    tuned = gemmhub.tune(function)
    assert len(tuned.products) == 1
    np.testing.assert_array_equal(results[0].host, on_host("ragged m", a.host, b.host, ends.host))
