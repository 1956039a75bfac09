"""Split-K whose splits reduce a slice of the tile each, on a fake device with SMs for all splits at once."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates.candidate import _MIN_SPLITS, _MIN_WORK, MAX_SLICES
from gemmhub_hopper.variants import sources
from gemmhub_nvidia.clusters import estimated
from products import SLICES, SMALL, Product, Shape, stored
from runs import Run
from test_registers import SPLIT, R, check_marks

from gemmhub.errors import KernelError

pytestmark = pytest.mark.emulator

SMS = {"attributes": {16: 16}}
MORE_SMS = {"attributes": {16: 40}}
MANY = Product(Shape(64, 32, 3, consumers=1), 60, 32, 64 * 39 + 8, splits=40, bias="n", alpha=0.5, beta=2)
"""More splits than slices."""

# fmt: off
NOT_IN_SLICES = [
    Product(SMALL, 64, 64, 456, splits=5),
    Product(SMALL, 200, 64, 456, splits=6),  # not all at once
    Product(Shape(64, 16, 4, consumers=1), 64, 16, 1032, splits=16),
    Product(Shape(64, 64, 3, pingpong=True), 64, 64, 456, splits=6),
]
# One part takes much longer than the others, who look once only and give up, or wait as long as it takes.
_BEGINS, _GIVES_UP = "u32 warpgroup) {\n#pragma unroll", "    return arrived(add"
SLOW = (_BEGINS, _BEGINS.replace("\n", "\nfor (int i = 0; split == 3 && i < 2000; ++i) device_fence();\n"))
LATE = (_GIVES_UP, "    for (int i = 0; i < 2000; ++i) device_fence();\n" + _GIVES_UP)
IMPATIENT = ("MAX_POLLS = 64", "MAX_POLLS = 1")
PATIENT = ("MAX_POLLS = 64", "MAX_POLLS = 1000000")
_STORED, _MET = "    device_fence();\n", "    named_sync(1 + warpgroup, 128);\n"
FENCES = {
    "before the counter": (_STORED + _MET, _MET),
    "before the barrier": (_STORED + _MET, _MET + _STORED),
    "after the counter": ("    if (word != 0) device_fence();\n", ""),
}
MUTATIONS = {
    "nobody waits": [SLOW, ("arrived(load_counter(counter)) == splits", "true")],
    "what is given up is forgotten": [SLOW, IMPATIENT, ("return own | static_cast<u32>(before >> 32)", "return own")],
    "who gives up adds all the same": [SLOW, IMPATIENT, ("== splits ? own : 0", "== splits ? own : own")],
    "who gives up too late adds nothing": [LATE, IMPATIENT, ("== splits ? own : 0", "== splits ? 0 : 0")],
    "the counter is left as it is": [("(taken >> 8 & 255) + slices == count", "false")],
    "a slice ends too early": [("TILE_QUADS * (slice + 1) / count", "TILE_QUADS * (slice + 1) / count - 1")],
}
# fmt: on


def reduces_by_slices(product):
    choice = product.choice
    return choice.reduces_by_slices(estimated(16, choice.shape.cluster_size))


@pytest.mark.parametrize("product", SLICES, ids=str)
def test_slices(product):
    assert reduces_by_slices(product)
    run = Run(product, Home(**SMS))
    for _ in range(4):
        run.check()


@pytest.mark.parametrize("product", NOT_IN_SLICES, ids=str)
def test_last_one_adds_all(product):
    assert not reduces_by_slices(product)
    run = Run(product, Home(**SMS))
    for _ in range(2):
        run.check()


@pytest.mark.parametrize("sms", [MORE_SMS, SMS], ids=["slices", "last"])
def test_more_splits_than_slices(sms):
    """All at once the first ones reduce a slice each; on fewer SMs the last one to arrive adds all."""
    assert MANY.choice.reduces_by_slices(sms["attributes"][16]) == (sms is MORE_SMS)
    run = Run(MANY, Home(**sms))
    for _ in range(2):
        run.check()
    assert run.home.counters_are_clear()


@pytest.mark.parametrize(
    "change",
    [
        ("split < MAX_SLICES ? 1u << split : 0", "1u << split % 32"),
        ("TILE_QUADS * (slice + 1) / count", "TILE_QUADS * (slice + 1) / p.schedule.splits"),
        ("own | static_cast<u32>(before >> 32)", "own"),
    ],
    ids=["further-splits-have-slices", "a-slice-for-each-split", "what-is-given-up-is-forgotten"],
)
def test_the_emulator_notices_it_of_many_splits(change, monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "split_k.cuh", change, IMPATIENT, SLOW, **MORE_SMS)
    with suppress(KernelError):
        assert not right(MANY, home) or not home.counters_are_clear(), "the emulator does not see it"


def test_the_model_has_the_same_rule():
    text = sources.source(SLICES[0].choice.variant).files["split_k.cuh"]
    assert f"MIN_SPLITS = {_MIN_SPLITS}, MIN_WORK = {_MIN_WORK}, MAX_SLICES = {MAX_SLICES};" in text


def test_same_bits():
    """The bits do not depend on the split that adds, and the counters are left at zero."""
    product = Product(SMALL, 60, 64, 1000, splits=8, out="float32")
    home = Home(**SMS)
    run = Run(product, home)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((product.m, product.k)).astype(run.values[0].dtype)
    run.a[: a.nbytes] = stored(a, "row")
    assert len({run().tobytes() for _ in range(8)}) == 1
    assert home.counters_are_clear()


def test_alpha_zero_forgets_the_product():
    product = Product(SMALL, 60, 64, 456, splits=6, alpha=0, bias="n")
    run = Run(product, Home(**SMS))
    run.a[:] = 0xFF  # NaN
    run.check()


def test_marks():
    check_marks(Product(SPLIT, 8, 64, 384, dtype="float32", splits=6, **R), **SMS)


@pytest.mark.parametrize(
    "changes",
    [[IMPATIENT], [SLOW, IMPATIENT], [LATE, IMPATIENT], [SLOW, PATIENT]],
    ids=["some", "all", "late", "none"],
)
def test_giving_up(changes, monkeypatch, tmp_path):
    """Slices that were given up are added by the last part."""
    assert right(Product(SMALL, 60, 64, 456, splits=6), mutated(monkeypatch, tmp_path, "split_k.cuh", *changes, **SMS))


def test_giving_up_with_more_splits_than_slices(monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "split_k.cuh", SLOW, IMPATIENT, **MORE_SMS)
    assert right(MANY, home)
    assert home.counters_are_clear()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    product = Product(SMALL, 60, 64, 456, splits=6, alpha=0.5, beta=2)
    home = mutated(monkeypatch, tmp_path, "split_k.cuh", *MUTATIONS[mutation], **SMS)
    with suppress(KernelError):
        assert not right(product, home), "the emulator does not see it"


@pytest.mark.parametrize("splits", [2, 6])
@pytest.mark.parametrize("fence", FENCES, ids=lambda name: name.replace(" ", "-"))
def test_a_fence_that_is_missing_is_noticed(fence, splits, monkeypatch, tmp_path):
    """The last split adds, or each a slice. Memory is as it should be: the missing order itself is the fault."""
    home = mutated(monkeypatch, tmp_path, "split_k.cuh", FENCES[fence], **SMS)
    with pytest.raises(KernelError):
        Run(Product(SMALL, 60, 64, 456, splits=splits), home)()
    assert "a partial sum is loaded" in " ".join(home.cuda.complaints)


def right(product, home):
    """Several calls, of operands of their own: what was in memory before is not right by chance."""
    run = Run(product, home)
    for seed in range(12):
        a, b, *_ = product.data(seed)
        run.give(a, b)
        if product.wrong(run(), product.exact(a, b, *run.values[2:])).any():
            return False
    return True
