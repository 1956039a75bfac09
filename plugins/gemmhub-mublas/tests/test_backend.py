"""The calls of muBLAS, the refusals, and the remarks of its backend."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from gemmhub_mublas import probe
from gemmhub_mublas.backend import MublasBackend
from gemmhub_mublas.enums import ATTESTED, Codes
from gemmhub_mublas.library import Library
from gemmhub_mublas.probe import Machine
from gemmhub_musa import runtime
from gemmhub_musa.testing import Operands, bias, operand, problem, strided

from gemmhub.backend import Offer, answer
from gemmhub.capability import Device, Ready, Refusal
from gemmhub.testing.answers import honest
from gemmhub.testing.problems import unsigned_bytes

LIMIT = 64 * 2**20
PUBLIC = Codes.of(None, "mublas.h is not here")


@pytest.fixture(scope="module")
def backend():
    made = MublasBackend()
    assert isinstance(made.probe(), Ready)
    return made


def with_codes(codes):
    """A backend that believes ``codes``."""
    found = runtime.machine()
    return MublasBackend(lambda: Machine(found, Library(found.sdk.load("mublas"), codes)))


def header_codes():
    return dict(probe.codes(runtime.machine().sdk).values)


def refused(backend, asked):
    found = answer(backend, asked)
    assert isinstance(found, Refusal)
    honest(found, "offer()")
    return f"{found.reason}; {found.remedy}"


def test_ready(backend):
    found = backend.probe()
    assert Device("musa", 0) in found.devices
    assert set(found.versions) == {"mublas", "musa runtime", "musa driver", "device", "multiprocessors"}
    assert all(found.versions.values())
    assert "libmublas" in found.features[0]


def test_registered():
    """The entry point's module describes both backends."""
    (point,) = [x for x in importlib.metadata.entry_points(group="gemmhub") if x.name == "mublas"]
    found = point.load().gemmhub_backends()
    assert [(x.name, x.device_types, x.contract) for x in found] == [
        ("mublas", ("musa",), 2),
        ("mublaslt", ("musa",), 2),
    ]
    assert [x.load().name for x in found] == ["mublas", "mublaslt"]


def test_describing_imports_nothing_heavy():
    code = "import sys, gemmhub_mublas.plugin as p; p.gemmhub_backends(); print('gemmhub_musa' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(("dtype", "out", "names"), [
    ("float32", None, ["sgemm", "ex"]), ("float64", None, ["dgemm", "ex"]), ("complex64", None, ["cgemm"]),
    ("complex128", None, ["zgemm"]), ("float16", None, ["ex", "ex_tensor_op"]),
    ("float16", "float32", ["ex", "ex_tensor_op"]), ("bfloat16", None, ["ex", "ex_tensor_op"]),
    ("bfloat16", "float32", ["ex", "ex_tensor_op"]), ("int8", "int32", ["ex", "ex_tensor_op"]),
])  # fmt: skip
def test_candidates(backend, dtype, out, names):
    assert list(backend.offer(problem(dtype=dtype, out=out)).names) == names


def test_float32_uses_tf32_only_where_it_is_allowed(backend):
    full, split = backend.offer(problem()), backend.offer(problem(precision="bf16x3"))
    assert not any("tf32" in name for name in full.names)
    assert split.names == full.names
    assert split.remark(full.first.name) == full.remark(full.first.name)
    for precision in ("tf32", "bf16"):
        offer = backend.offer(problem(precision=precision))
        assert list(offer.names) == ["ex_tf32", "ex", "sgemm"]
        assert "in full precision" in offer.remark("sgemm")


def test_even_batches(backend):
    names = list(backend.offer(problem(batch=(2, 3))).names)
    assert names == ["sgemm_strided", "ex_strided", "sgemm_batched", "ex_batched"]


def test_uneven_batches(backend):
    few = replace(problem(batch=(2, 3)), a=strided("float32", 16, 16, 16, 1, (2, 3), (5000, 256)))
    offer = backend.offer(few)
    assert list(offer.names) == ["sgemm_strided", "ex_strided", "sgemm_batched", "ex_batched"]
    assert "2 launches" in offer.remark("sgemm_strided")
    many = replace(problem(batch=(20,)), a=strided("float32", 16, 16, 16, 1, (20,), (-256,)))
    offer = backend.offer(many)
    assert list(offer.names)[:2] == ["sgemm_batched", "ex_batched"]
    assert "addresses copied" in offer.remark("sgemm_batched")
    assert "20 launches" in offer.remark("sgemm")


@pytest.mark.parametrize(("asked", "words"), [
    (problem(bias=bias()), "does not take a bias"), (problem(activation="relu"), "no activation relu; apply it"),
    (problem(dtype="float16", out="bfloat16"), "give out_dtype= one of float16, float32"),
    (problem(dtype="int32"), "no product of int32"), (problem(2**31), "allows 2147483647"),
    (problem(index=7), "on musa:7"), (replace(problem(), device=Device("cuda")), "on cuda:0"),
    (problem(c=operand("float64", 16, 16)), "convert c to float32"),
])  # fmt: skip
def test_refusals(backend, asked, words):
    assert words in refused(backend, asked)


def test_preparing_what_is_refused(backend):
    assert "c is float64" in backend.prepare(problem(c=operand("float64", 16, 16)), "sgemm", LIMIT).reason
    assert "no candidate 'dgemm' here; allowed: sgemm, ex" in backend.prepare(problem(), "dgemm", LIMIT).reason
    no = backend.prepare(problem(k=0), "sgemm", 10)
    assert "mublas's sgemm needs" in no.reason
    assert "10 are allowed" in no.reason
    assert "raise the setting workspace_mib" in no.remedy


def test_nothing_to_do(backend):
    asked = problem(m=0)
    assert isinstance(backend.offer(asked), Offer)
    assert list(backend.offer(asked).names) == ["nothing"]
    kernel = backend.prepare(asked, "nothing", 0)
    kernel.run(0, 0, 0, 1, 0, 0)
    assert kernel.workspace_bytes == 0


def test_the_copy_of_c_is_reported(backend):
    assert backend.offer(problem()).first.copies == ()
    (copy,) = backend.offer(problem(batch=(3,), c=operand("float32", 16, 16, batch=(3,)))).first.copies
    assert (copy.operand, copy.nbytes) == ("c", 3 * 16 * 16 * 4)
    assert "unless it is out itself" in copy.why


def test_estimates_grow(backend):
    def seconds(asked):
        return backend.offer(asked).first.seconds

    small, large = seconds(problem()), seconds(problem(4096, 4096, 4096))
    assert 0 < small < large
    assert seconds(problem(4096, 4096, 4096, precision="tf32")) < large
    assert seconds(problem(c=operand("float32", 16, 16))) > small


def test_orders_of_addition_are_known_for_integers_only(backend):
    for dtype, out, order in (("float32", None, None), ("float16", None, None), ("int8", "int32", "exact")):
        assert {each.order for each in backend.offer(problem(dtype=dtype, out=out)).candidates} == {order}


def test_without_a_header_the_public_numbers_run(backend):
    """float16 by its public numbers; one dtype's functions need no type numbers at all."""
    bare = with_codes(PUBLIC)
    assert list(bare.offer(problem()).names) == ["sgemm"]
    assert list(bare.offer(problem(dtype="float16")).names) == ["ex", "ex_tensor_op"]
    assert list(bare.offer(problem(precision="tf32")).names) == ["sgemm"]
    for dtype, out, name in (
        ("bfloat16", None, "MUSA_R_16BF"),
        ("int8", "int32", "MUSA_R_8I"),
        ("float16", "float32", "_32F"),
    ):
        text = refused(bare, problem(dtype=dtype, out=out))
        assert name in text
        assert "not public, and mublas.h is not here" in text
        assert "install the MUSA SDK's headers" in text
    assert "as there is no header" in bare.offer(problem()).remark("sgemm")
    assert "public numbers only" in bare.probe().features[-1]
    asked = problem(dtype="float16")
    operands = Operands(asked)
    got = operands.run(bare.prepare(asked, "ex", LIMIT).run)
    assert np.array_equal(got, operands.wide.astype(np.float16))


def test_headers_that_lack_a_name(backend):
    codes = header_codes()
    del codes["MUSA_R_16BF"]
    assert "the installed mublas.h has no MUSA_R_16BF" in refused(
        with_codes(Codes.of(codes)), problem(dtype="bfloat16")
    )


def test_headers_that_contradict_what_is_public():
    codes = Codes.of({**header_codes(), "MUBLAS_COMPUTE_32F": 99})
    assert codes.surprises() == ["MUBLAS_COMPUTE_32F is 99 in mublas.h, 68 in public programs"]
    assert Codes.of(header_codes()).surprises() == []


def test_public_numbers_are_those_of_the_header(home):
    """The simulated headers have every attested number."""
    codes = header_codes()
    assert {name: codes[name] for name, value in ATTESTED.items() if value is not None} == PUBLIC.values


def test_swapped_operations_are_detected(backend):
    """With wrong numbers the first product is wrong, or refused by the library; the user's is never computed."""
    codes = header_codes()
    codes["MUBLAS_OP_N"], codes["MUBLAS_OP_T"] = codes["MUBLAS_OP_T"], codes["MUBLAS_OP_N"]
    text = refused(with_codes(Codes.of(codes)), problem())
    assert "product" in text
    assert "sgemm" in text.lower()


def test_wrong_numbers_are_shown(backend, monkeypatch):
    """A library that gives other numbers: both are in the refusal."""
    from gemmhub_mublas import launch

    right = launch.scalar
    monkeypatch.setattr(launch, "scalar", lambda value, compute: right(3 * value, compute))
    text = refused(MublasBackend(), problem())
    assert "is wrong: NumPy has [[" in text
    assert "it has [[" in text


def test_tf32_in_disguise_is_found_out(backend):
    """A library whose float32 products are tf32: small whole numbers do not show it, the second proof does."""
    codes = header_codes()
    codes["MUBLAS_COMPUTE_32F"] = codes["MUBLAS_COMPUTE_32F_FAST_TF32"]
    disguised = with_codes(Codes.of(codes))
    assert list(disguised.offer(problem()).names) == ["sgemm"]


def test_proofs_are_made_once(backend, sim):
    """Another size needs none: no new handle, no allocation."""
    assert isinstance(backend.offer(problem(30, 31, 32)), Offer)
    sim.musaSimInject(b"musaMalloc")
    assert isinstance(backend.offer(problem(33, 31, 32)), Offer)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_no_memory_for_the_proof_is_no_verdict(backend, sim, dtype):
    fresh = MublasBackend()
    fresh.probe()
    sim.musaSimInject(b"musaMalloc")
    assert "could not be tried" in refused(fresh, problem(dtype=dtype))
    sim.musaSimInject(b"")
    assert isinstance(fresh.offer(problem(dtype=dtype)), Offer)


def test_unsigned_bytes_are_refused(backend):
    for asked in unsigned_bytes(problem(16, 16, 16, "int8", "int32", b="col")):
        assert "no product of" in refused(backend, asked)
