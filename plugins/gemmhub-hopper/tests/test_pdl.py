"""Programmatic dependent launch: when the next kernel may begin."""

from __future__ import annotations

import re

import pytest
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import named, runnable
from gemmhub_hopper.cost import choose, model
from gemmhub_hopper.launches import pdl
from gemmhub_hopper.launches.pdl import Next
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.lowering.f16_planes import BY_TILES, ONLY_REJECTED
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import Shape
from problems import problem
from products import Product
from test_kernel import notices
from vectors import vector

pytestmark = pytest.mark.emulator

SMS = 132
CARD = model.Card(SMS, 2e9, 4e12)
KERNEL = sources.source(Product(Shape(64, 64, 3, consumers=1), 64, 64, 64).choice.variant)


def gemm(name, m, n, k, dtype="bfloat16"):
    choice = named(lower.lowerings(problem(m, n, k, dtype)), name)
    passes = runnable(choice, 2**30)
    return pdl.gemm(choice, passes.k_blocks, CARD)


def vectors(name, m, n, k, b="row"):
    (choice,) = (x for x in gemv.choices(lower.lowerings(problem(m, n, k, b=b))) if x.name == name)
    return pdl.gemv(choice, SMS)


def test_as_soon_as_all_is_asked_for_where_that_is_at_once():
    """Six stages have room for 384 elements of k."""
    assert gemm("128x96x6", 1024, 1024, 384) is Next.LOADED
    assert gemm("128x96x6", 1024, 1024, 448) is Next.SUMMED
    assert gemm("128x96x6", 4096, 4096, 384) is Next.SUMMED  # other work tiles follow
    assert gemm("64x64x12k4", 64, 64, 4 * 12 * 64) is Next.LOADED
    assert gemm("64x64x12k4", 64, 64, 4 * 12 * 64 + 8) is Next.SUMMED


def test_no_early_start_after_split_k_and_copies():
    assert gemm("128x96x6/4", 128, 128, 1024) is Next.ENDED
    lowerings = lower.lowerings(problem(1024, 1024, 384, "float32"))
    found = {
        bool(choice.copied): pdl.gemm(choice, runnable(choice, 2**30).k_blocks, CARD)
        for choice in (x.choice for x in choose.ranked(lowerings, CARD, 2**30))
        if choice.splits == 1
    }
    assert found[True] is Next.ENDED
    assert found[False] in (Next.LOADED, Next.SUMMED)


def test_what_looks_for_rejected_operands_begins_early():
    lowerings = lower.lowerings(problem(1024, 1024, 1024, "float32"))
    choice = next(x.choice for x in choose.ranked(tuple(x for x in lowerings if x.form.input == "f16x3"), CARD, 2**30))
    passes = runnable(choice, 2**30)
    assert pdl.gemm(choice, passes.k_blocks, CARD) is Next.SUMMED
    other = choose.by_bfloat16_planes(choice, passes, CARD)
    for redo, moment in ((ONLY_REJECTED, True), (ONLY_REJECTED | BY_TILES, True), (BY_TILES, False)):
        assert (pdl.gemm(other, passes.k_blocks, CARD, redo) is Next.STARTED) == moment


def test_vectors_share_multiprocessors_where_there_is_room_for_two():
    """A CTA of gemv8 has 128 results where the matrix is contiguous along K."""
    assert vectors("gemv8", 1, 128 * SMS, 128, b="col") is Next.STARTED
    assert vectors("gemv8", 1, 128 * SMS + 8, 128, b="col") is Next.SUMMED
    assert vectors("gemv16a", 1, 64 * 8 * SMS, 128) is Next.SUMMED
    assert vectors("gemv32a", 1, 64 * 2 * SMS, 128) is Next.STARTED  # loads to shared memory leave room for more
    assert vectors("gemv32", 1, 64 * 2 * SMS, 128) is Next.SUMMED


def test_much_memory_takes_long():
    assert vectors("gemv32", 1, 8192, 4096) is Next.ENDED  # 64 MiB
    assert vectors("gemv32", 1, 8192, 4088) is not Next.ENDED


@pytest.mark.parametrize("moment", [x for x in Next if x is not Next.ENDED], ids=lambda x: x.name)
def test_kernels_have_the_same_numbers(moment):
    assert re.search(rf"\b{moment.name} = {moment.value}\b", KERNEL.files["pdl.cuh"])


@pytest.mark.parametrize(
    ("product", "file"),
    [
        (Product(Shape(64, 64, 2, consumers=1), 72, 72, 136), "gemm_kernel.cu"),
        (vector(1, 72, 64, spread=32), "gemv_kernel.cu"),
    ],
    ids=["gemm", "gemv"],
)
def test_the_emulator_notices_who_does_not_wait(product, file, monkeypatch, tmp_path):
    """The kernel before may still write what is read."""
    notices(product, file, [("wait_on_dependent_grids();", "")], monkeypatch, tmp_path)
