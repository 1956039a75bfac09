"""Gated activations by the kernel on the emulator: one column of the result from two of the product."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fake_cuda
import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gated_products import GROUPED, PRODUCTS, SPLIT
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.candidates.candidate import Choice
from gemmhub_hopper.cost import model
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import shapes
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import ShapeList
from problems import H200, LIMIT, operand, problem
from products import Product
from runs import Run, detected
from test_grouped import Run as GroupedRun
from test_split_k import SMS

from gemmhub.backend import Offer, answer
from gemmhub.capability import Refusal
from gemmhub.problem import Groups
from gemmhub.testing import Case, check

pytestmark = pytest.mark.emulator
HOME = Home()


@pytest.fixture(scope="module", autouse=True)
def _built(request):
    """The variants of all products that will run, compiled two at a time."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    products = [x["product"] for x in parameters if isinstance(x.get("product"), Product)]
    grouped = [x["grouped"].choice.variant.macros for x in parameters if "grouped" in x]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fake_cuda.emulator, [*grouped, *(macros for product in products for macros in product.macros)]))


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_product(product):
    Run(product, seed=np.random.SeedSequence().entropy % 2**32).check()


def test_the_last_split_adds_all():
    """A pair of columns may be in two slices."""
    assert not SPLIT.choice.reduces_by_slices(SMS["attributes"][16])
    Run(SPLIT, Home(**SMS)).check()


@pytest.mark.parametrize("grouped", GROUPED, ids=str)
def test_groups(grouped):
    GroupedRun(grouped).check()


_BIASED = next(x for x in PRODUCTS if x.bias == "n" and x.activation == "swiglu")
_PAIRS = next(x for x in PRODUCTS if x.bias == "n" and x.shape.n == 224)
_SCALED = [x for x in PRODUCTS if getattr(x, "scale_b", None)]
_ROWS, _, _BLOCKS, _PAIR_BLOCKS, *_ = _SCALED
MUTATIONS = (
    (_BIASED, "tma_load.cuh", "first + static_cast<int>(part) * p.n", "first + static_cast<int>(part * WIDTH)"),
    (_BIASED, "tma_load.cuh", "to + part * WIDTH * BLOCK_K * kElementBytesB", "to"),
    (_BIASED, "tile_context.cuh", "rank_n(rank)) * TILE_N", "rank_n(rank)) * BLOCK_N"),
    (_BIASED, "epilogue.cuh", "add_terms(p, fragment, up, c, p.n + 8 * j)", "add_terms(p, fragment, up, c, 8 * j)"),
    (_BIASED, "epilogue.cuh", "acc[4 * j + r + SUM_N / 4]", "acc[4 * j + r]"),
    (_BIASED, "epilogue.cuh", "activated<kActivation>(v[r]) * up[r]", "activated<kActivation>(up[r]) * v[r]"),
    (_BIASED, "epilogue.cuh", "static_cast<int>(kArity) * at.columns_end(p) - column", "at.columns_end(p) - column"),
    (_PAIRS, "tma_load.cuh", "kGate == NEIGHBOURS ? 2 * n : n", "n"),
    (_PAIRS, "tile_context.cuh", "(kGate == NEIGHBOURS ? 2 : 1) * column0", "column0"),
    (_PAIRS, "epilogue.cuh", "add_terms(p, fragment, v, c, 8 * pairs)", "add_terms(p, fragment, v, c, 8 * j)"),
    (_PAIRS, "epilogue.cuh", "const u32 pairs = column / 4 + j;", "const u32 pairs = column / 8 + j;"),
    (SPLIT, "split_k.cuh", "!kPingpong && kGate == UNGATED &&", "!kPingpong &&"),
    (_ROWS, "epilogue.cuh", "first + e, static_cast<int>(kArity) * p.n", "first + e, p.n"),
    (_BLOCKS, "eight_bit.cuh", "columns + 4 * TILE_N, p.n + first", "columns + 4 * TILE_N, first"),
    (_BLOCKS, "eight_bit.cuh", "kDivided != COLUMNS && kGate == UNGATED", "kDivided != COLUMNS"),
    (_PAIR_BLOCKS, "eight_bit.cuh", "OF_ONE * first, OF_ONE * p.n", "first, OF_ONE * p.n"),
)  # fmt: skip


@pytest.mark.parametrize(("product", "file", "old", "new"), MUTATIONS, ids=lambda x: str(x)[:40])
def test_mutation(product, file, old, new, monkeypatch, tmp_path):
    """Each of what is new is noticed when it is wrong."""
    assert detected(Run(product, mutated(monkeypatch, tmp_path, file, (old, new), **SMS)), 2)


_B, _H = ("bfloat16",) * 3, ("float16",) * 3
_F = "float8_e4m3fn", "float8_e4m3fn", "bfloat16"
_FACTORS = {"scale_a": "row", "scale_b": "column"}
CASES = (
    Case(40, 56, 33, *_H, a="col", b="row_padded", activation="swiglu", data="nonfinite"),
    Case(65, 134, 64, *_B, b="col_padded", bias="n", activation="geglu", data="wide"),
    Case(33, 70, 40, "float16", "float16", "float32", out="col", activation="swiglu_interleaved", data="wide"),
    Case(24, 16, 64, *_B, batch=(2, 3), a_batch="outer", bias="m", activation="swiglu", data="nonfinite"),
    Case(24, 20, 64, *_B, batch=(3,), b_batch="missing", b="col", alpha=0.7, activation="swiglu_interleaved"),
    Case(17, 62, 40, "float16", "float16", "float32", b="col", offset=8, activation="swiglu", threads=3),
    Case(1, 300, 700, *_B, b="col", data="wide", bias="n", activation="geglu"),
    Case(300, 2, 70, *_H, b="col", activation="swiglu", data="cancelling", reproducible="run"),
    Case(20, 64, 70, *_B, packed=True, activation="swiglu"),
    Case(0, 6, 7, *_B, activation="swiglu"),
    Case(5, 6, 0, *_B, bias="m", activation="swiglu_interleaved"),
    Case(32, 48, 64, *_B, alpha=0, data="nonfinite", bias="n", activation="swiglu"),
    Case(40, 44, 64, precision="tf32", activation="swiglu", data="nonfinite"),
    Case(40, 44, 64, b="col", precision="bf16x3", activation="geglu", data="wide"),
    Case(65, 72, 40, *_F, a="col", b="row_padded", operands=_FACTORS, activation="geglu"),
    Case(33, 40, 160, "int8", "int8", "float32", bias="m", activation="swiglu_interleaved"),
)


@pytest.fixture
def _two_tiles(monkeypatch):
    """Few variants to compile."""
    few = ShapeList((Shape(64, 64, 8, consumers=1), Shape(64, 128, 6, consumers=1)))
    monkeypatch.setattr(shapes, "SHAPES", few)
    monkeypatch.setattr(shapes, "EIGHT_BIT_SHAPES", few)


@pytest.mark.usefixtures("_two_tiles")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_promises(case):
    HOME.cuda.complaints.clear()
    check(HOME.backend(), case, FakeMemory(HOME))
    assert HOME.cuda.complaints == []


def asked(activation="swiglu", n=64, dtype="bfloat16", **changes):
    return problem(64, n, 64, dtype, activation=activation, **changes)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (asked(c=operand("bfloat16", 64, 64)), "swiglu has no kernel with c"),
        (asked("geglu", dtype="float32"), "no kernel for float32 by float32 with precision='ieee'"),
        (asked(dtype="float32", precision="bf16x3", packed_by="hopper"), "precision='bf16x3' and a packed b"),
        (
            replace(asked(dtype="float32", precision="bf16x3"), a=operand("bfloat16", 64, 64)),
            "no kernel for bfloat16 by float32 with precision='bf16x3'",
        ),
        (
            replace(asked("geglu", dtype="float32", precision="bf16x3"), b=operand("float16", 64, 64)),
            "no kernel for float32 by float16 with precision='bf16x3'",
        ),
        (asked(dtype="float32", precision="bf16x3", b="col", groups=Groups(2, "m")), "swiglu has no kernel for groups"),
        (asked(dtype="float32", precision="tf32", a="col", groups=Groups(2, "k")), "swiglu has no kernel for groups"),
        (asked(dtype="complex64"), "complex products have no epilogue"),
        (asked(b="col", d="col", groups=Groups(2, "n")), "groups divide the columns"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refusals(refused, reason):
    refusal = answer(HOME.backend(), refused)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert refusal.remedy


def test_what_has_no_kernel():
    form = Form(False, False, "bfloat16", "bfloat16", activation="swiglu")
    pairs, rows = replace(form, activation="swiglu_interleaved"), replace(form, mn_major_b=True)
    none = {
        "multiples of 32": [(Shape(128, 144, 5), form), (Shape(128, 16, 4), pairs), (Shape(128, 192, 5), rows)],
        "8-row atoms": [(Shape(128, 160, 5, cluster_m=4), form)],
        "exclude c": [
            (Shape(64, 64, 4, consumers=1), replace(form, addend="bfloat16")),
            (Shape(64, 64, 4, consumers=1, cluster_k=2), form),
            (Shape(64, 64, 4, consumers=1), replace(pairs, divided="n")),
        ],
    }  # fmt: skip
    for reason, refused in none.items():
        for shape, some in refused:
            assert reason in (Variant(shape, some).refusal or ""), shape
    assert Variant(Shape(128, 192, 5), replace(rows, activation="swiglu_interleaved")).refusal is None
    assert Variant(Shape(128, 160, 5, cluster_m=4), pairs).refusal is None


def test_copies_in_one_pass():
    """Sums of a part of K have twice the columns of the result."""
    backend = HOME.backend()
    copied = problem(64, 64, 70, "bfloat16", activation="swiglu")
    offer = backend.offer(copied)
    assert isinstance(offer, Offer)
    refusal = backend.prepare(copied, offer.candidates[0].name, 2**12)
    assert isinstance(refusal, Refusal)
    assert "bytes of workspace" in refusal.reason


@pytest.mark.parametrize(
    ("refused", "reason", "remedy"),
    [
        (
            asked(dtype="float32", precision="tf32", groups=Groups(2, "m")),
            "contiguous along K",
            "pass b contiguous along k,",
        ),
        (
            asked(n=72, groups=Groups(2, "m")),
            "its second half begins 36 columns into rows",
            "pass b contiguous along k, or pad each half to 16 bytes, or take swiglu_interleaved",
        ),
        (
            asked(n=72, a="col", groups=Groups(2, "k")),
            "its second half begins 36 columns into rows",
            "pad each half to 16 bytes, or take swiglu_interleaved",
        ),
        (
            asked("geglu", n=72, groups=Groups(2, "m")),
            "its second half begins 36 columns into rows",
            "pass b contiguous along k, or pad each half to 16 bytes",
        ),
        (asked(n=68, groups=Groups(2, "m")), "its leading dimension is 68 elements", "pass b, with address"),
    ],
    ids=["tf32", "halves", "halves of k", "no pairs", "rows"],
)
def test_refusals_of_a_b_of_groups(refused, reason, remedy):
    refusal = answer(HOME.backend(), refused)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert refusal.remedy.startswith(remedy)
    assert "geglu_interleaved" not in refusal.remedy


def test_copies_that_do_not_fit():
    """A wider result needs no less workspace, as copies are made in one pass."""
    for out in ("bfloat16", "float32"):
        refusal = HOME.backend().offer(problem(65536, 8192, 65535, "bfloat16", out, b="col", activation="swiglu"))
        assert isinstance(refusal, Refusal)
        assert "bytes of workspace" in refusal.reason
        assert refusal.remedy == "pass operands that need no copy, or apply the activation afterwards"


def test_planes_of_gates_have_no_order():
    refusal = answer(HOME.backend(), asked(dtype="float32", precision="bf16x3", reproducible="batch"))
    assert isinstance(refusal, Refusal)
    assert refusal.remedy == 'apply the activation afterwards, or ask for "run"'


def test_estimates_count_the_result_once():
    """Half as many columns are stored, and no vectors' kernel is offered."""
    gated, plain = (lower.lowerings(problem(1, 4096, 64, activation=x))[0] for x in ("swiglu", "silu"))
    assert (gated.results, plain.results) == (2048, 4096)
    assert plain.nbytes - gated.nbytes == 2 * 2048
    shape = Shape(64, 128, 8, consumers=1)
    works = [model.work(Choice(x, shape, 1), Choice(x, shape, 1).k_passes(LIMIT), H200) for x in (gated, plain)]
    assert works[0].written_bytes * 2 == works[1].written_bytes
    assert works[0].stored_bytes * 2 == works[1].stored_bytes
    assert works[0].read_bytes == works[1].read_bytes
    assert gemv.choices([gated]) == []
    assert gemv.choices([plain]) != []
    assert len(lower.lowerings(problem(1, 4096, 64, activation="swiglu"))) == 1
