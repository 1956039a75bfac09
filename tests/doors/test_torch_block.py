"""Calls in a block of gemmhub.torch.use(): each is gemmhub's, or torch's as it is outside of the block."""

from __future__ import annotations

import warnings

import pytest

import gemmhub
from gemmhub._contractions import contract
from gemmhub.errors import InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import mode  # noqa: E402

linear = torch.nn.functional.linear


def whole(rng, *shape):
    """Small whole numbers, whose products in float32 are exact: results are compared bit by bit."""
    return torch.from_numpy(rng.integers(-4, 5, shape)).float()


@pytest.fixture
def calls(monkeypatch):
    """The options of every product that the block asks gemmhub for."""
    seen = []

    class Spy:
        @staticmethod
        def matmul(*operands, **options):
            seen.append(options)
            return gemmhub.matmul(*operands, **options)

    monkeypatch.setattr(mode, "api", Spy)
    monkeypatch.setattr(contract, "api", Spy)
    monkeypatch.setattr(mode.calls, "repeated_linear", lambda a, weight, options: None)  # each call reaches the spy
    return seen


TAKEN = {
    "matmul": lambda a, b, c: torch.matmul(input=a, other=b),
    "linalg.matmul": lambda a, b, c: torch.linalg.matmul(a, other=b),
    "matmul out": lambda a, b, c: torch.matmul(a, b, out=torch.empty(3, 5)),
    "matmul method": lambda a, b, c: a.matmul(other=b),
    "@ from the right": lambda a, b, c: torch.Tensor.__rmatmul__(b, a),
    "mm": lambda a, b, c: torch.mm(input=a, mat2=b, out=torch.empty(5, 3).t()),
    "mm method": lambda a, b, c: a.mm(mat2=b),
    "bmm": lambda a, b, c: torch.bmm(a[None], mat2=b[None]),
    "bmm method": lambda a, b, c: a[None].bmm(mat2=b[None]),
    "mv": lambda a, b, c: torch.mv(b.t(), vec=a[0]),
    "mv method": lambda a, b, c: b.t().mv(vec=a[0]),
    "addmm": lambda a, b, c: torch.addmm(mat2=b, input=c, mat1=a, alpha=2, beta=-1),
    "addmm method": lambda a, b, c: c.addmm(a, mat2=b, beta=0.5),
    "addmm out": lambda a, b, c: torch.addmm(c, a, b, out=torch.empty(3, 5)),
    "baddbmm": lambda a, b, c: torch.baddbmm(c[None], batch1=a[None], batch2=b[None], beta=0),
    "baddbmm method": lambda a, b, c: c[None].baddbmm(batch1=a[None], batch2=b[None], beta=0.5, alpha=2),
    "linear": lambda a, b, c: linear(input=a, weight=b.t(), bias=c[0]),
    "linear without bias": lambda a, b, c: linear(a, bias=None, weight=b.t()),
    "linear out": lambda a, b, c: linear(a, b.t(), c[0], out=torch.empty(3, 5)),
}

LEFT = {
    "alpha a bool": lambda a, b, c: torch.addmm(c, a, b, alpha=True),
    "alpha a string": lambda a, b, c: torch.addmm(c, a, b, alpha="2"),
    "alpha complex": lambda a, b, c: torch.addmm(c, a, b, alpha=1j),
    "alpha a tensor": lambda a, b, c: torch.addmm(c, a, b, alpha=torch.tensor(2.0)),
    "alpha beyond float32": lambda a, b, c: torch.addmm(c, a, b, alpha=1e300),
    "beta below float32": lambda a, b, c: torch.addmm(c, a, b, beta=1e-300),
    "alpha a long int": lambda a, b, c: torch.addmm(c.double(), a.double(), b.double(), alpha=10**30),
    "c of the wrong shape": lambda a, b, c: torch.addmm(c[:2], a, b),
    "c of another dtype": lambda a, b, c: torch.addmm(c.double(), a, b),
    "c whose gradient is 0": lambda a, b, c: torch.addmm(c.requires_grad_(), a, b, beta=0),
    "an operand twice": lambda a, b, c: torch.mm(a, b, input=a),
    "an operand missing": lambda a, b, c: torch.mm(mat2=b),
    "no operand": lambda a, b, c: torch.mm(),
    "an unknown keyword": lambda a, b, c: torch.mm(a, b, transpose=True),
    "a keyword of the function only": lambda a, b, c: a.mm(b, out=c),
    "NumPy's keyword": lambda a, b, c: torch.matmul(a, x2=b),
    "another overload": lambda a, b, c: torch.mm(a, b, torch.float32),
    "out_dtype": lambda a, b, c: torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32),
    "float32 by float64": lambda a, b, c: a @ b.double(),
    "float32 by complex64": lambda a, b, c: a @ torch.complex(b, b),
    "batches that do not broadcast": lambda a, b, c: a.expand(2, 3, 4) @ b.expand(3, 4, 5),
    "a list": lambda a, b, c: torch.matmul(a, [[1.0]] * 4),
    "out of another dtype": lambda a, b, c: torch.mm(a, b, out=torch.empty(3, 5, dtype=torch.float64)),
    "out whose elements share memory": lambda a, b, c: torch.mm(a, b, out=c[:1].expand(3, 5)),
    "out with operands that require grad": lambda a, b, c: torch.mm(a.requires_grad_(), b, out=c),
    "out that requires grad": lambda a, b, c: torch.mm(a, b, out=c.requires_grad_()),
    "einsum by keyword": lambda a, b, c: torch.einsum(equation="ij,jk", operands=(a, b)),
    "einsum of nothing": lambda a, b, c: torch.einsum(),
    "a parameter without memory": lambda a, b, c: linear(a, torch.nn.parameter.UninitializedParameter()),
    "on the device meta": lambda a, b, c: torch.zeros_like(torch.mm(a.to("meta"), b.to("meta").double()), device="cpu"),
}


def outcome(call, *given):
    try:
        return call(*given)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's: it resizes out, reads a deprecated overload
@pytest.mark.parametrize("name", [*TAKEN, *LEFT])
def test_each_way_to_call(name, calls, rng):
    call = {**TAKEN, **LEFT}[name]
    given = whole(rng, 3, 4), whole(rng, 4, 5), whole(rng, 3, 5)
    expected = outcome(call, *(x.clone() for x in given))
    with door.use():
        got = outcome(call, *(x.clone() for x in given))
    assert len(calls) == (name in TAKEN)
    if isinstance(expected, tuple):
        assert got == expected
        assert name in LEFT
    else:
        assert (got.dtype, got.requires_grad) == (expected.dtype, expected.requires_grad)
        assert torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's: this overload is deprecated
def test_the_overload_with_numbers_first(calls, rng):
    a, b, c = whole(rng, 3, 4), whole(rng, 4, 5), whole(rng, 3, 5)
    with door.use():
        assert torch.equal(torch.addmm(0.5, c, 2, a, b), 0.5 * c + 2 * (a @ b))
    assert len(calls) == 1  # the second


PRODUCTS = {
    "mm": lambda a, b: a.mm(b),
    "matmul": lambda a, b: a @ b,
    "matmul by a vector": lambda a, b: a @ b[0],
    "mv": lambda a, b: a.mv(b[0]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmm of a bias": lambda a, b: torch.addmm(b[0], a, b),
    "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
    "linear": lambda a, b: linear(a, b, a[0]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "einsum by a vector": lambda a, b: torch.einsum("ij,j->i", a, b[0]),
    "out": lambda a, b: torch.mm(a, b, out=torch.empty(3, 3, dtype=a.dtype)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("wanted", ["bfloat16", "float16"])
def test_autocast_gives_torchs_dtypes(name, wanted):
    """torch.autocast does not round the operands of torch.mv on CPUs; what torch refuses under it is refused."""
    kinds = ("float16", "bfloat16", "float32", "float64", "complex64")
    for left in kinds:
        for right in kinds:
            a, b = (torch.ones(3, 3, dtype=getattr(torch, kind)) for kind in (left, right))
            with torch.autocast("cpu", dtype=getattr(torch, wanted)):
                expected = outcome(PRODUCTS[name], a, b)
                with door.use():
                    got = outcome(PRODUCTS[name], a, b)
            if isinstance(expected, tuple):
                assert got == expected, (left, right)
            else:
                assert got.dtype is expected.dtype, (left, right)
                assert torch.equal(got, expected)


def test_blocks_in_compiled_functions(rng):
    """One graph, without a warning, for keywords, numbers that change, einsum and autocast."""
    a, b, c = whole(rng, 3, 4), whole(rng, 4, 5), whole(rng, 3, 5)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code.count("gemmhub.matmul"))
        return graph

    def f(a, b, c, alpha):
        with door.use(reproducible="run"):
            x = torch.addmm(c, mat1=a, mat2=b, alpha=alpha, beta=alpha)
            x = x + torch.baddbmm(c[None], batch1=a[None], batch2=b[None], beta=0)[0]
            x = x + torch.einsum("ij,jk->ik", a, b) + linear(input=a, weight=b.t(), bias=c[0]) + a.matmul(other=b)
            return x + torch.mv(a, b[:, 0])[:, None]

    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend=backend)
        for alpha in (1.5, 2.5, 2):
            assert torch.equal(compiled(a, b, c, alpha), f(a, b, c, alpha))
    assert set(graphs) == {6}

    def rounded(a, b):
        with torch.autocast("cpu", torch.bfloat16), door.use():
            return torch.mv(a, b[:, 0]), a @ b

    torch._dynamo.reset()
    dtypes = [x.dtype for x in torch.compile(rounded, fullgraph=True, backend=backend)(a, b)]
    assert dtypes == [torch.float32, torch.bfloat16]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="no backend is called 'nope'"):
            torch.compile(lambda x: door.use(backend="nope"), fullgraph=True, backend=backend)(a)


def test_a_wrong_keyword_is_named():
    with pytest.raises(TypeError, match=r"'dtype'; allowed: precision, reproducible, backend"):
        gemmhub.torch.use(dtype=3)
    with pytest.raises(TypeError, match=r"'precison'; did you mean precision=\?"):
        gemmhub.torch.use(precison="tf32")


def test_an_old_torch_is_refused(monkeypatch):
    """Its compiler passes over the block: what it compiles would be torch's without a word."""
    monkeypatch.setattr(mode, "_TRACED", False)
    with pytest.raises(InputError, match=r"use: torch .*whose compiler passes over such a block; allowed: torch 2.6"):
        door.use()


def test_subclasses_that_define_functions_see_torchs(calls, rng):
    """And nothing else: reading an attribute of such a tensor is a function, too."""

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            seen.append(function)
            return super().__torch_function__(function, types, arguments, named or {})

    a, b, seen = whole(rng, 3, 4), whole(rng, 4, 5), []
    for x, y in ((a.as_subclass(Logged), b), (a, b.as_subclass(Logged))):
        seen.clear()
        with door.use():
            result = torch.mm(x, y)
        assert (type(result), seen) == (Logged, [torch.mm])
        assert torch.equal(result.as_subclass(torch.Tensor), a @ b)
    assert not calls
