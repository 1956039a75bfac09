"""Every shape of the kernel for batches, plain and with an epilogue, compiles without spills or stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compilations import LIMITS, check_resources, one_of, sample
from gemmhub_cuda.variants.batch import FLOAT8, SHAPES, Variant, fitting
from gemmhub_cuda.variants.form import ACTIVATIONS, Form
from gemmhub_cuda.variants.form import FLOAT8 as PAIRS

pytestmark = pytest.mark.compiler

INT8 = Form(False, False, 16, 16, "int8", "int32")
HALF = replace(INT8, input="bfloat16", output="bfloat16")


def plain(shape, index=0):
    """The plain form of a shape; of 8-bit floats each pair of formats and each use of scales in turn."""
    if shape.promoted:
        return replace(HALF, input=list(PAIRS)[index % 4], scales=("blocks", None, "results")[index % 3])
    return INT8 if shape.itemsize == 1 else HALF


def cases():
    """(variant, capability): every shape with one of the orders, in turn, and every alignment and epilogue."""
    cards, found = list(LIMITS), []
    for i, shape in enumerate(SHAPES):
        form = replace(plain(shape, i), a_m_major=i % 2 > 0, b_n_major=i // 2 % 2 > 0)
        oldest = FLOAT8 if shape.promoted else cards[0]
        fits = [card for card in cards if shape.shared_bytes <= LIMITS[card] and card >= oldest]
        found.append((Variant(shape, form), fits[i % len(fits)]))
        narrow = replace(form, a_alignment=(2, 4, 8, 1)[i % 4], b_alignment=(4, 2, 1, 8)[i % 4])
        if form.output != "int32":
            full = {"scaled": True, "addend": True, "bias": "nm"[i % 2], "activation": ACTIVATIONS[i % 4]}
            if shape.itemsize == 2:
                least = {name: max(2, getattr(narrow, name)) for name in ("a_alignment", "b_alignment")}
                narrow = replace(narrow, **least, input=("float16", "bfloat16")[i % 2])
            narrow = replace(narrow, **full, output=("float32", "float16", "bfloat16")[i % 3])
        found.append((Variant(shape, narrow), fits[-1] if shape.promoted else (9, 0)))
    return found


def name(case):
    form = case[0].form
    words = (form.input, form.output, form.a_alignment, form.b_alignment, form.scales, form.activation, *case[1])
    return "-".join(map(str, (case[0].name, *words)))


@pytest.mark.parametrize("case", sample(cases()), ids=name)
def test_compiles(case):
    check_resources(one_of(sample(cases()), case), case)


def test_shapes_have_names_of_their_own():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("limit", LIMITS.values())
def test_every_card_has_every_tile(limit):
    for itemsize in (1, 2):
        for m in (1, 16, 17, 64, 65):
            for n in (1, 32, 33, 500):
                fits = [x for x in fitting(m, n, 64, itemsize) if Variant(x, plain(x)).refusal(limit) is None]
                assert fits
                assert {(min(m, 64) <= x.m, min(n, 64) <= x.n) for x in fits} == {(True, True)}


@pytest.mark.parametrize("limit", [limit for card, limit in LIMITS.items() if card >= FLOAT8])
@pytest.mark.parametrize("m", [1, 16, 17, 64, 65])
@pytest.mark.parametrize("n", [1, 32, 33, 500])
def test_every_card_has_every_tile_of_float8(limit, m, n):
    """The largest tiles are halves of the widest: a thread would have no registers for more."""
    shapes = [x for x in fitting(m, n, 64, 1, promoted=True) if Variant(x, plain(x)).refusal(limit) is None]
    assert shapes
    for shape in shapes:
        assert shape.promoted
        assert 2 * shape.m * shape.n >= min(m, 64) * min(n, 64)
        assert shape.registers <= 255 - 8


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (Variant(SHAPES[0], INT8), "elements of 2 bytes, not int8"),
        (Variant(SHAPES[8], HALF), "a CTA has at most 50000"),
        (Variant(SHAPES[-1], INT8), "multiplies 8-bit floats"),
        (Variant(SHAPES[27], plain(SHAPES[-1])), "multiplies int8"),
    ],
    ids=["itemsize", "shared", "int8", "float8"],
)
def test_refusals_have_reasons(variant, reason):
    assert reason in variant.refusal(50000)
