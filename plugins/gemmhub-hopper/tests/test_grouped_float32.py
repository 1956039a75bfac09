"""Grouped products of float32 within its bound, on the emulator: what planes do not hold is recomputed by groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper import grouped_proof
from gemmhub_hopper.lowering import groups
from gemmhub_hopper.variants.config import Shape
from grouped_products import GroupedProduct
from problems import problem
from test_float32 import MODEL, data
from test_grouped import FLOAT32, HOME, MIXED, Run

from gemmhub.accuracy import reference
from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.errors import KernelError
from gemmhub.problem import Groups

pytestmark = pytest.mark.emulator
ROWS = GroupedProduct(Shape(128, 32, 2), MIXED, 411, 40, 100, **FLOAT32)
COLUMNS = GroupedProduct(Shape(64, 32, 3, consumers=1), MIXED, 411, 40, 100, swapped=True, **FLOAT32)
SHORT = (1, 1, 3, 6, 10, 80, 81, 117)
"""Ends of groups of one, none, two, three and four elements of k, and of several stages with remainders."""
DEPTH = GroupedProduct(Shape(128, 48, 2), SHORT, 128, 72, 40, "k", a="col", **FLOAT32)
PRODUCTS = (ROWS, COLUMNS, DEPTH)


def drawn(product, kind, rng):
    """a and b of float32."""
    (m, n, k), of = product.sizes, product.problem.groups
    a = data(kind, m, 1, k, int(rng.integers(2**31)))[0]
    b = np.stack([data(kind, 1, n, k, int(rng.integers(2**31)))[1] for _ in range(max(1, *of.batch("b"), 0))])
    return a, b if of.batch("b") else b[0]


def ratio(product, a, b, home=HOME):
    """:func:`largest` of the product on the emulator."""
    return largest(product, a, b, Run(product, home, operands=(a, b))())


def largest(product, a, b, result):
    """The largest error of all groups as a fraction of the bound; infinite where rows behind them are no zeros, or a
    group of one element of k has more than one rounding.
    """
    worst = 0.0
    for group, (begin, end) in enumerate(product.spans):
        if product.divides == "k":
            found, left, right = result[group], a[:, begin:end], b[begin:end]
        else:
            found, left, right = result[begin:end], a[begin:end], b[group]
        if end > begin:
            worst = max(worst, np.max(reference(left, right, model=MODEL).ratio(found)))
        elif found.any():
            return np.inf
        if product.divides == "k" and end - begin == 1:
            with np.errstate(all="ignore"):
                once = np.array_equal(found, left * right, equal_nan=True)
            worst = worst if once else np.inf
    behind = result[product.spans[-1][1] :] if product.divides == "m" else result[:0]
    return np.inf if behind.any() else worst


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
@pytest.mark.parametrize("kind", ["normal", "positive", "wide", "worst"])
def test_errors(product, kind):
    assert ratio(product, *drawn(product, kind, np.random.default_rng())) <= 1


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_small_beside_large(product):
    """Lossy elements that meet large ones of the same group."""
    rng = np.random.default_rng()
    a, b = drawn(product, "normal", rng)
    tiny = np.ldexp(1 + rng.random(a.shape), rng.integers(-149, -105, a.shape)).astype(np.float32)
    assert ratio(product, tiny, (b * 2.0**100).astype(np.float32)) <= 1


def with_specials(product, rng):
    """a and b with infinities, NaN and overflow in some groups, and what they make of a result in the bound's model."""
    a, b = drawn(product, "normal", rng)
    (begin, end), (other, _) = product.spans[-1], product.spans[4 if product.divides == "m" else 5]
    along = a if product.divides == "m" else a.T
    along[begin, 3], along[end - 1, 7] = np.inf, np.nan
    along[other, 5:9] = 3e38
    if product.divides == "k":
        along[:1] = -np.inf  # a group of one element: nothing else is infinite by it
    return a, b


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_special_values_stay_in_their_groups(product):
    """In others, and in rows without one, all is finite."""
    a, b = with_specials(product, np.random.default_rng())
    result = Run(product, operands=(a, b))()
    assert ratio(product, a, b) <= 1
    assert np.isnan(result).any()
    assert np.isinf(result).any()
    assert np.isfinite(result[131:138] if product.divides == "m" else result[3]).all()


# fmt: off
MUTATIONS = {
    "recomputed from the first matrix": (ROWS, "repair.cuh", "at.group * p.b_step", "0 * p.b_step"),
    "recomputed from the first element of k": (DEPTH, "repair.cuh", "at.begin * step_k", "0 * step_k"),
    "recomputed by all elements of k": (DEPTH, "repair.cuh", "kDivided == DEPTH ? at.end - at.begin : p.k", "p.k"),
    "short groups are not recomputed": (DEPTH, "repair.cuh", "depth(p, at) <= kRecomputedDepth", "false"),
    "the only stage is not cleared": (
        DEPTH, "emulation.cuh", "if (work.k_blocks == 1) clear_behind_group", "if (false) clear_behind_group",
    ),
    "the last stage is not cleared": (DEPTH, "emulation.cuh", "if (block + 2 == work.k_blocks)", "if (false)"),
    # Of one operand it would not show: where the other one is clear, and this one NaN, sums are recomputed.
    "the first box of either is cleared": (
        DEPTH, "group_depth.cuh", "DEPTH_BOX_BYTES = BLOCK_K * MN_ROW_BYTES", "DEPTH_BOX_BYTES = 0",
    ),
}
# fmt: on


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation(name, monkeypatch, tmp_path):
    """Each is found by data of the worst rounding, or by special values."""
    product, file, *pair = MUTATIONS[name]
    home, rng = mutated(monkeypatch, tmp_path, file, tuple(pair)), np.random.default_rng(0)

    def survives(a, b):
        try:
            return ratio(product, a, b, home) <= 1
        except KernelError:
            return False

    assert not all(survives(*x) for x in (drawn(product, "worst", rng), with_specials(product, rng)))


def asked(divides="m", groups_count=8, m=512, n=264, k=136, precision=None, **changes):
    changes = {"a": "col", **changes} if divides == "k" else changes
    found = problem(m, n, k, "float32", groups=Groups(groups_count, divides), **changes)
    return replace(found, precision=precision or found.precision)


@pytest.mark.parametrize(
    ("changes", "order", "letters"),
    [
        ({}, "wgmma.k16.bf16x6", "rs"), ({"divides": "k"}, "wgmma.k16.bf16x6", "rs"),
        ({"precision": "tf32"}, "wgmma.k8", "r"), ({"precision": "tf32", "b": "col"}, "wgmma.k8", ""),
        ({"precision": "tf32", "divides": "k"}, "wgmma.k16.bf16x6", "rs"),
        ({"precision": "bf16x3"}, "wgmma.k16.bf16x6", "rs"),
    ],
)  # fmt: skip
def test_offer(changes, order, letters):
    """Nothing is copied, no workspace is taken, and the first candidate is prepared."""
    backend = HOME.backend()
    offer = backend.offer(asked(**changes))
    assert isinstance(offer, Offer), offer
    assert {x.order for x in offer.candidates} <= {order, None}
    assert {x.copies for x in offer.candidates} == {()}
    assert all(name.rstrip("t").endswith(letters) for name in offer.names)
    kernel = backend.prepare(asked(**changes), offer.names[0], offer.workspace)
    assert isinstance(kernel, Kernel)
    assert kernel.workspace_bytes == 0


def test_batch_has_one_order():
    offer = HOME.backend().offer(asked(reproducible="batch"))
    assert isinstance(offer, Offer), offer
    assert {x.order for x in offer.candidates} == {"wgmma.k16.bf16x6"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"a": "col"}, "a is contiguous along m"), ({"n": 263}, "would be copied first"),
        ({"n": 263, "precision": "tf32"}, "b would be copied first"), ({"divides": "n"}, "b is contiguous along n"),
        ({"divides": "k", "a": "row"}, "a is contiguous along k"),
    ],
)  # fmt: skip
def test_refusal(changes, reason):
    refusal = groups.lowerings(asked(**changes))
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"n": 263}, "b would be copied first (its leading dimension is 263 elements", "pass b, with address"),
        ({"k": 131}, "a would be copied first (its leading dimension is 131 elements", "pass a contiguous along k, "),
        ({"k": 131, "b": "col", "divides": "n"}, "a would be copied first (its leading", "pass a, with address"),
        ({"n": 263, "divides": "k"}, "b would be copied first (its leading", "pass b contiguous along n, "),
        ({"m": 411, "divides": "k"}, "a would be copied first (its leading", "pass a contiguous along m, "),
    ],
)
def test_refusal_names_the_operand(changes, reason, remedy):
    refusal = groups.lowerings(asked(**changes))
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith(reason)
    assert refusal.remedy.startswith(remedy)


def test_refusal_of_an_operand_contiguous_along_neither_side():
    found = asked()
    layout = replace(found.b.layout, row_stride=2 * found.n, col_stride=2)
    refusal = groups.lowerings(replace(found, b=replace(found.b, layout=layout)))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "b would be copied first (it is contiguous along neither side)"


def test_they_are_proven_besides():
    home = Home()
    assert isinstance(home.backend().offer(asked()), Offer)
    names = grouped_proof.GROUPS, grouped_proof.FLOAT32_GROUPS
    assert len(home.cuda.launches) == sum(len([*grouped_proof.trials(name, None)]) for name in names)


def test_a_wrong_kernel_is_refused(monkeypatch, tmp_path):
    _, file, *pair = MUTATIONS["the last stage is not cleared"]
    refusal = mutated(monkeypatch, tmp_path, file, tuple(pair)).backend().offer(asked())
    assert isinstance(refusal, Refusal)
    assert "the first grouped float32 product" in refusal.reason
