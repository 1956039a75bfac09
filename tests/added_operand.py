"""A program that uses an operand which is added to the table by one row, that of docs/adding-operands.md.

It runs in a copy of the package with that row. Each function ``check_...`` tries one thing; the output is JSON: where
the package is, and the names of these functions with their tracebacks, "" where all is right.
"""

from __future__ import annotations

import inspect
import json
import re
import traceback

import numpy as np
import pytest

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub._choice import registry
from gemmhub.backend import Offer, answer
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.operands import OPERANDS
from gemmhub.testing import Case, check, draw, matrix, taken
from gemmhub.testing.problems import operand, problem

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)


class Adds(gemmhub.Backend):
    """Adds a residual and a bias, and nothing else; it writes garbage into the result before it reads anything."""

    name = "adds"
    layout_sensitive = True
    forgets = False

    def __init__(self):
        self.takes = {"residual": frozenset({"matrix"}), "bias": frozenset({"n"})}

    def probe(self):
        return gemmhub.Ready((gemmhub.Device(),))

    def offer(self, problem):
        if not problem.alpha_is_one or problem.compute_dtype != F32 or problem.packed_by:
            return gemmhub.Refusal("it has no alpha, and float32 sums alone", "scale the operands")
        if dtypes.saturates(problem.out.dtype):
            return gemmhub.Refusal("it does not saturate", "choose another out_dtype")
        return Offer((gemmhub.Candidate(seconds=1e-9),))

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, residual=None, bias=None):
            out[...] = 77
            value = np.matmul(a.astype(np.float64), b.astype(np.float64))
            for term in (residual, bias):
                if term is not None and not (self.forgets and term is residual):
                    value = value + term.astype(np.float64)
            out[...] = value

        return gemmhub.Kernel(run, "adds")


class Plain(Adds):
    """The same for products without an epilogue, and the fastest by estimate."""

    name = "plain"

    def __init__(self):
        self.takes = {}

    def offer(self, problem):
        answer = super().offer(problem)
        return answer if isinstance(answer, gemmhub.Refusal) else Offer((gemmhub.Candidate(seconds=1e-12),))


for kind in (Adds, Plain):
    description = gemmhub.BackendDescription(kind.name, kind, "for tests", contract=2)
    registry.registry().add(description, kind.name, f"gemmhub-{kind.name}")


def operands(m=5, n=6, k=7, dtype=F32, batch=()):
    rng = np.random.default_rng()
    shapes = ((*batch, m, k), (*batch, k, n), (*batch, m, n), (n,))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def right(got, a, b, **given):
    compute = dtypes.compute_dtype(a.dtype, b.dtype, got.dtype)
    model = accuracy.error_model(a.dtype, b.dtype, got.dtype, compute)
    want = accuracy.reference(a, b, model=model, out_dtype=got.dtype, **given)
    return np.max(want.ratio(np.asarray(got)), initial=0) <= 1


def raises(error, text, call, *arguments, **given):
    with pytest.raises(error, match=re.escape(text)) as caught:
        call(*arguments, **given)
    return caught.value


def check_products():
    """First and later calls, each with another residual, or none, and of another size, dtype or layout."""
    for dtype in (F32, F16):
        for batch in ((), (3,)):
            for m in (5, 5, 9, 300):
                a, b, residual, bias = operands(m, dtype=dtype, batch=batch)
                wide = residual.astype(F32)
                for given in ({"residual": residual}, {"residual": residual, "bias": bias}, {"residual": wide}, {}):
                    for _ in range(2):
                        assert right(gemmhub.matmul(a, b, **given), a, b, **given)
                turned = np.asfortranarray(residual)
                assert right(gemmhub.matmul(a, b, residual=turned), a, b, residual=turned)
    vector = operands()[3]
    got = gemmhub.matmul(a := operands()[0], b := operands()[1], residual=vector)  # broadcast, as its row allows
    assert right(got, a, b, residual=vector)


def check_plans():
    a, b, residual, bias = operands()
    planned = gemmhub.plan(a, b, residual=residual)
    assert planned.decision.chosen == "adds"
    for _ in range(3):
        a, b, residual, bias = operands()
        assert right(planned(a, b, residual=residual), a, b, residual=residual)
    raises(InputError, "residual", planned, a, b)
    raises(InputError, "residual", planned, a, b, residual=np.asfortranarray(residual))
    raises((InputError, TypeError), "bias", planned, a, b, residual=residual, bias=bias)


def check_explanations():
    a, b, residual, _ = operands()
    plain, found = gemmhub.explain(a, b), gemmhub.explain(a, b, residual=residual)
    assert plain.chosen == "plain"
    assert found.chosen == "adds"
    refused = found["plain"]
    assert (refused.status, refused.reason) == ("refused", "it does not take a residual (residual=)")
    assert refused.remedy == "leave residual= out, or choose a backend that takes it"
    error = raises(NoBackendError, "residual=", gemmhub.matmul, a, b, residual=residual, backend="plain")
    assert error.decision["plain"].reason == refused.reason
    assert "residual" in inspect.signature(gemmhub.matmul).parameters


def check_mistakes():
    a, b, residual, _ = operands()
    for _ in range(2):  # the first call, and one after a call that was right
        raises(ShapeError, "residual", gemmhub.matmul, a, b, residual=residual[:, :4])
        raises(DTypeError, "residual", gemmhub.matmul, a, b, residual=residual.astype(np.float64))
        raises(InputError, "residual", gemmhub.matmul, a, b, residual=object())
        assert right(gemmhub.matmul(a, b, residual=residual), a, b, residual=residual)


def check_keys():
    """Problems with a residual, with another, and without one are different, and have different records."""
    plain = problem(5, 6, 7)
    other = [
        plain.having(residual=operand("float32", 5, 6)), plain.having(c=operand("float32", 5, 6)),
        problem(5, 6, 7, "float16", residual=operand("float16", 5, 6)),
        problem(5, 6, 7, "float16", residual=operand("float32", 5, 6)),
    ]  # fmt: skip
    assert len({plain, *other}) == len({x.key for x in (plain, *other)}) == 5
    assert other[0].having(residual=None) == plain
    assert not other[0].plain
    assert other[0].with_rows(9).operands["residual"].layout.rows == 9
    assert other[0].nbytes == plain.nbytes + 5 * 6 * 4


def check_shared_memory():
    """The result over the residual is made beside it."""
    a, b, residual, _ = operands(6, 6, 6)
    for out, given in ((residual, residual), (residual, residual[::-1]), (residual.T, residual)):
        residual[...] = operands(6, 6, 6)[2]
        before = given.copy()
        for call in (gemmhub.matmul, gemmhub.plan(a, b, out=out, residual=given)):
            residual[...] = before if given is residual else before[::-1]
            call(a, b, out=out, residual=given)
            assert right(out, a, b, residual=before)
    assert gemmhub.explain(a, b, out=residual, residual=residual).copies or not gemmhub.explain(a, b).copies


def check_kit():
    """The kit draws it, for backends that take it, and recognizes one that forgets it."""
    backend = Adds()
    backend.probe()
    assert any("residual" in case.operands for case in matrix())
    case = Case(m=9, n=10, k=11, operands={"residual": "matrix"})
    assert check(backend, case).accepted
    refused = taken(matrix(), {})
    assert sum("residual" in case.operands for case in refused) == 1
    rng = np.random.default_rng()
    drawn = [draw(rng, backend.takes) for _ in range(300)]
    assert {name for case in drawn for name in case.parts} == {"residual", "bias"}
    assert all(check(backend, case) for case in drawn[:40])
    backend.forgets = True
    error = raises(AssertionError, "a residual (residual=) did not enter", check, backend, case)
    assert "wrong result" in str(error)


def check_backends_before_it():
    """A backend that was written before the row is not asked."""
    asked = problem(5, 6, 7, residual=operand("float32", 5, 6))
    backend = NumpyBackend()
    backend.offer = lambda problem: Offer()
    if "residual" not in backend.takes:
        assert "does not take a residual" in answer(backend, asked).reason
    assert "does not take a residual" in answer(Plain(), asked).reason
    assert OPERANDS["residual"].noun == "a residual"


if __name__ == "__main__":
    outcomes = {}
    for name, function in [*globals().items()]:
        if name.startswith("check_"):
            try:
                function()
                outcomes[name] = ""
            except BaseException:
                outcomes[name] = traceback.format_exc()
    print(json.dumps([gemmhub.__file__, outcomes]))
