"""The torch engine: what it is offered for, and read-only operands. With torch where it is installed, else a fake."""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import torch_engine
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.probe import Machine

import gemmhub
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub._choice import records, registry
from gemmhub.problem import GemmProblem

BF16 = np.dtype(ml_dtypes.bfloat16)


class FakeTensor:
    """As much of a tensor as the engine uses."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def view(self, dtype: Any) -> FakeTensor:
        return FakeTensor(self.array.view(dtype))


def fake_torch() -> Any:
    """torch, as far as the engine goes: it warns of read-only arrays, and refuses what torch refuses."""
    torch: Any = types.ModuleType("torch")

    def from_numpy(array: np.ndarray) -> FakeTensor:
        if any(stride % array.itemsize or stride < 0 for stride in array.strides):
            raise ValueError("strides")
        if not array.flags.writeable:
            warnings.warn("The given NumPy array is not writable", UserWarning, stacklevel=1)
        return FakeTensor(array)

    def mm(a: FakeTensor, b: FakeTensor, out: FakeTensor) -> None:
        product = a.array.astype(np.float32) @ b.array.astype(np.float32)
        np.copyto(out.array, product, casting="unsafe")

    def _int_mm(a: FakeTensor, b: FakeTensor, out: FakeTensor) -> None:
        if not out.array.flags.c_contiguous:
            raise RuntimeError("Expected result to be contiguous.")
        np.matmul(a.array, b.array, out=out.array, dtype=np.int32)

    torch.from_numpy, torch.mm, torch._int_mm = from_numpy, mm, _int_mm
    torch.bfloat16, torch.__version__ = BF16, "0.0"
    return torch


@pytest.fixture(params=["fake", "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuBackend]:
    """A backend that finds torch in its process."""
    if request.param == "fake":
        monkeypatch.setitem(sys.modules, "torch", fake_torch())
    elif importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    else:
        import torch

        monkeypatch.setitem(sys.modules, "torch", torch)
        torch.set_warn_always(True)
    yield CpuBackend(Machine(2, torch="0.0"), by_cost=False)
    if request.param == "torch":
        sys.modules["torch"].set_warn_always(False)


def described(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None, **options: Any) -> GemmProblem:
    return describe(a, b, out, request(options)).problem


def placed(x: np.ndarray, how: str) -> np.ndarray:
    """``x`` in an array that lies otherwise, or is read-only."""
    if how == "padded":
        memory = np.zeros((x.shape[0], x.shape[1] + 8), x.dtype)
        memory[:, :-8] = x
        return memory[:, :-8]
    if how == "column-major":
        return np.asfortranarray(x)
    if how == "strided":
        memory = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
        memory[:, ::2] = x
        return memory[:, ::2]
    if how == "unaligned":
        memory = np.zeros(x.nbytes + 1, np.uint8)
        view = memory[1:].view(x.dtype).reshape(x.shape)
        view[...] = x
        return view
    if how == "field":
        record = np.zeros(x.shape, [("before", "i1"), ("x", x.dtype)])
        record["x"] = x
        return record["x"]
    x = x.copy()
    x.flags.writeable = how != "read-only"
    return x


LAYOUTS = ["dense", "padded", "column-major", "strided", "unaligned", "field"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", [*LAYOUTS, "read-only"])
def test_what_it_is_offered_for_it_runs(engine: CpuBackend, dtype: Any, layout: str, out_layout: str) -> None:
    """Whatever ``out`` and the operands are like, without a warning; nothing beside ``out`` is written."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((40, 24), (24, 32)))
    exact = a.astype(np.float32) @ b.astype(np.float32)
    expected = exact.astype(np.int32 if dtype == np.int8 else dtype)
    left, right = placed(a, layout), placed(b, layout)
    out = placed(np.zeros_like(expected), out_layout)
    problem = described(left, right, out)
    offered = "torch" in engine.offer(problem).names
    awkward = {"unaligned", "field"} & {layout, out_layout} if dtype != np.int8 else {out_layout} - {"dense"}
    assert offered == (not awkward)
    if offered:
        engine.prepare(problem, "torch", 1 << 26).run(left, right, out, 1, 0, None)
        assert np.array_equal(out, expected)
        memory = out if out.base is None else out.base
        assert np.count_nonzero(memory) == np.count_nonzero(expected) or out_layout == "column-major"
    assert np.array_equal(left, a)


def test_what_it_is_not_offered_for_is_refused(engine: CpuBackend) -> None:
    a = np.zeros((32, 32), np.int8)
    refused = engine.prepare(described(a, a, placed(np.zeros((32, 32), np.int32), "padded")), "torch", 1 << 26)
    assert isinstance(refused, gemmhub.Refusal)
    assert refused.reason
    assert refused.remedy


def test_floats_that_must_be_deterministic_are_not_its_own(engine: CpuBackend) -> None:
    for dtype, offered in ((np.float16, False), (BF16, False), (np.int8, True)):
        a = np.zeros((32, 32), dtype)
        assert ("torch" in engine.offer(described(a, a, deterministic=True)).names) == offered


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_a_record_made_with_a_dense_result(engine: CpuBackend, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves calls with a padded, a column-major or a read-only operand as well, or is passed over there."""
    description = gemmhub.BackendDescription("cpu", lambda: engine, "", contract=2)
    monkeypatch.setattr(registry.Registry, "_discover", lambda found: found.add(description, "cpu", "gemmhub-cpu"))
    gemmhub.reload()
    a = np.ones((256, 256), dtype)
    status = next(s for s in gemmhub.backends() if s.name == "cpu")
    problem = described(a, a)
    path = records.path()
    assert path is not None
    records.write(path, [_record(problem, status.versions, engine)])
    gemmhub.reload()
    assert gemmhub.explain(a, a)["cpu"].candidate == "torch"
    fixed = placed(a, "read-only")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in ("dense", "padded", "column-major", "strided"):
            for size in (256, 250):  # the end of the bucket, which candidates are ranked at, and another size in it
                out = placed(np.zeros((size, size), np.int32 if dtype == np.int8 else dtype), how)
                for x in (a[:size, :size], fixed[:size, :size]):
                    assert (gemmhub.matmul(x, x, out=out) == size).all()


def _record(problem: GemmProblem, versions: dict[str, str], engine: CpuBackend) -> records.Record:
    ready = engine.probe()
    assert isinstance(ready, gemmhub.Ready)
    return records.Record(
        problem=problem.key, backend="cpu", candidate="torch", device=str(problem.device), versions=versions,
        seconds=1e-9, recorded="2026-01-01T00:00:00+00:00", threads=ready.threads(),
    )  # fmt: skip


def test_a_read_only_view_keeps_its_memory() -> None:
    x = np.arange(6.0)
    x.flags.writeable = False
    view = np.asarray(torch_engine._Writable(x))
    assert view.flags.writeable
    assert np.shares_memory(view, x)
    del x
    assert (view == np.arange(6.0)).all()
