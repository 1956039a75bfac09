"""Every shape of the kernel for batches, plain and with an epilogue, compiles without spills or stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compilations import LIMITS, check_resources, one_of, sample
from gemmhub_cuda.variants.batch import SHAPES, Variant, fitting
from gemmhub_cuda.variants.form import ACTIVATIONS, Form

pytestmark = pytest.mark.compiler

PLAIN = {
    1: Form(False, False, 16, 16, "int8", "int32"),
    2: Form(False, False, 16, 16, "bfloat16", "bfloat16"),
}


def cases():
    """(variant, capability): every shape with one of the orders, in turn, and every alignment and epilogue."""
    cards, found = list(LIMITS), []
    for i, shape in enumerate(SHAPES):
        form = replace(PLAIN[shape.itemsize], a_m_major=i % 2 > 0, b_n_major=i // 2 % 2 > 0)
        fits = [card for card in cards if shape.shared_bytes <= LIMITS[card]]
        found.append((Variant(shape, form), fits[i % len(fits)]))
        narrow = replace(form, a_alignment=(2, 4, 8, 1)[i % 4], b_alignment=(4, 2, 1, 8)[i % 4])
        if shape.itemsize == 2:
            full = {"scaled": True, "addend": True, "bias": "nm"[i % 2], "activation": ACTIVATIONS[i % 4]}
            kinds = {"input": ("float16", "bfloat16")[i % 2], "output": ("float32", "float16", "bfloat16")[i % 3]}
            narrow = replace(narrow, a_alignment=max(2, narrow.a_alignment), b_alignment=max(2, narrow.b_alignment))
            narrow = replace(narrow, **full, **kinds)
        found.append((Variant(shape, narrow), (9, 0)))
    return found


def name(case):
    form = case[0].form
    words = (form.input, form.output, form.a_alignment, form.b_alignment, form.activation, *case[1])
    return "-".join(map(str, (case[0].name, *words)))


@pytest.mark.parametrize("case", sample(cases()), ids=name)
def test_compiles(case):
    check_resources(one_of(sample(cases()), case), case[0])


def test_shapes_have_names_of_their_own():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("limit", LIMITS.values())
def test_every_card_has_every_tile(limit):
    for itemsize in (1, 2):
        for m in (1, 16, 17, 64, 65):
            for n in (1, 32, 33, 500):
                fits = [x for x in fitting(m, n, 64, itemsize) if Variant(x, PLAIN[itemsize]).refusal(limit) is None]
                assert fits
                assert {(min(m, 64) <= x.m, min(n, 64) <= x.n) for x in fits} == {(True, True)}


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (Variant(SHAPES[0], PLAIN[1]), "elements of 2 bytes, not int8"),
        (Variant(SHAPES[8], PLAIN[2]), "a CTA has at most 50000"),
    ],
    ids=["itemsize", "shared"],
)
def test_refusals_have_reasons(variant, reason):
    assert reason in variant.refusal(50000)
