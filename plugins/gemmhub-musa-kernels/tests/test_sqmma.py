"""The kernel of squads for mp_31: right products, what it takes, its proof, and that each wait in it is needed."""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import replace

import pytest
from gemmhub_musa.compile import compile_mu
from gemmhub_musa.guard import Cleared
from gemmhub_musa.testing import MusaMemory, operand
from gemmhub_musa_kernels import sqmma
from gemmhub_musa_kernels.backend import MusaKernelsBackend
from gemmhub_musa_kernels.choose import Candidate, defines
from gemmhub_musa_kernels.launch import Product
from gemmhub_musa_kernels.library import Library
from gemmhub_musa_kernels.lower import lowered
from gemmhub_musa_kernels.sources import KERNELS, SQMMA, text
from simulator import FAILED, Bench, problem

from conftest import INSTALLED
from gemmhub.backend import Offer
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.testing import Case, check

pytestmark = pytest.mark.skipif(INSTALLED, reason="needs the simulator")

WAY = Candidate(SQMMA, sqmma.TILE)
NAME = WAY.name
SIZES = [(256, 128, 64), (8, 8, 8), (264, 136, 200), (304, 72, 328)]
DEEP = 64 * (sqmma.TILE.stages * 2 + 1)
"""K of a product in which every stage is used twice and one three times."""


@pytest.fixture
def bench(sim, plain_sdk):
    sim.set(ARCH=31)
    return Bench(sim, plain_sdk, "mp_31")


@pytest.fixture
def backend(sim, monkeypatch):
    """A backend on an S5000 that offers the kernel for small products, too."""
    sim.set(ARCH=31)
    monkeypatch.setattr(sqmma, "_MIN_FLOPS", 0.0)
    made = MusaKernelsBackend()
    assert made.probe()
    return made


# Products


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("a", "b"), list(itertools.product(("row", "col"), repeat=2)))
def test_storage_orders(bench, size, a, b):
    for d in ("row", "col"):
        assert bench.wrong(problem(*size, a=a, b=b, d=d), WAY) == 0


@pytest.mark.parametrize(
    "schedule", [{"SEED": 1, "ASYNC": 1}, {"SEED": 2, "ASYNC": 0}, {"SEED": 3, "ASYNC": 2}], ids=str
)
@pytest.mark.parametrize(("dtype", "out"), [("float16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float16")])
def test_schedules_and_dtypes(bench, sim, schedule, dtype, out):
    sim.set(**schedule)
    for a, b in (("row", "row"), ("col", "col")):
        assert bench.wrong(problem(72, 264, DEEP, dtype, out, a, b), WAY) == 0


HALVES = dict.fromkeys(("a_dtype", "b_dtype", "out_dtype"), "float16")
CASES = [
    Case(264, 136, 72, c="row", beta=0.5, alpha=-1.5, bias="n", activation="gelu", **HALVES),
    Case(40, 24, 136, b="col", c="out", beta=1, bias="m", activation="relu", **HALVES),
    Case(40, 24, 136, out="col", a="col", bias="n", activation="silu", **HALVES),
    Case(40, 24, 136, alpha=0, c="col", beta=2, **HALVES),
    Case(16, 264, 64, out="row_padded", a="row_padded", b="row_padded", offset=8, **HALVES),
    Case(24, 16, 200, data="special", a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="float32"),
    Case(24, 16, 0, c="row", beta=1, **HALVES),
    Case(24, 16, 64, packed=True, **HALVES),
    Case(24, 16, 128, poison="garbage", a_dtype="bfloat16", b_dtype="bfloat16", out_dtype="bfloat16"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_is_right(backend, case):
    assert check(backend, case, MusaMemory()).accepted


# What it takes


def names(backend, asked):
    offer = backend.offer(asked)
    assert isinstance(offer, Offer), offer
    return offer.names


def test_it_is_offered_first(backend):
    asked = problem(264, 136, 64)
    assert names(backend, asked)[0] == NAME
    first = backend.offer(asked).first
    assert first.order == "sqmma.128x128x64.arow.brow"
    assert first.seconds > 0


@pytest.mark.parametrize(
    "asked",
    [
        problem(264, 136, 66),  # rows of A that are no multiple of 16 bytes
        problem(264, 136, 66, "float16", b="col"),
        problem(264, 135, 64, "float16"),
        problem(264, 136, 64, "float16", batch=(2,)),
        replace(problem(264, 136, 64), reproducible="batch"),
        replace(problem(264, 136, 64), a=operand("float16", 264, 64, alignment=8)),
    ],
    ids=lambda asked: asked.key,
)
def test_what_copies_cannot_read_is_left_to_others(backend, asked):
    assert NAME not in names(backend, asked)
    refusal = backend.prepare(asked, NAME, 0)
    assert isinstance(refusal, Refusal)


def test_it_is_for_large_products_on_one_architecture(sim):
    large, small = problem(1184, 1184, 1184), problem(1168, 1168, 1168)
    assert small.flops < 3.2e9 < large.flops
    for arch, expected in ((31, True), (22, False)):
        sim.set(ARCH=arch)
        backend = MusaKernelsBackend()
        assert backend.probe()
        assert (NAME in names(backend, large)) == expected
        assert NAME not in names(backend, small)


# Its proof


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("constexpr int kKeep = 0;", "constexpr int kKeep = 1;"),  # the number that public sources disagree on
        ("lane / 32 * 4,", "lane / 64 * 8,"),  # other places of a thread's sums
        ("kSwizzle = deep ? 1 : 2", "kSwizzle = deep ? 2 : 2"),
        ("(i / kStages & 1) ^ 1", "i / kStages & 1"),
        ("row + squad * kSquad, i * kK", "row, i * kK"),
    ],
)
def test_a_kernel_that_is_wrong_is_refused(backend, planted, old, new):
    asked = problem(264, 136, 64)
    planted("sqmma.mu", old, new)
    refusal = backend.prepare(asked, NAME, 0)
    assert isinstance(refusal, Refusal)
    assert names(backend, asked)[1] != NAME


def test_a_kernel_that_is_right_is_not(backend):
    assert not isinstance(backend.prepare(problem(264, 136, 64), NAME, 0), Refusal)


# Its waits

WAITS = re.compile(
    r"^(\s*)(__syncthreads\(\);|__musa_(?:async_(?:wait|arrive|add_trans)|sqmma_wait)\(.*\);)$", re.MULTILINE
)


def mutable():
    """The kernel's source with each wait and arrival under a condition: one compilation serves all mutants."""
    kernel = text(SQMMA)
    places = [match[2] for match in WAITS.finditer(kernel)]
    numbers = iter(range(len(places)))
    changed = WAITS.sub(lambda match: f"{match[1]}if (mutant != {next(numbers)}) {match[2]}", kernel)
    early = "if (mutant == 100) __musa_async_arrive(empty(stage));\n"
    changed = changed.replace("__musa_sqmma_m128n128_mma(", early + "    __musa_sqmma_m128n128_mma(")
    changed = re.sub(r"(if \(mutant != \d+)(\) __musa_async_arrive\(empty)", r"\1 && mutant != 100\2", changed)
    return 'extern "C" { int mutant = -1; }\n' + changed, places


PLACES = mutable()[1]


def test_there_is_something_to_take_out():
    assert [re.sub(r"\(.*?(\w*)\(?(stage)?\)?.*", "", place) for place in PLACES] == [
        "__musa_async_wait", "__musa_async_add_trans", "__musa_async_arrive", "__musa_async_wait", "__musa_sqmma_wait",
        "__musa_async_arrive", "__syncthreads",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [-1, *range(7), 100])
def test_each_wait_is_needed(sim, checking_sdk, number):
    """100: a stage is given back before its multiplication has been waited for."""
    sim.set(ARCH=31)
    half = as_dtype("float16")
    flags = defines(WAY, "mp_31", half, half)
    built = compile_mu(mutable()[0], checking_sdk, "mp_31", name="mutable_sqmma", flags=flags, include=(KERNELS,))
    assert not isinstance(built, Refusal), built.traceback
    cdll = ctypes.CDLL(str(built))
    ctypes.c_int.in_dll(cdll, "mutant").value = number
    asked = problem(8, 8, DEEP)
    product = Product(sim.runtime, asked, lowered(asked), WAY, Library(cdll, SQMMA, sim.runtime, Cleared()), None)
    wrong = Bench(sim, checking_sdk, "mp_31").wrong(asked, WAY, run=product.run)
    found = [str(finding) for finding in sim.findings()]
    if number < 0:
        assert (wrong, found) == (0, [])
    else:
        assert found or wrong == FAILED, PLACES[number]
    if number == 100:
        assert any("write-after-read race" in each for each in found)
