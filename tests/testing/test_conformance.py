"""The conformance kit passes a right backend and catches each wrong one, with the right diagnosis."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import product

import conformance_backends as backends
import numpy as np
import pytest
from conformance_backends import RightBackend

from gemmhub._call import describe, options
from gemmhub.backend import Kernel
from gemmhub.capability import Device, Ready
from gemmhub.problem import GemmProblem, Operand
from gemmhub.testing import Case, ConformanceSuite, Memory, Unrepresentable, check, draw, matrix
from gemmhub.testing.axes import axes
from gemmhub.testing.case import broadcast, possible
from gemmhub.testing.cases import _matrix
from gemmhub.testing.operands import Operands, draw_values

pytest_plugins = ("pytester",)


class TestRightBackend(ConformanceSuite):
    backend = RightBackend


ONLY = {
    "PackedForOneResult": {"packed": True},
    "FoldsEmptyStacks": {"k": 0},
    "RoundsScalars": {"data": "tiny"},
    "BF16AsTF32": {"precision": "tf32"},
}
"""Fields of the only cases that such a backend may fail, where many cases precede the first of them that it does."""


PART = {
    "ExchangesGate": "activation", "OtherGelu": "activation", "WithoutScaleA": "scale_a", "WithoutScaleB": "scale_b",
    "WithoutScaleOut": "scale_out", "WithoutAmax": "amax", "NextBlock": "scale_b", "OneMatrixForAll": "scale_a",
    "LatePreActivation": "pre_activation", "LateAmax": "amax", "AmaxWithoutNaN": "amax",
    "WritesBesidePreActivation": "pre_activation", "DirectWithoutBias": "bias",
}  # fmt: skip
"""Operands, or "activation", of the only cases that such a backend may fail."""


def first_failure(backend: RightBackend) -> str:
    backend.probe()
    only = ONLY.get(type(backend).__name__, {})
    for case in matrix():
        if PART.get(type(backend).__name__, "precision") not in {*case.parts, "precision"}:
            continue
        if any(getattr(case, field) != value for field, value in only.items()):
            continue
        try:
            check(backend, case)
        except AssertionError as error:
            return str(error)
    return "no failure"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("Transposed", "wrong result.*likely: this is the transposed result"),
        ("IgnoresC", r"likely: beta \* c was not added"),
        ("UnscaledC", "likely: c was added without being multiplied by beta"),
        ("Tail", "likely: only the last column of 17 off: a tail.*never written"),
        ("ShortK", "wrong result"),
        ("StalePack", "packed.*wrong result"),
        ("SharedPack", "packed b, after the array it was made from was rewritten.*wrong result"),
        ("PackedForOneResult", r"packed b, m=17.*(wrong result|run\(\) raised ValueError)"),
        ("FoldsEmptyStacks", r"run\(\) raised ValueError: cannot reshape"),
        (
            "StaleTranspose",
            "rewritten in place, .*likely: .* values of b before they were rewritten.*cached by address",
        ),
        ("RoundsOperands", "likely: errors of the size that float16 or tf32 arithmetic makes; float32 at 'ieee'"),
        ("TruncatesOperands", "likely: errors of the size that float16 or tf32 arithmetic makes; float32 at 'ieee'"),
        ("TF32AsBF16x3", "likely: errors of the size that float16 or tf32 arithmetic makes; float32 at 'bf16x3'"),
        ("TwoProducts", "wrong result"),
        ("BF16AsTF32", "likely: errors of the size that bfloat16 arithmetic makes; float32 at 'tf32'"),
        ("SplitsInTwo", "likely: errors of the size that bf16x3 arithmetic makes; float32 at 'ieee'"),
        ("AccumulatesInHalf", "likely: errors of the size that float16 or tf32 arithmetic makes; float32"),
        ("RoundsScalars", "wrong result"),
        ("WritesOutside", r"wrote outside the result: 128 bytes .* \+256 bytes from element"),
        ("ChangesInput", r"run\(\) changed its input a"),
        ("NoRemedy", "refused without a remedy"),
        ("Lies", r"offer\(\) accepted, but prepare\(.*RuntimeError: no kernel for column-major"),
        ("Raises", r"offer\(\) raised ZeroDivisionError"),
        ("Fickle", r"offer\(\) answered Offer.*, then Refusal"),
        ("OnlyBiasN", "likely: the bias runs along the wrong axis"),
        ("DirectDiffers", 'reproducible="run" was accepted, but the results of equal calls differ in bits'),
        ("NotDeterministic", 'reproducible="run" was accepted, but the results of equal calls differ in bits'),
        ("ReadsPoison", "NaN was read from the result's old content"),
        ("SharedScratch", "called from 4 threads at once.*wrong result"),
        ("BadSecondCandidate", "candidate 'einsum'.*wrong result"),
        ("BoundlessWorkspace", r"offer\(\) raised TypeError: the workspace is None, not a number of bytes"),
        ("NegativeEstimate", r"candidate 'matmul' takes -1.0"),
        ("UndefinedEstimate", "candidate 'matmul' takes nan"),
        ("InfiniteEstimate", "candidate 'matmul' takes inf"),
        ("SeveralEstimates", r"candidate 'matmul' takes \(1e-06, 2e-06\)"),
        ("FalseOrder", "'matmul' and 'einsum' state the order 'chain.all', but bits differ"),
        ("SilentRemark", r"remark\('matmul'\) returned None"),
        ("OldRows", r"candidate 'matmul', with \d+ rows"),
        ("FlushesNaN", "likely: NaN or infinity did not propagate"),
        ("Saturates", "likely: NaN or infinity did not propagate"),
        ("DirectWrong", r"direct\(a, b, None\) returned float32"),
        ("FalselyInsensitive", "layout_sensitive is False"),
        ("ExchangesGate", "activation='swiglu.*wrong result"),
        ("OtherGelu", "likely: gelu was not applied: gelu_tanh was, in place of it"),
        ("WithoutScaleA", r"likely: quantization scales \(scale_a=\) did not enter"),
        ("WithoutScaleB", r"likely: quantization scales \(scale_b=\) did not enter"),
        ("WithoutScaleOut", r"likely: a scale of the result \(scale_out=\) did not enter"),
        ("WithoutAmax", "wrong amax.*1 of 1 elements are off"),
        ("NextBlock", "'scale_b': '.*wrong result"),
        ("OneMatrixForAll", "'scale_a': 'batch.*wrong result"),
        ("LatePreActivation", "wrong pre_activation"),
        ("LateAmax", "wrong amax"),
        ("AmaxWithoutNaN", "wrong amax"),
        ("WritesBesidePreActivation", r"wrote outside pre_activation: \d+ bytes"),
        ("DirectWithoutBias", r"direct_epilogue\(..., out=None\).*likely: a bias \(bias=\) did not enter"),
    ],
)
def test_catches(backend: str, message: str) -> None:
    failure = first_failure(getattr(backends, backend)())
    assert re.search(message, failure, re.DOTALL), failure
    assert failure.startswith("Case(m=")


def test_three_products_of_bfloat16_pass_where_they_are_allowed() -> None:
    assert first_failure(backends.ThreeProducts()) == "no failure"


def test_a_failure_repeats_from_its_message() -> None:
    failure = first_failure(backends.IgnoresC())
    case = eval(failure.partition("\n")[0])
    assert case in matrix()
    with pytest.raises(AssertionError) as again:
        check(backends.IgnoresC(), case)
    assert str(again.value) == failure


@pytest.mark.parametrize(("bits", "trap"), [(11, "tf32_trap"), (8, "bf16_trap"), (16, "bf16x2_trap")])
@pytest.mark.parametrize("mode", ["round", "truncate"])
def test_every_element_of_a_trap_catches_narrow_operands(bits: int, trap: str, mode: str) -> None:
    class Narrow(backends.RoundsOperands):
        def rounded(self, x: np.ndarray) -> np.ndarray:
            if bits == 16:
                return backends.SplitsInTwo().rounded(x)
            if mode == "round":
                self.bits = bits
                return super().rounded(x)
            return (x.copy().view(np.uint32) & np.uint32(0xFFFFFFFF << (24 - bits) & 0xFFFFFFFF)).view(np.float32)

    case = Case(m=31, n=33, k=40, data=trap, seed=int(np.random.default_rng().integers(2**31)))
    with pytest.raises(AssertionError, match="1023 of 1023 elements are off"):
        check(Narrow(), case)
    assert check(RightBackend(), case).worst < 1.0


def test_trap_values_are_what_they_promise() -> None:
    x = draw_values(np.random.default_rng(), (1000,), np.dtype(np.float32), "tf32_trap", False).astype(np.float64)
    for narrow in (np.rint(x * 2.0**10), np.floor(x * 2.0**10)):
        lost = x - narrow * 2.0**-10
        assert np.all((lost > 2.0**-12) & (lost < 2.0**-11))


def test_matrix_is_fixed_and_covers_its_axes() -> None:
    cases, every = matrix(), axes()
    assert cases == _matrix.__wrapped__((), ())
    assert len({str(case) for case in cases}) == len(cases)
    seen = [{name: set() for name in every} for _ in cases]
    for case, held in zip(cases, seen):
        for name, axis in every.items():
            held[name] = {i for i, v in enumerate(axis.values) if all(getattr(case, f) == x for f, x in v.items())}
    # c_dtype and bias_dtype are resolved or dropped when a case is made, and "shared" needs a batch.
    pairs = [x for x in product(every, every) if x[0] < x[1] and not {"c_dtype", "bias_dtype", "addend"} & set(x)]
    for x, y in pairs:
        for i, j in product(range(len(every[x].values)), range(every[y].main)):
            if possible({**every[x].values[i], **every[y].values[j]}):
                assert any(i in held[x] and j in held[y] for held in seen), (every[x].values[i], every[y].values[j])


def test_a_case_is_the_problem_that_gemmhub_would_describe() -> None:
    seed = int(np.random.default_rng().integers(2**31))
    rng = np.random.default_rng(seed)
    for case in [case for case in (*matrix()[::3], *(draw(rng) for _ in range(100))) if not case.packed]:
        x = Operands(case)
        given: dict[str, object] = {name: placed.array for name, placed in x.others.items()}
        if case.c == "out":
            given["c"] = x.out.array
        given.update(
            alpha=case.alpha, activation=case.activation, reproducible=case.reproducible, precision=case.precision
        )
        if case.c is not None:
            given["beta"] = case.beta
        described = describe.describe(x.a.array, x.b.array, x.out.array, options.request(given)).problem
        assert settled(described) == settled(x.problem), (seed, case)


def settled(problem: GemmProblem) -> GemmProblem:
    """With the strides of dimensions of size 1, which mean nothing, set to 0."""

    def operand(x: Operand) -> Operand:
        layout = x.layout
        rows, cols = (0 if layout.rows == 1 else layout.row_stride), (0 if layout.cols == 1 else layout.col_stride)
        return replace(x, layout=replace(layout, row_stride=rows, col_stride=cols))

    a, b, out = operand(problem.a), operand(problem.b), operand(problem.out)
    matrices = {name: operand(x) for name, x in problem.operands.items() if isinstance(x, Operand)}
    return replace(problem, a=a, b=b, out=out).having(**matrices)


class FakeDevice(Memory):
    """Host memory that passes for a device's, without negative strides."""

    device = Device("cuda", 1)
    stream = 7

    def view(self, buffer, dtype, shape, strides, offset):
        if min(strides, default=0) < 0:
            raise Unrepresentable("negative strides")
        return super().view(buffer, dtype, shape, strides, offset)


class OnDevice(RightBackend):
    def probe(self) -> Ready:
        return Ready((Device("cuda", 1),))

    def prepare(self, problem, candidate, workspace_limit) -> Kernel:
        assert problem.device == Device("cuda", 1)
        run = super().prepare(problem, candidate, workspace_limit).run

        def checked(*arguments, **operands) -> None:
            assert arguments[-1] == 7
            run(*arguments, **operands)

        return Kernel(checked, candidate)


class TestOnDevice(ConformanceSuite):
    backend = OnDevice
    memory = FakeDevice()
    cases = tuple(case for case in matrix()[::20] if "reversed" not in (case.a, case.b, case.out))
    random_problems = 5


@pytest.mark.parametrize(
    ("offset", "layout", "alignment"), [(0, "row", 256), (1, "row", 4), (3, "col", 4), (8, "row", 32)]
)
def test_alignment_on_devices(offset: int, layout: str, alignment: int) -> None:
    problem = Operands(Case(m=4, n=5, k=6, offset=offset, a=layout), FakeDevice()).problem
    assert problem.a.alignment == problem.out.alignment == alignment
    assert Operands(Case(m=4, n=5, k=6, offset=offset)).problem.a.alignment == 4


def test_an_empty_stack_that_writes_beside_the_result_passes() -> None:
    empty = Case(3, 4, 5, batch=(0,), b_batch="missing", packed=True, operands={"pre_activation": "matrix"})
    assert check(RightBackend(), empty).accepted


def test_check_needs_no_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import gemmhub.testing as t; print(len(t.matrix()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(matrix())


def test_unrepresentable_cases_raise() -> None:
    with pytest.raises(Unrepresentable):
        check(OnDevice(), Case(m=3, n=4, k=5, a="reversed"), FakeDevice())


SUITE = """
from gemmhub.testing import ConformanceSuite, matrix
from conformance_backends import {backend}

class TestIt(ConformanceSuite):
    backend = {backend}
    cases = matrix()[::{step}]
    random_problems = {random}
"""


def run_suite(pytester: pytest.Pytester, backend: str, *, step: int = 12, random: int = 3) -> pytest.RunResult:
    pytester.makepyfile(SUITE.format(backend=backend, step=step, random=random))
    return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider")


def test_suite_reports_a_wrong_backend(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMHUB_TESTING_SEED", "12345")
    result = run_suite(pytester, "IgnoresC")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] > 10
    assert outcomes["passed"] > 50
    result.stdout.fnmatch_lines(["*Case(m=*beta=*c=*", "*likely: beta [*] c was not added*"])


def test_suite_reports_a_dishonest_backend(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, "Lies", step=30)
    assert result.parseoutcomes()["failed"] > 1
    result.stdout.fnmatch_lines(["*offer() accepted, but prepare(*raised RuntimeError*"])


def test_random_problems_are_products_of_numpy() -> None:
    """The operands of a case broadcast to its batch, packed or not."""
    rng = np.random.default_rng()
    for case in (draw(rng) for _ in range(2000)):
        operands = [broadcast(case.batch, form)[0] for form in (case.a_batch, case.b_batch)]
        assert np.broadcast_shapes(*operands) == case.batch, case


def test_suite_names_the_seed_of_random_problems(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE.format(backend="NegativeEstimate", step=300, random=4) + "    seed = 977\n")
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-k", "random")
    result.stdout.fnmatch_lines(["*GEMMHUB_TESTING_SEED=977, draw 0*"])


def test_suite_skips_an_absent_backend(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, "Gone", step=100, random=2)
    assert set(result.parseoutcomes()) == {"skipped"}
    pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider").stdout.fnmatch_lines(
        ["*gone: no such device (buy one)*"]
    )


def test_suite_notices_that_everything_is_refused(pytester: pytest.Pytester) -> None:
    result = run_suite(pytester, "RefusesAll", step=100, random=1)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*right refuses every case of the matrix*"])


def test_nothing_is_imported_early():
    """The kit does not need pytest, nor an array library."""
    script = "import sys, gemmhub.testing; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "gemmhub.testing.check" in loaded
    assert not loaded & {"pytest", "torch"}
