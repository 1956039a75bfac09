"""Packed operands: exact for every result dtype, and errors of packing."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted
from products import BF16, C64, C128, E4M3, E5M2, F16, F32, F64, I8, I32, I64, NATURAL, U32, U64, draw, ratio

import gemmhub
from gemmhub import Backend, BackendDescription, Device, Kernel, Ready, Refusal, dtypes
from gemmhub._choice import answers, records, registry
from gemmhub.errors import AllocationError, DTypeError, InputError, NoBackendError
from plugins import add

OUT = tuple(dtypes.as_dtype(name) for name in dtypes.STANDARD)


def results(a, b):
    """The product in every result dtype that there is."""
    for out_dtype in (None, *OUT):
        with suppress(DTypeError):
            yield gemmhub.matmul(a, b, out_dtype=out_dtype)


@pytest.mark.parametrize("left", [*NATURAL, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("right", [*NATURAL, E4M3, E5M2], ids=str)
def test_a_packed_product_is_right_in_every_result_dtype(left, right, rng):
    """Although packing only assumes a result dtype."""
    a, b = draw(rng, (3, 4), left), draw(rng, (4, 5), right)
    try:
        packed = gemmhub.pack(b, a_dtype=left)
    except NoBackendError:  # no BLAS multiplies such integers
        assert {left.kind, right.kind} <= set("biu")
        return
    with np.errstate(all="ignore"):
        found = list(results(a, packed))
        assert found
        for got in found:
            assert ratio(got, a, b, out_dtype=got.dtype) <= 1


@pytest.mark.parametrize(
    ("left", "b", "out_dtype"),
    [
        (I64, np.array([[2**62 + 1], [1]], U64), I64),
        (I8, np.array([[2**64 - 1], [2]], U64), U64),
        (U64, np.array([[2**62 + 1], [1]], I64), U64),
        (E4M3, np.array([[2**24 + 1], [2]], I32), F64),
        (E5M2, np.array([[2**32 - 1], [2]], U32), F64),
        (BF16, np.array([[2**24 + 1], [2]], U32), F64),
        (BF16, np.array([[2**24 + 1], [2]], U64), F64),
    ],
    ids=str,
)
def test_an_operand_that_the_assumed_result_would_round_is_packed_as_it_is(left, b, out_dtype):
    ones = np.ones((1, 2), left)
    packed = gemmhub.pack(b, a_dtype=left)
    assert gemmhub.matmul(ones, packed, out_dtype=out_dtype)[0, 0] == out_dtype.type(sum(map(int, b[:, 0])) % 2**64)


@pytest.mark.parametrize(("left", "right"), [(E4M3, C64), (C64, E4M3), (E5M2, C128), (BF16, E4M3)], ids=str)
def test_fp8_is_packed_for_complex_and_real_operands(left, right, rng):
    a, b = draw(rng, (3, 4), left), draw(rng, (4, 5), right)
    packed = gemmhub.pack(b, a_dtype=left)
    out_dtype = C64 if "c" in left.kind + right.kind else F16
    assert ratio(gemmhub.matmul(a, packed, out_dtype=out_dtype), a, b, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("backend", ["", 5, "a,b", ["numpy"]], ids=repr)
def test_backend_is_one_name(backend, rng):
    b = draw(rng, (4, 5), F32)
    with pytest.raises(InputError, match="the name of one backend") as raised:
        gemmhub.pack(b, backend=backend)
    assert raised.value.argument == "backend"


class Packer(Backend):
    name = "packer"
    error: Exception

    def probe(self):
        return Ready((Device(),))

    def offer(self, problem):
        return gemmhub.Offer()

    def prepare(self, problem, candidate, workspace_limit):
        raise NotImplementedError

    def pack(self, b, problem):
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("4 GiB"), AllocationError),
        (AllocationError("b needs 4 GiB on cuda:0"), AllocationError),
        (RuntimeError("no MemoryError, but a mistake"), NoBackendError),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_what_a_backend_raises_while_packing(error, expected, rng):
    backend = Packer()
    backend.error = error
    registry.registry().add(BackendDescription("packer", lambda: backend, "packs", contract=2), "packer", "packer")
    with pytest.raises(expected, match=str(error)):
        gemmhub.pack(draw(rng, (4, 5), F64), backend="packer")


# ---------------------------------------------------------------- which backend packs


class Packs(Scripted):
    """A backend with a packed form: a copy. ``unpacked`` and ``packed`` are its estimates of both products."""

    def __init__(self, name, unpacked, packed, layout_sensitive=False, **answers):
        def seconds(problem):
            return packed if problem.packed_by else unpacked

        super().__init__(name, layout_sensitive, seconds=seconds, **answers)

    def pack(self, b, problem):
        return self._answer("pack", b.copy(), b, problem)


@pytest.fixture
def pair(rng):
    return draw(rng, (6, 8), F32), draw(rng, (8, 4), F32)


def expected(a, packed, b):
    """Whether a product of a packed operand is that of ``b``, by every kind of call, and stays it."""
    for _ in range(2):
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, packed))
        assert gemmhub.spot_check(a, b, gemmhub.plan(a, packed)(a, packed))
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a, b))
    assert gemmhub.matmul(a, packed, out=out) is out
    assert gemmhub.spot_check(a, b, out)
    return True


@pytest.mark.parametrize("order", [("quick", "slow"), ("slow", "quick")])
def test_the_backend_with_the_fastest_packed_product_packs(pair, order):
    a, b = pair
    made = {"slow": Packs("slow", 1e-9, 8e-10), "quick": Packs("quick", 2e-9, 5e-10)}
    for name in order:
        add(made[name])
    packed = gemmhub.pack(b)
    assert packed.backend == "quick"
    assert made["slow"].calls["pack"] == 0
    assert expected(a, packed, b)


def test_a_backend_that_refuses_to_pack_is_followed_by_the_next(pair):
    b = pair[1]
    add(Packs("picky", 1e-9, 1e-10, pack=Refusal("b is too small", "multiply unpacked")))
    add(Packs("next", 2e-9, 9e-10))
    assert gemmhub.pack(b).backend == "next"
    with pytest.raises(NoBackendError) as error:
        gemmhub.pack(b, backend="picky")
    assert error.value.decision["picky"].reason == "b is too small"


@pytest.mark.parametrize("packs", ["", "picky", "slow"])
def test_b_is_kept_as_it_is_where_packing_would_be_slower(pair, packs):
    """Whether the best backend has no packed form, refuses this b, or has a slower one."""
    a, b = pair
    best = {
        "": Scripted("best", seconds=1e-9),
        "picky": Packs("best", 1e-9, 1e-10, pack=Refusal("b is too small", "multiply unpacked")),
        "slow": Packs("best", 1e-9, 2e-9),
    }
    add(best[packs])
    before = b.copy()
    packed = gemmhub.pack(b)
    assert packed.backend is None
    assert repr(packed) == "<PackedB 8x4 float32 kept as it is for a of float32>"
    b[...] = 0
    assert expected(a, packed, before)
    assert gemmhub.spot_check(2 * a, before, gemmhub.matmul(a, packed, alpha=2))  # by another backend
    found = gemmhub.explain(a, packed)
    assert (found.chosen, found.problem.packed_by) == ("best", None)
    assert found.packing == "b is kept as it is: no packed form is expected to be faster"
    assert gemmhub.spot_check(a, before, gemmhub.matmul(a, packed, backend="numpy"))  # any backend takes it
    if packs == "slow":
        assert gemmhub.pack(b, backend="best").backend == "best"
    else:
        with pytest.raises(NoBackendError, match="no backend packs this operand"):
            gemmhub.pack(b, backend="best")


def test_a_backend_that_is_asked_for_packs_however_slowly(pair):
    add(Packs("slow", 1.0, 2.0))
    assert gemmhub.pack(pair[1], backend="slow").backend == "slow"
    with gemmhub.use(backend="slow"):
        assert gemmhub.pack(pair[1]).backend == "slow"


def test_the_preferred_backend_packs_or_takes_b_as_it_is(pair, monkeypatch):
    add_all = [Packs("quick", 1e-9, 1e-10), Packs("mine", 1.0, 0.5), Packs("stiff", 1.0, 2.0)]
    for name, packer in (("mine", "mine"), ("stiff", None), ("quick", "quick")):
        monkeypatch.setenv("GEMMHUB_BACKEND", name)
        gemmhub.reload()
        for backend in add_all:
            add(backend)
        packed = gemmhub.pack(pair[1])
        assert packed.backend == packer
        assert gemmhub.explain(pair[0], packed).chosen == name


@pytest.mark.parametrize(
    ("unpacked", "packed", "packer"), [(None, None, "numpy"), (1e-9, None, "vague"), (None, 1e-9, "vague")]
)
def test_an_unknown_time_is_no_reason_to_leave_the_best_backend(pair, unpacked, packed, packer):
    add(Packs("vague", unpacked, packed))
    assert gemmhub.pack(pair[1]).backend == packer


def test_a_record_decides_who_packs(pair):
    """As for products of b itself. A time that was measured and an estimate are not compared."""
    a, b = pair
    add(Packs("quick", 1e-9, 1e-9))
    add(Packs("tuned", 1.0, 0.9))
    ready = {x.entry.name: x.ready for x in answers.eligible_backends(gemmhub.explain(a, b).problem)}
    problem = gemmhub.explain(np.ones((1024, 8), F32), b).problem
    records.put(records.record(problem, name, "default", 1e-10, ready[name]) for name in ("tuned",))
    records.put(records.record(problem, name, "default", 1e-4, ready[name]) for name in ("quick", "numpy"))
    assert gemmhub.explain(np.ones((1024, 8), F32), b).chosen == "tuned"
    assert gemmhub.pack(b, backend="tuned").backend == "tuned"


LAYOUTS = {
    "row": lambda b: b,
    "column": np.asfortranarray,
    "strided": lambda b: np.repeat(np.repeat(b, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda b: np.ascontiguousarray(b[::-1, ::-1])[::-1, ::-1],
    "repeated": lambda b: np.broadcast_to(b[:1], b.shape),
    "unaligned": lambda b: np.frombuffer(b"x" + b.tobytes(), b.dtype, offset=1).reshape(b.shape),
    "empty": lambda b: b[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, F16, I8], ids=str)
def test_b_is_kept_in_any_layout(layout, dtype, rng):
    """A backend that depends on strides gets a kernel for each of them."""
    seen = []

    def prepare(problem, candidate, limit):
        layout = problem.b.layout

        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            assert tuple(s // b.itemsize for s in b.strides) == (layout.row_stride, layout.col_stride)
            seen.append(b.copy())
            out[...] = alpha * np.matmul(a.astype(F64), b.astype(F64))

        return Kernel(run, "checks strides")

    add(Scripted("strict", True, seconds=1e-12, refusal=None, prepare=prepare))
    whole = draw(rng, (8, 4), dtype)
    for name in dict.fromkeys(("row", "column", layout)):
        b = LAYOUTS[name](whole)
        a, packed = draw(rng, (3, 8), dtype), gemmhub.pack(b)
        assert packed.backend is None
        seen.clear()
        gemmhub.matmul(a, packed)
        gemmhub.matmul(a, packed)
        assert all(np.array_equal(x, b) for x in seen)
        assert len(seen) == 2 or not b.size


def test_a_kept_operand_is_checked_like_a_packed_one(pair):
    a, b = pair
    add(Scripted("best", seconds=1e-12))
    packed = gemmhub.pack(b)
    with pytest.raises(InputError, match=r"packed for a of float32, a is float64.*pack again with a_dtype=float64"):
        gemmhub.matmul(a.astype(F64), packed)
    with pytest.raises(InputError, match="packed already"):
        gemmhub.pack(packed)
    planned = gemmhub.plan(a, packed)
    assert gemmhub.spot_check(a, 2 * b, planned(a, gemmhub.pack(2 * b)))
    stacked = np.stack([a, 2 * a])
    assert np.allclose(gemmhub.matmul(stacked, packed), stacked @ b, rtol=1e-5, atol=1e-5)
    assert gemmhub.tune(a, packed).best.seconds > 0
    assert gemmhub.compare(a, packed)


def test_a_kept_operand_and_one_that_was_packed_have_kernels_of_their_own(pair):
    a, b = pair
    best = Packs("best", 1e-9, 2e-9)
    add(best)
    kept, packed = gemmhub.pack(b), gemmhub.pack(b, backend="numpy")
    for operand in (kept, packed, kept, b, packed):
        before = best.calls["run"]
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, operand))
        assert best.calls["run"] == before + (operand is not packed)


def test_explain_reports_what_packing_costs(pair):
    a, b = pair
    add(Packs("quick", 4e-9, 1e-9))
    packed = gemmhub.pack(b)
    found = gemmhub.explain(a, packed)
    assert found.packing == "0.001 us estimated by quick; b itself 0.004 us estimated by quick"
    assert f"packed   {found.packing}" in str(found).splitlines()
    assert json.loads(json.dumps(found.to_dict()))["packing"] == found.packing
    assert found.packing in found._repr_html_()
    assert gemmhub.explain(a, b).packing == ""
    assert "packed:" not in str(gemmhub.explain(a, b))
    add(Scripted("newcomer", seconds=1e-10))
    found = gemmhub.explain(a, packed)
    assert (found.chosen, found["quick"].status) == ("quick", "chosen")
    assert found.packing == (
        "0.001 us estimated by quick; b itself 0.0001 us estimated by newcomer; "
        "b itself is faster: pass that for products of these sizes"
    )
    assert gemmhub.explain(np.stack([a, a]), packed).packing.startswith("0.001 us estimated by quick")
    with gemmhub.use(backend="newcomer"):
        assert gemmhub.explain(a, packed).packing == ""  # nothing can run it


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, I8], ids=str)
@pytest.mark.parametrize("m", [1, 16, 1024])
def test_numpys_packed_product_is_not_expected_to_be_slower(dtype, m, rng):
    b = draw(rng, (96, 80), dtype)
    packed = gemmhub.pack(b, m=m)
    assert packed.backend == "numpy"
    a = np.ones((m, 96), dtype)
    assert gemmhub.explain(a, packed)["numpy"].seconds <= gemmhub.explain(a, b)["numpy"].seconds
