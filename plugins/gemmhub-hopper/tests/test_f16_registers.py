"""Float32 by float16 planes of which consumers make those of a: sums, errors, rejected rows, stops, and mistakes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import test_f16_planes
from fakes import mutated
from gemmhub_hopper.candidates.candidate import named
from gemmhub_hopper.lowering import k_passes, lower
from gemmhub_hopper.variants.config import BY_ROWS, Shape, Variant
from gemmhub_hopper.variants.shapes import F16_REGISTER_SHAPES
from gemmhub_nvidia.scratch import COUNTERS
from problems import operand, problem
from products import BY_ROWS_PRODUCTS, Product
from runs import Run
from test_f16_planes import FAMILIES, WatchedHome, bytes_at, clear, family, few, packed
from test_float32 import data, errors, ratio, sgemm
from test_packed import place

from gemmhub.errors import KernelError

SHAPE = Shape(128, 48, 9)
HOME = WatchedHome()


class Watch(test_f16_planes.Watch):
    """The same where float16 planes may have written a result that is computed again."""

    @property
    def scheme(self):
        assert self.cuda.complaints == []
        again = bool((self.states[-1] != self.out).any())  # the last kernel is one by bfloat16 planes
        return "split" if again else "f16x3"


def multiply(a, b, home=HOME, **given):
    """(result, scheme). The workspace is left clear."""
    (m, k), n = a.shape, b.shape[1]
    run = Run(Product(SHAPE, m, n, k, dtype="f16x3", registers=True, **given), home)
    run.give(a, b)
    with Watch(home, run.out) as watch:
        result = run()
    assert clear(home)
    return result, watch.scheme


def scheme_of(a, b):
    """The scheme, also where both have the same bits: what was stored is overwritten before the last kernel runs."""
    (m, k), n = a.shape, b.shape[1]
    run = Run(Product(SHAPE, m, n, k, dtype="f16x3", registers=True), HOME)
    run.give(a, b)
    calls = []

    def before_a_launch():
        calls.append(run.out.copy())
        if len(calls) == 4:
            run.out[:] = 0xFF

    HOME.cuda.interrupt = before_a_launch
    try:
        again = not np.isnan(run()).all()
    finally:
        HOME.cuda.interrupt = None
    assert clear(HOME)
    return "split" if again else "f16x3"


@pytest.mark.parametrize("product", BY_ROWS_PRODUCTS, ids=str)
def test_exact_products(product):
    """Results are exact whether operands are taken, or a or b is rejected."""
    run = Run(product, HOME)
    with Watch(HOME, run.out) as watch:
        run.check()
    assert watch.scheme == "f16x3"
    assert clear(HOME)
    a, b, *others = run.values
    tiny = np.float32(2.0**-60)
    for left, right in ((a, b * np.where(np.arange(product.n) == 3, tiny, 1)), (a.copy(), b)):
        if left is not a:
            left[..., -1, product.k // 2] = tiny
        else:
            right[..., 0, 3] = 1
            right = right.astype(np.float32)
        run.values = left, right, *others
        run.exact = product.exact(*run.values)
        run.give(left, right)
        run.check()
        assert clear(HOME)


@pytest.mark.parametrize("kind", FAMILIES)
def test_errors_beside_those_of_an_sgemm(kind):
    """As of planes that the pre-pass makes (test_f16_planes.py)."""
    a, b, scheme = family(kind, 72, 44, 264)
    result, found = multiply(a, b)
    assert found == scheme
    assert ratio(result, a, b) <= 0.6
    if not kind.startswith(("near", "zeros", "sentinels")):
        assert errors(result, a, b) <= 1.5 * errors(sgemm(a, b), a, b) + 2.0**-24


@pytest.mark.parametrize("k", [64, 68, 128, 520])
def test_the_worst_elements(k):
    a, b, scheme = family("worst", 64, 40, k)
    result, found = multiply(a, b)
    assert found == scheme
    assert 7 / (k + 2) < ratio(result, a, b) <= 1


def test_infinities_and_nans():
    a, b = data("normal", 72, 44, 264)
    for row, column, value in ((3, 5, np.nan), (7, 9, np.inf), (70, 263, -np.inf)):
        x = a.copy()
        x[row, column] = value
        result, scheme = multiply(x, b)
        assert scheme == "split"
        assert ratio(result, x, b) <= 1
        assert not np.isfinite(result[row]).any()
        assert np.isfinite(np.delete(result, row, 0)).all()


@pytest.mark.parametrize("k", [64, 600, 4096])
def test_the_edge_of_the_range_test(k):
    """The least magnitude, beside one of the largest of a span, with which a is taken; its neighbour is not."""
    residual, share = max(2.0**-23, k * 2.0**-29), max(2.0**-11, k**0.5 * 2.0**-13.5)
    least = np.float32(min(2.0**-14, max(2.0**-37 / residual, 2.0**-25 / share)))
    edge = least * np.float32(2.0**-14)
    for value, scheme in ((edge, "f16x3"), (np.nextafter(edge, np.float32(0)), "split"), (np.float32(0), "f16x3")):
        a, b = few(64, 40, k, [(40, 1, 1.0), (40, 2, float(value))], [(1, 1, 1.0), (2, 1, 1.0)])
        assert ratio(multiply(a, b)[0], a, b) <= 1
        small = value != 0 and 2.0**-28 / float(value) > max(1, k // 64)  # then tensor cores have no room for it
        assert scheme_of(a, b) == ("split" if small else scheme)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # What the scale of a group would flush to 0, or round.
        ([(1, 0, 2.0**50), (1, 1, 2.0**-115)], [(1, 1, 2.0**50)]),
        ([(1, 0, 2.0**50), (1, 1, 2.0**-93 * (1 + 2.0**-20))], [(1, 1, 2.0**50)]),
        ([(1, 0, 2.0**20), (1, 1, 2.0**-145)], [(1, 1, 2.0**20)]),
        # What the scale of an operand of bfloat16 planes rounds.
        ([(0, 0, 2.0**50), (1, 1, 2.0**-123 * (1 + 2.0**-17))], [(1, 1, 2.0**60)]),
        ([(0, 0, 2.0**127), *((1, k, 2.0**-70) for k in range(64))], [(k, 1, 2.0**-47) for k in range(64)]),
    ],
)
def test_elements_that_scaling_would_lose(a, b):
    x, y = few(64, 40, 64, a, b)
    assert ratio(multiply(x, y)[0], x, y) <= 1
    assert scheme_of(x, y) == "split"


def test_small_elements_of_both_operands_count_together():
    for small, scheme in ((0, "f16x3"), (1, "f16x3"), (2, "split")):  # powers of two below it
        a, b = few(64, 40, 256, [(1, 0, 1.0), (1, 1, 2.0 ** (-28 - small))], [(0, 1, 1.0), (1, 1, 1.0)])
        assert scheme_of(a, b) == scheme
    a, b = few(64, 40, 256, [(1, 0, 1.0), (1, 1, 2.0**-29)], [(0, 1, 1.0), (1, 1, 2.0**-30)])  # 2^3 > k / 64
    assert scheme_of(a, b) == "split"


def test_bits_do_not_depend_on_the_products_before():
    home = WatchedHome()
    asked = [family(kind, 200, 44, 264) for kind in ("normal", "undone", "near overflow", "small")]
    first = [multiply(a, b, WatchedHome())[0].tobytes() for a, b, _ in asked]
    for turn in ((0, 1, 2, 3), (3, 3, 1, 0)):
        for i in turn:
            a, b, scheme = asked[i]
            result, found = multiply(a, b, home)
            assert result.tobytes() == first[i]
            assert found == scheme


def test_a_workspace_without_room():
    asked = problem(200, 44, 1000, "float32")
    choice = named(lower.lowerings(asked), "128x64x8hr")
    assert "bytes of workspace" in choice.k_passes(COUNTERS + 2**14)
    assert choice.k_passes(2**30).count == 1


def test_packed():
    """The planes of a packed b serve."""
    for kind in ("normal", "undone"):
        a, b, scheme = family(kind, 72, 44, 264)
        made = packed(b, HOME)
        asked = replace(problem(72, 44, 264, "float32"), packed_by="hopper", b=operand("float32", 264, 44))
        launch = HOME.backend().launch(0, named(lower.lowerings(asked), "128x64x8hr"), 2**30)
        left, out = place(HOME, a), place(HOME, np.full((72, 44), np.nan, np.float32))
        kept = bytes_at(made.marks, made.nbytes).copy()
        with Watch(HOME, out) as watch:
            launch.run(left.ctypes.data, made, out.ctypes.data, 1, 0, 0)
        assert (bytes_at(made.marks, made.nbytes) == kept).all()
        assert watch.scheme == scheme
        assert ratio(out[: 4 * 72 * 44].view(np.float32).reshape(72, 44), a, b) <= 0.6


def test_what_there_is_no_kernel_for():
    shape, form = (
        F16_REGISTER_SHAPES[-1],
        named(lower.lowerings(problem(128, 64, 64, "float32")), "128x64x8hr").lowering.form,
    )
    assert Variant(shape, form).refusal is None
    assert "accumulators" in Variant(shape, form, split_k=True).refusal
    for wrong in (Variant(shape, replace(form, addend="float32")), Variant(Shape(256, 48, 4), form)):
        assert "excludes c" in wrong.refusal
    assert not any(x.form.scheme == BY_ROWS for x in lower.lowerings(problem(31, 640, 64, "float32")))
    with_c = problem(128, 64, 64, "float32")
    assert not any(x.form.scheme == BY_ROWS for x in lower.lowerings(with_c.having(c=with_c.out)))


def test_batches_of_small_matrices_are_not_split_by_rows():
    backend = HOME.backend()
    small, large = (
        problem(*sizes, "float32", None, (batch,)) for *sizes, batch in ((208, 104, 104, 616), (8192, 128, 6144, 2))
    )
    assert not any("hr" in name for name in backend.offer(small).names)
    assert any("hr" in name for name in backend.offer(large).names)


def test_bits_of_rejected_products_do_not_depend_on_time():
    """When CTAs stop differs from run to run: what they have read by then must not matter."""
    a, b, _ = family("tails", 136, 44, 2048)
    a[:, 700:] *= np.float32(2.0**70)
    found = set()
    for _ in range(5):
        result, scheme = multiply(a, b)
        assert scheme == "split"
        assert ratio(result, a, b) <= 0.6
        found.add(result.tobytes())
    assert len(found) == 1


def largest_published(home):
    """The exponent by which a rejected a is scaled, where what follows its first span is larger."""
    a, b, _ = family("tails", 136, 44, 2048)
    a[:, 64:] *= np.float32(2.0**50)
    run, seen = Run(Product(SHAPE, 136, 44, 2048, dtype="f16x3", registers=True), home), []
    run.give(a, b)

    def before_a_launch():
        place = next(at for at, nbytes, _ in home.cuda.allocated if nbytes > COUNTERS)
        seen.append(int(bytes_at(place + k_passes.A_MARKS + 4 * (k_passes.MARKS - 1), 4).view(np.uint32)[0]))

    home.cuda.interrupt = before_a_launch
    try:
        run()
    finally:
        home.cuda.interrupt = None
    return seen[2], int(np.frexp(np.abs(a[:, :64]).max())[1]) - 1 + 127


def test_the_scale_of_rejected_rows_is_that_of_the_first_span(monkeypatch, tmp_path):
    found, first = largest_published(WatchedHome())
    assert found == first
    every = "if (kEarlyExit && fresh && splitter.scale_groups == 1) splitter", "if (kEarlyExit) splitter"
    found, first = largest_published(mutated(monkeypatch, tmp_path, "f16_registers.cuh", every))
    assert found > first


def stopped(home):
    """Whether rejected rows stop CTAs before they store anything."""
    a, b, _ = family("tails", 136, 44, 2048)
    run = Run(Product(SHAPE, 136, 44, 2048, dtype="f16x3", registers=True), home)
    run.give(a, b)
    with Watch(home, run.out) as watch:
        result = run()
    assert watch.scheme == "split"
    assert ratio(result, a, b) <= 0.6
    return bool((watch.states[2] == 0xFF).all())


def test_rejected_rows_stop_the_product(monkeypatch, tmp_path):
    assert stopped(WatchedHome())
    assert not stopped(
        mutated(monkeypatch, tmp_path, "f16_registers.cuh", ("if (!many_rejected(p, count)) {", "if (true) {"))
    )


# --- mistakes ---------------------------------------------------------------------------------------------------


def wrong(kind, home, k=264):
    a, b, scheme = family(kind, 72, 44, k)
    result, found = multiply(a, b, home)
    assert found == scheme
    return not errors(result, a, b) <= 4 * errors(sgemm(a, b), a, b)


# fmt: off
MUTATIONS = {
    "a row's scale is forgotten": ("own scales", "f16_emulation.cuh", (
        ("= row[i][r / 2 % 2] * column[r / 4][r % 2];", "= column[r / 4][r % 2];"),)),
    "no cross products": ("positive", "f16_emulation.cuh", (
        ("fmaf(fmaf(cross[i][at], CROSS_SCALE, leading[i][at]), scale,", "fmaf(leading[i][at], scale,"),)),
    "one of two cross products": ("positive", "f16_registers.cuh", (
        ("            wgmma(cross[0], planes[step][1], b, 1);\n", ""),)),
    "the second half of a span": ("normal", "f16_registers.cuh", (
        ("half == 0 || two", "half == 0"),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_wrong_sums_are_noticed(mutation, monkeypatch, tmp_path):
    kind, file, pairs = MUTATIONS[mutation]
    assert wrong(kind, mutated(monkeypatch, tmp_path, file, *pairs))


# fmt: off
UNSEEN = {
    "what is small": (few(64, 40, 64, [(1, 0, 2.0**20), (1, 1, 2.0**-60)], [(1, 1, 2.0**20)]), (
        ("smallest >= 2 * __float_as_uint(p.min_scaled) - 1", "true"),
        ("error.small()", "0u"))),
    "what is large": (few(64, 40, 64, [(1, 0, np.inf)], [(0, 1, 1.0)]), (
        ("largest < power_of_two(LARGEST_EXPONENT + 1) && ", ""),)),
}
# fmt: on


@pytest.mark.parametrize("what", UNSEEN, ids=lambda name: name.replace(" ", "-"))
def test_rows_that_are_not_rejected_are_noticed(what, monkeypatch, tmp_path):
    (a, b), pairs = UNSEEN[what]
    assert ratio(multiply(a, b)[0], a, b) <= 1
    result, scheme = multiply(a, b, mutated(monkeypatch, tmp_path, "f16_registers.cuh", *pairs))
    assert scheme == "f16x3"
    assert not ratio(result, a, b) <= 1


def test_a_turn_that_never_comes_is_noticed(monkeypatch, tmp_path):
    pair = "barrier_init(smem + SMEM_TURN_OFFSET + 8 * w, 4)", "barrier_init(smem + SMEM_TURN_OFFSET + 8 * w, 5)"
    home = mutated(monkeypatch, tmp_path, "f16_registers.cuh", pair)
    a, b, _ = family("normal", 136, 44, 264)
    with pytest.raises(KernelError):
        multiply(a, b, home)
