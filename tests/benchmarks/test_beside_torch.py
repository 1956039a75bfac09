"""Timing and checks of the comparisons with torch.matmul, on CPU tensors with a rig that has set times."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.lib import beside_torch, host_time, results, torch_calls  # noqa: E402
from benchmarks.lib.drawn import Product, Sizes  # noqa: E402
from gemmhub.backend import Candidate, Offer  # noqa: E402

SECONDS = {"torch": 2e-6, "first": 4e-6, "second": 1e-6, "other": 8e-6}


class Rig:
    """Operands on the CPU; times by the order in which contenders are added."""

    def __init__(self, names):
        torch.manual_seed(0)
        self.sets = [(torch.randn(32, 64), torch.randn(64, 48), torch.empty(32, 48))]
        self.names, self.added = names, []

    def add(self, call):
        call(*self.sets[0])
        self.added.append(call)
        return len(self.added) - 1

    def medians(self, contenders, rounds):
        assert rounds == 3
        return [SECONDS[self.names[i]] for i in contenders]


def right(a, b, out):
    torch.matmul(a, b, out=out)


def wrong(a, b, out):
    torch.matmul(a, b, out=out)
    out[3, 5] += 1


@pytest.fixture
def asked():
    return beside_torch.problem(32, 48, 64, "nn", "float32")


def test_a_row(asked, capsys):
    rig = Rig(["other", "torch", "first", "second"])
    others = {"other": rig.add(right)}
    backend, offer = SimpleNamespace(name="mine"), Offer((Candidate("first", 3e-6), Candidate("second")))
    calls = {"first": right, "second": wrong}
    row, beside = beside_torch.compared(backend, asked, offer, "nn", rig, calls, "float32", 3, others)
    assert beside == {"other": 8e-6}
    assert (row["m"], row["n"], row["k"], row["order"]) == (32, 48, 64, "nn")
    assert (row["chosen"], row["best"], row["wrong"]) == ("first", "second", ["second"])
    assert (row["ratio"], row["best_ratio"]) == pytest.approx((0.5, 2.0))
    assert row["us"] == pytest.approx({"first": 4, "second": 1})
    assert (row["torch_us"], row["estimate_us"]) == pytest.approx((2, 3))
    printed = capsys.readouterr().out
    assert "ratio 0.500  first  best second 2.000  WRONG: second" in printed
    assert "mine" in printed
    beside_torch.print_summaries([row, {**row, "m": 2**20, "n": 2**10, "ratio": 0.8}])
    printed = capsys.readouterr().out
    assert (
        "ratio: from 1e+10 operations on geometric mean 0.800 over 1, worst 0.800; below geometric mean 0.500"
        in printed
    )


def test_what_is_left_unwritten_is_wrong():
    assert not beside_torch.close(lambda a, b, out: None, Rig([]), "float32")
    assert beside_torch.close(right, Rig([]), "float32")


def test_samples_of_the_host_are_of_one_call(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    found = host_time.samples({"slow": lambda: time.sleep(2e-3), "fast": lambda: None}, batches=3, batch=2)
    assert len(waited) == 6
    assert [len(times) for times in found.values()] == [3, 3]
    assert all(2000 <= us < 50_000 for us in found["slow"])
    assert max(found["fast"]) < min(found["slow"])


@pytest.mark.parametrize(("dtype", "epilogue"), [("float32", ""), ("bfloat16", "bias"), ("float32", "beta c")])
def test_torch_calls_are_right_by_float64(dtype, epilogue, monkeypatch):
    """torch's own call computes what float64 does; one that writes nothing does not."""
    real = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda *sizes, device: real(*sizes))
    product = Product("class", dtype, "nn", Sizes(1, 32, 48, 64), epilogue)
    kind = torch_calls.call_key(dtype)
    a, b, out = (torch.randn(*shape).to(kind) for shape in ((32, 64), (64, 48), (32, 48)))
    more = {"bias": torch.randn(48).to(kind), "activation": None} if epilogue == "bias" else {}
    more |= {"c": torch.randn(32, 48), "beta": 0.5} if epilogue == "beta c" else {}
    rig = SimpleNamespace(sets=[(a, b, out)])
    for call in torch_calls.torch_calls(product, more).values():
        assert torch_calls.right(product, rig, call, more)
    assert not torch_calls.right(product, rig, lambda a, b, out: None, more)


def test_a_report(tmp_path, capsys):
    """The table is printed, the result file written, and a wrong result is the exit code."""
    rows = [{"class": "squares", "torch_us": 8.0, "us": {"hub": 4.0}, "wrong": []}]
    options = SimpleNamespace(json=tmp_path / "rows.json", seed=3)
    assert torch_calls.report(rows, options) == 0
    assert "squares" in capsys.readouterr().out
    written = results.load(options.json)
    assert (written["seed"], written["rows"]) == (3, rows)
    assert torch_calls.report([{**rows[0], "wrong": ["hub"]}], SimpleNamespace(json=None)) == 1
