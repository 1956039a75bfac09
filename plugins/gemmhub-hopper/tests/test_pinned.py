"""Pinned problems: which candidates are offered, and that the bits of a row depend on nothing but that row."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from fake_cuda import FakeCuda
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper.cost import choose
from gemmhub_hopper.proof import Proofs
from gemmhub_hopper.variants.config import ACTIVATIONS
from ml_dtypes import bfloat16, float8_e4m3fn
from problems import bias, operand, problem

from gemmhub.accuracy import problem_model, reference
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import Refusal

ORDERS = {
    "bfloat16": "wgmma.k16", "float16": "wgmma.k16", "tf32": "wgmma.k8", "float32": "wgmma.k16.bf16x6",
    "bf16x3": "wgmma.k16.bf16x3", "float8_e4m3fn": "wgmma.k32.p128", "int8": "exact",
}  # fmt: skip
"""The order of each dtype, or precision of float32."""
EIGHT_BIT = ("float8_e4m3fn", "int8")


def pinned(m, n, k, kind, promise="batch", **more):
    """Return a pinned problem; ``kind``: a key of ORDERS."""
    precision = kind if kind in ("tf32", "bf16x3") else "ieee"
    dtype = "float32" if kind in ("float32", "tf32", "bf16x3") else kind
    out = "float32" if kind in EIGHT_BIT else None
    return problem(m, n, k, dtype, out, precision=precision, reproducible=promise, **more)


def padded(x, extra, alignment=256):
    """Return an operand whose rows are ``extra`` elements further apart."""
    layout = x.layout
    if layout.order == "row":
        return replace(x, layout=replace(layout, row_stride=layout.row_stride + extra), alignment=alignment)
    return replace(x, layout=replace(layout, col_stride=layout.col_stride + extra), alignment=alignment)


# --- offers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch):
    """One of a machine with as many SMs as a card: nothing is launched."""
    monkeypatch.setattr(FakeCuda, "card", {**FakeCuda.card, 16: 132})
    monkeypatch.setattr(Proofs, "of", lambda self, index, gpu, input_type: None)
    return Home().backend()


def drawn(rng, kind, promise="batch"):
    """Return a random pinned problem."""
    m, n, k = (round(2 ** rng.uniform(0, 13)) for _ in range(3))
    if rng.random() < 0.5:
        n, k = -(-n // 8) * 8, -(-k // 8) * 8
    batch = rng.choice([(), (), (3,)]) if max(m, n, k) < 1000 else ()
    orders = {x: rng.choice(["row", "row", "col"]) for x in "abd"}
    more = {}
    if rng.random() < 0.3:
        more["bias"] = bias("float32", rng.choice("mn"))
    if rng.random() < 0.3:
        more["activation"] = rng.choice(ACTIVATIONS)
    if rng.random() < 0.2:
        more["alpha_is_one"] = False
    asked = pinned(m, n, k, kind, promise, batch=batch, **orders, **more)
    if rng.random() < 0.2:
        asked = asked.having(c=operand(asked.out.dtype.name, m, n, orders["d"], batch))
    if rng.random() < 0.3 and not batch:
        asked = replace(asked, a=padded(asked.a, rng.randrange(9), rng.choice([256, 16, 8, 4])))
    return asked


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("seed", range(30))
def test_all_candidates_have_the_order_of_the_dtype(backend, kind, seed):
    """Whatever sizes, layouts, alignments and epilogues are; no split-K, no CTAs that share K, and no GEMV."""
    asked = drawn(random.Random(seed), kind)
    offer = answer(backend, asked)
    assert isinstance(offer, Offer), (asked, offer)
    assert {x.order for x in offer.candidates} == {ORDERS[kind]}
    backend.prepare(asked, offer.first.name, offer.workspace)
    if ORDERS[kind] == "exact":
        return
    assert all(re.fullmatch(r"\d+x\d+x\d+p?(c\dx\d)?[a-z]*", name) for name in offer.names)
    for name in ("64x16x12k4", "64x64x12/2", "64x64x12t/2", "gemv64", "64x64x12h"):
        assert isinstance(backend.prepare(asked, name, offer.workspace), Refusal)


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("seed", range(10))
def test_a_named_order_is_offered_where_candidates_have_it(backend, parts, seed):
    asked = drawn(random.Random(seed), "bfloat16", f"wgmma.k16/s{parts}")
    offer = answer(backend, asked)
    if isinstance(offer, Refusal):
        assert asked.k <= 64 * parts
    else:
        assert {x.order for x in offer.candidates} == {f"wgmma.k16/s{parts}"}


def test_exact_sums_may_have_any_parts(backend):
    names = answer(backend, pinned(16, 4096, 16384, "int8")).names
    assert any(re.search(r"k4|/", name) for name in names), names


@pytest.mark.parametrize("order", ["fma.f32", "wgmma.k16/s0", "wgmma.k32"])
def test_an_unknown_order_is_refused(backend, order):
    refusal = answer(backend, pinned(64, 64, 64, "bfloat16", order))
    assert isinstance(refusal, Refusal)
    assert repr(order) in refusal.reason


def test_what_no_order_is_stated_for(backend):
    """Complex operands are split by their own data, packed ones have no two planes."""
    complex_operands = replace(problem(64, 64, 64, "complex64"), reproducible="batch")
    packed = replace(pinned(64, 64, 64, "bf16x3"), packed_by="hopper")
    for asked in (complex_operands, packed):
        assert isinstance(answer(backend, asked), Refusal)


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("float16", "float32")])
def test_operands_of_two_dtypes(backend, dtypes):
    """There is one lowering of these."""
    asked = pinned(300, 512, 1024, "float32")
    a, b = (operand(dtype, *shape) for dtype, shape in zip(dtypes, ((300, 1024), (1024, 512))))
    offer = answer(backend, replace(asked, a=a, b=b))
    assert {x.order for x in offer.candidates} == {"wgmma.k16.bf16x6"}


def test_copies_are_made_in_one_k_pass(backend):
    """The workspace has room for them; in less, a candidate is refused: K passes begin sums anew."""
    asked = pinned(8, 50_001, 16_383, "bfloat16")
    offer = answer(backend, asked)
    assert offer.workspace > 2 * 50_001 * 16_383
    assert {x.order for x in offer.candidates} == {"wgmma.k16"}
    name = offer.first.name
    assert not isinstance(backend.prepare(asked, name, offer.workspace), Refusal)
    refusal = backend.prepare(asked, name, 2**28)
    assert "K passes" in refusal.reason
    assert "workspace_mib" in refusal.remedy


@pytest.mark.parametrize("sizes", [(0, 8, 8), (8, 8, 0)])
def test_products_without_sums_are_not_pinned(backend, sizes):
    offer = answer(backend, pinned(*sizes, "float32"))
    assert isinstance(offer, Offer)
    assert isinstance(backend.prepare(pinned(*sizes, "float32"), offer.first.name, offer.workspace), Kernel)


def test_a_compiled_candidate_may_go_first(backend):
    """All share bits, so that what is compiled decides."""
    asked = pinned(1000, 4096, 4096, "bfloat16")
    first, second = backend.offer(asked).names[:2]
    backend.prepare(asked, second, 2**30)
    assert backend.offer(asked).names[:2] == (second, first)


def test_other_rows_keep_the_order(backend):
    asked = pinned(300, 4096, 4096, "bfloat16")
    kernel = backend.prepare(asked, backend.offer(asked).first.name, 2**28)
    assert kernel.with_rows(7) is not None


# --- bits -------------------------------------------------------------------------------------------------------

ROWS = 130
DTYPES = {"bfloat16": bfloat16, "float16": np.float16, "float8_e4m3fn": float8_e4m3fn, "int8": np.int8}


class Rows:
    """Products of some rows of one a with one b, on the emulator."""

    def __init__(self, kind, n, k, home, seed=0):
        rng = np.random.default_rng(seed)
        dtype = DTYPES.get(kind, np.float32)
        self.kind, self.n, self.k, self.home = kind, n, k, home
        scale = 30 if kind == "int8" else 1
        self.a, self.b = ((scale * rng.standard_normal(x)).astype(dtype) for x in ((ROWS, k), (k, n)))
        self.backend, self.memory = home.backend(), FakeMemory(home)

    def put(self, x, offset=0):
        """Copy ``x`` as it is stored; return its buffer and address."""
        buffer = self.memory.empty(x.nbytes + 512)
        buffer[offset : offset + x.nbytes] = np.ascontiguousarray(x).view(np.uint8).ravel()
        return buffer, buffer.ctypes.data + offset

    def __call__(self, first, m, candidate, a="row", b="row", extra=0, offset=0):
        """Return (problem, offer or result) of rows from ``first`` on; ``candidate`` chooses one of the names."""
        x, y = self.a[first : first + m], self.b
        asked = pinned(m, self.n, self.k, self.kind, a=a, b=b)
        stored = x if a == "row" else x.T
        wide = np.zeros((stored.shape[0], stored.shape[1] + extra), x.dtype)
        wide[:, : stored.shape[1]] = stored
        alignment = offset & -offset or 256
        asked = replace(asked, a=padded(asked.a, extra, alignment))
        offer = answer(self.backend, asked)
        name = candidate(offer.names)
        kernel = self.backend.prepare(asked, name, offer.workspace)
        _of_a, at_a = self.put(wide, offset)
        _of_b, at_b = self.put(y if b == "row" else y.T)
        out, at = self.put(np.zeros((m, self.n), np.float32).astype(asked.out.dtype))
        self.home.cuda.complaints.clear()
        kernel.run(at_a, at_b, at, 1.0, 0.0, 0)
        assert self.home.cuda.complaints == []
        dtype = asked.out.dtype
        result = out[: m * self.n * dtype.itemsize].view(dtype).reshape(m, self.n)
        return asked, name, result.copy()


def bits(x):
    return x.view(np.uint16 if x.itemsize == 2 else np.uint32)


@pytest.mark.emulator
@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize(("n", "k"), [(72, 200), (71, 197)])
def test_a_row_has_the_same_bits_in_every_product(kind, n, k):
    """At every number of rows, position and layout of a, and through every lowering that is offered."""
    rng = random.Random(0)
    rows = Rows(kind, n, k, Home())
    asked, _, every = rows(0, ROWS, lambda names: names[0])
    expected = reference(rows.a, rows.b, model=problem_model(asked), out_dtype=asked.out.dtype)
    assert expected.ratio(every).max() <= 1
    for first, m, more in (
        (0, 1, {}), (3, 1, {"b": "col"}), (9, 5, {"extra": 3}), (60, 64, {"a": "col"}),
        (66, 64, {"b": "col", "offset": 16}), (1, 129, {"extra": 8, "offset": rows.a.itemsize}),
    ):  # fmt: skip
        for unswapped in (False, True):

            def candidate(names, unswapped=unswapped):
                some = [x for x in names if x.endswith("t") != unswapped]
                return rng.choice(some or names)

            _, name, some = rows(first, m, candidate, **more)
            np.testing.assert_array_equal(bits(some), bits(every[first : first + m]), f"{name}, {first}, {m}, {more}")


def in_two(table, parts):
    """Split K in two, whatever ``parts`` is."""
    numbers = np.flatnonzero(table.shape.cluster_k == 1)
    return numbers, np.full(len(numbers), 2)


@pytest.mark.emulator
def test_split_k_would_be_noticed(monkeypatch):
    """Were split-K ranked for pinned problems, few rows would have other bits than many."""
    rows = Rows("bfloat16", 72, 840, Home())
    _, _, every = rows(0, ROWS, lambda names: names[0])
    with monkeypatch.context() as patch:
        patch.setattr(choose, "_pinned", in_two)
        patch.setattr("gemmhub_hopper.backend._keeps", lambda choice, promise: True)
        patch.setattr("gemmhub_hopper.candidates.candidate.Choice.order", "wgmma.k16")
        _, name, few = rows(0, 5, lambda names: names[0])
    assert name.endswith("/2")
    assert (bits(few) != bits(every[:5])).any()


def with_a_lossy_row(home):
    """Return rows of a product with large elements before and after an element of the third becomes lossy."""
    rows = Rows("float32", 72, 200, home)
    rows.b *= np.float32(2.0**20)
    before = rows(0, 5, lambda names: names[0])[2]
    rows.a[2, 7] = 2.0**-140
    after = rows(0, 5, lambda names: names[0])[2]
    assert reference(rows.a[:5], rows.b, model=problem_model(pinned(5, 72, 200, "float32"))).ratio(after).max() <= 1
    others = [0, 1, 3, 4]
    return before[others], after[others]


@pytest.mark.emulator
def test_lossy_elements_of_another_row_change_no_bits():
    """Marks are those of a tile: what they select is replaced only where its own row and column have such elements."""
    before, after = with_a_lossy_row(Home())
    np.testing.assert_array_equal(bits(after), bits(before))


@pytest.mark.emulator
def test_recomputing_all_that_marks_select_would_be_noticed(monkeypatch, tmp_path):
    home = mutated(monkeypatch, tmp_path, "repair.cuh", ("return !kMarksLines ||", "return true ||"))
    before, after = with_a_lossy_row(home)
    assert (bits(after) != bits(before)).any()
