"""Products that torch traces, compiles, exports and transforms: what they are without that, in one graph."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from products import ratio

import gemmhub
from gemmhub.errors import GemmhubError, InputError

torch = pytest.importorskip("torch", minversion="2.6", reason="torch is not installed")
import gemmhub.torch  # noqa: E402  (it defines torch.ops.gemmhub)

func = torch.func


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    """Import what torch's compiler needs: torch warns of itself while it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def draw(rng, *shape, dtype=None):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype or torch.float32)


@pytest.fixture
def operands(rng):
    return draw(rng, 5, 8), draw(rng, 8, 6), draw(rng, 6), draw(rng, 5, 6)


def full(x, w, bias, c):
    return gemmhub.matmul(x, w, bias=bias, c=c, alpha=2.0, beta=-0.5, activation="gelu", out_dtype="float32")


def close(x, y):
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph(backend, operands):
    compiled = torch.compile(full, fullgraph=True, backend=backend)
    close(compiled(*operands), full(*operands))
    ours, theirs = ([x.clone().requires_grad_() for x in operands] for _ in range(2))
    compiled(*ours).sum().backward()
    full(*theirs).sum().backward()
    for x, y in zip(ours, theirs):
        close(x.grad, y.grad)


def test_sizes_are_symbols(rng, operands):
    """One compilation for all sizes, forward and backward."""
    _, w, bias, _ = operands
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def f(x, w):
        return gemmhub.matmul(x, w, bias=bias, activation="relu")

    for m in (3, 5, 17, 64):
        x, weight = draw(rng, m, 8).requires_grad_(), w.clone().requires_grad_()
        got = f(x, weight)
        close(got, torch.relu(x @ weight + bias))
        got.sum().backward()
        assert x.grad.shape == x.shape
    assert counter.frame_count == 1


def test_out_in_a_graph(operands):
    x, w, _, c = operands

    @torch.compile(fullgraph=True)
    def f(x, w, out):
        gemmhub.matmul(x, w, out=out, c=out, beta=1)
        return out + 1

    out = c.clone()
    result = f(x, w, out)
    close(out, c + x @ w)
    close(result, out + 1)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's, of its own look at gradients
def test_operators_are_what_torch_checks_them_for(operands):
    x, w, bias, c = (x.requires_grad_() for x in operands)
    passed = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}
    for activation in (None, "relu", "gelu"):
        given = {"c": c, "bias": bias, "alpha": 2.0, "beta": -1.0, "activation": activation}
        found = torch.library.opcheck(torch.ops.gemmhub.matmul.default, (x, w), given)
        assert found == dict.fromkeys(passed, "SUCCESS")
    x, w, bias, c = (x.detach() for x in (x, w, bias, c))
    given = {"c": c, "bias": bias, "alpha": 2.0, "beta": 1.0}
    found = torch.library.opcheck(torch.ops.gemmhub.matmul_out.default, (x, w, torch.zeros(5, 6)), given)
    assert found == dict.fromkeys(passed, "SUCCESS")


@pytest.mark.parametrize(
    "shapes", [((5, 8), (8,)), ((8,), (8, 6)), ((8,), (8,)), ((2, 5, 8), (8, 6)), ((2, 1, 5, 8), (3, 8, 6))], ids=str
)
def test_fake_results_are_like_real_ones(shapes, rng):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = (draw(rng, *shape) for shape in shapes)
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x, y = a.to(dtype), b.to(dtype)
        real = gemmhub.matmul(x, y)
        mode = FakeTensorMode()
        fake = gemmhub.matmul(mode.from_tensor(x), mode.from_tensor(y))
        meta = gemmhub.matmul(x.to("meta"), y.to("meta"))
        for found in (fake, meta):
            assert (found.shape, found.dtype, found.stride()) == (real.shape, real.dtype, real.stride())


def test_exported_programs(operands):
    x, w, bias, c = operands

    class Model(torch.nn.Module):
        def forward(self, x):
            return full(x, w, bias, c)

    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Model(), (x,))
    assert "gemmhub.matmul" in str(program.graph)
    close(program.module()(x), full(*operands))

    class Plain(torch.nn.Module):
        def forward(self, x):
            return gemmhub.matmul(x, w)

    program = torch.export.export(Plain(), (x,), dynamic_shapes=({0: rows},))
    for m in (2, 9):
        close(program.module()(x[:1].expand(m, -1)), x[:1].expand(m, -1) @ w)


def test_packages_without_python_are_refused(operands, tmp_path):
    x, w, *_ = operands

    class Model(torch.nn.Module):
        def forward(self, x):
            return gemmhub.matmul(x, w)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Model(), (x,))
        with pytest.raises(Exception, match="AOTInductor cannot package gemmhub's products"):
            torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    assert issubclass(GemmhubError, Exception)


def test_what_decides_and_plans_leaves_the_graph(operands):
    """Without a warning, and without gemmhub's functions being compiled."""
    x, w, *_ = operands
    planned = gemmhub.plan(x, w)
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter)
    def f(x):
        return planned(x, w) + 1, gemmhub.explain(x, w).chosen

    result, chosen = f(x)
    close(result, x @ w + 1)
    assert chosen == "numpy"
    assert counter.frame_count <= 2


def test_mistakes_in_a_graph(operands):
    x, w, *_ = operands
    for f, words in (
        (lambda x: gemmhub.matmul(x, torch.ones(3, 3)), "as many columns of a as rows of b"),
        (lambda x: gemmhub.matmul(x, w, nonsense=1), "nonsense"),
        (lambda x: gemmhub.matmul(x, w, stream=3), "stream"),
        (lambda x: gemmhub.matmul(x, w, c=x @ w), "beta"),
        (lambda x: gemmhub.matmul(x, w.to(torch.float8_e5m2)), "out_dtype"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=words):
            torch.compile(f, fullgraph=True, backend="eager")(x)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 1), (0, 2), (1, 0)], ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_mapped(in_dims, activation, rng):
    sizes = {0: (4, 5, 8), 1: (5, 4, 8), 2: (5, 8, 4), None: (5, 8)}
    a = draw(rng, *sizes[in_dims[0]])
    b = draw(rng, *{0: (4, 8, 6), 1: (8, 4, 6), 2: (8, 6, 4), None: (8, 6)}[in_dims[1]])
    bias, c = draw(rng, 6), draw(rng, 4, 6)

    def f(a, b, c, x):
        return gemmhub.matmul(a, b, c=c, beta=2, bias=bias, activation=activation), gemmhub.matmul(a, b, bias=x)

    def one(i, x, dim):
        return x if dim is None else x.select(dim, i)

    got, biased = func.vmap(f, in_dims=(*in_dims, 0, 0))(a, b, c, c)
    for i in range(4):
        want, want_biased = f(one(i, a, in_dims[0]), one(i, b, in_dims[1]), c[i], c[i])
        close(got[i], want)
        close(biased[i], want_biased)


@pytest.mark.parametrize("shapes", [((8,), (8, 6)), ((5, 8), (8,)), ((8,), (8,)), ((2, 5, 8), (8, 6))], ids=str)
def test_mapped_vectors_and_batches(shapes, rng):
    a, b = draw(rng, 4, *shapes[0]), draw(rng, 4, *shapes[1])
    for dims in ((0, None), (None, 0), (0, 0)):
        x, y = (x if dim == 0 else x[0] for x, dim in zip((a, b), dims))
        close(func.vmap(gemmhub.matmul, in_dims=dims)(x, y), func.vmap(torch.matmul, in_dims=dims)(x, y))


def test_transforms_of_transforms(operands):
    x, w, *_ = operands

    def ours(w):
        return gemmhub.matmul(x, w, activation="gelu").pow(3).sum()

    def theirs(w):
        return torch.nn.functional.gelu(x @ w).pow(3).sum()

    transforms = (
        func.grad, func.hessian, lambda f: func.jacfwd(func.grad(f)),
        lambda f: func.grad(lambda w: func.grad(f)(w).sum()),
        lambda f: torch.compile(func.grad(f), fullgraph=True), lambda f: func.jacrev(func.jacrev(f)),
        lambda f: func.grad(lambda w: func.jvp(f, (w,), (w,))[1]),
    )  # fmt: skip
    for transform in transforms:
        np.testing.assert_allclose(transform(ours)(w).numpy(), transform(theirs)(w).numpy(), rtol=1e-3, atol=1e-3)
    per_row = func.vmap(func.grad(lambda w, r: gemmhub.matmul(r, w).square().sum()), in_dims=(None, 0))(w, x)
    close(per_row, 2 * torch.einsum("ri,rj->rij", x, x @ w))
    tangent = torch.ones_like(w)
    close(func.jvp(lambda w: gemmhub.matmul(x, w), (w,), (tangent,))[1], x @ tangent)
    close(func.functionalize(lambda w: gemmhub.matmul(x, w))(w), x @ w)


def test_tangents_are_not_lost(operands):
    import torch.autograd.forward_ad as forward

    x, w, *_ = operands
    for _ in range(2):
        gemmhub.matmul(x, w)
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        close(forward.unpack_dual(gemmhub.matmul(dual, w)).tangent, torch.ones_like(x) @ w)
        close(gemmhub.matmul(x, w), x @ w)


def test_dispatch_modes_see_products(operands):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w, *_ = operands
    for _ in range(2):
        gemmhub.matmul(x, w)
    assert "gemmhub.matmul" in make_fx(lambda x: gemmhub.matmul(x, w))(x).code


def test_subclasses_handle_products_themselves(operands):
    x, w, *_ = operands

    class Tagged(torch.Tensor):
        pass

    got = gemmhub.matmul(x.as_subclass(Tagged), w)
    assert type(got) is Tagged
    close(got.as_subclass(torch.Tensor), x @ w)


def test_graphs_of_fx_are_refused(operands):
    _, w, *_ = operands
    with pytest.raises(InputError, match="a Proxy, with which torch traces a function"):
        torch.fx.symbolic_trace(lambda x: gemmhub.matmul(x, w))


@pytest.mark.parametrize("grad", [False, True])
def test_autocast(grad, operands):
    """As torch.matmul: 32 bits and less become the region's dtype, float64 and out stay as they are."""
    x, w, bias, _ = operands
    w = w.clone().requires_grad_(grad)
    for _ in range(2):
        gemmhub.matmul(x, w)  # warm
    for wanted in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=wanted):
            for call in (gemmhub.matmul, torch.ops.gemmhub.matmul, torch.compile(gemmhub.matmul, backend="eager")):
                for _ in range(2):
                    assert call(x, w, bias=bias).dtype == wanted
            assert gemmhub.matmul(x.double(), w).dtype == torch.float64
            assert gemmhub.matmul(x, w, out_dtype=torch.float32).dtype == torch.float32
            with torch.no_grad():
                assert gemmhub.matmul(x, w, out=torch.zeros(5, 6)).dtype == torch.float32
        result = gemmhub.matmul(x, w)
        assert result.dtype == torch.float32
    if grad:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            gemmhub.matmul(x, w).sum().backward()
        assert w.grad.dtype == torch.float32


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("wanted", ["bfloat16", "float16"])
def test_what_describes_a_product_under_autocast(wanted, grad, operands):
    """explain, spot_check, compare and tune are about the product that matmul runs: of rounded operands."""
    x, w, bias, _ = operands
    w = w.clone().requires_grad_(grad)
    dtype, out = getattr(torch, wanted), torch.zeros(5, 6)
    with torch.autocast("cpu", dtype=dtype):
        products = [gemmhub.matmul(x, w), gemmhub.matmul(x, w, out_dtype=torch.float32)]
        with torch.no_grad():
            products.append(gemmhub.matmul(x, w, out=out))
        assert [p.dtype for p in products] == [dtype, torch.float32, torch.float32]
        for product in products:
            assert gemmhub.spot_check(x, w, product, seed=1)
            assert not gemmhub.spot_check(x, w, product + 0.25)
        named = {"a": wanted, "b": wanted, "out": wanted}
        for options, changed in (({}, {}), ({"bias": bias}, {}), ({"out_dtype": "float32"}, {"out": "float32"})):
            problem = gemmhub.explain(x, w, **options).problem
            assert {name: getattr(problem, name).dtype.name for name in named} == named | changed
        with torch.no_grad():
            assert (
                gemmhub.explain(x, w, out=out).problem.a.dtype.name == "float32"
            )  # as for torch.mm, out is not rounded
            assert gemmhub.explain(x.double(), w).problem.out.dtype.name == "float64"
            assert f"{wanted},{wanted}->{wanted}" in gemmhub.compare(x, w).problem
            assert f"{wanted},{wanted}->{wanted}" in str(gemmhub.tune(x, w))
    assert gemmhub.explain(x, w).problem.a.dtype.name == "float32"
    assert not gemmhub.spot_check(x, w, products[1])  # outside of the region it is not the product of these operands
    with torch.autocast("cpu", dtype=dtype):
        assert gemmhub.spot_check(x.numpy(), w.detach().numpy(), products[2])  # arrays of NumPy are not rounded


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_function_itself_is_compiled(backend, rng):
    """torch.compile(gemmhub.matmul) is one graph, whose product is the operator."""
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in ((4, 8), (8, 6)))
    compiled = torch.compile(gemmhub.matmul, backend=backend, fullgraph=True)
    assert torch.equal(compiled(a, b), gemmhub.matmul(a, b))
    options = {"bias": b[0], "activation": "gelu"}
    assert torch.equal(compiled(a, b, **options), gemmhub.matmul(a, b, **options))
    x = a.clone().requires_grad_()
    compiled(x, b).sum().backward()
    assert ratio(x.grad.numpy(), np.ones((4, 6), np.float32), b.numpy().T) <= 1
    assert gemmhub.matmul(a.numpy(), b.numpy()).shape == (4, 6)
