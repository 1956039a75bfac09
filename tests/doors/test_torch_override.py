"""torch's own products in gemmhub, for the whole process: which calls arrive, with which bits, and that it ends."""

from __future__ import annotations

import logging
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from products import ratio

import gemmhub
from gemmhub.errors import DependencyError, InputError, NoBackendError

torch = pytest.importorskip("torch", minversion="2.11", reason="torch 2.11 is not installed")
import rows_backend  # noqa: E402

import gemmhub.torch as door  # noqa: E402
from gemmhub._doors.torch import override  # noqa: E402

F = torch.nn.functional


@pytest.fixture
def rows():
    with rows_backend.registered() as backend:
        yield backend


@pytest.fixture(autouse=True)
def _undone():
    yield
    assert override._active is None


def draw(rng, *shape, dtype=torch.float32):
    x = rng.standard_normal(shape)
    if dtype.is_complex:
        x = x + 1j * rng.standard_normal(shape)
    return torch.from_numpy(np.asarray(x)).to(dtype)


def native(x):
    """The NumPy array of a tensor, bfloat16 included."""
    x = x.detach().resolve_conj().resolve_neg()
    return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()


def within(result, a, b, **others):
    """Assert that a product is within gemmhub's bounds of the exact one."""
    arrays = {name: native(x) if isinstance(x, torch.Tensor) else x for name, x in others.items()}
    assert ratio(native(result), native(a), native(b), **arrays) <= 1


# Each: what is called, for (c (5, 7), a (5, 33), b (33, 7), v (33,), stacks s (3, 5, 33) and t (3, 33, 7)).
CALLS = {
    "mm": lambda c, a, b, v, s, t: torch.mm(a, b),
    "mm.out": lambda c, a, b, v, s, t: torch.mm(a, b, out=torch.empty_like(c)),
    "bmm": lambda c, a, b, v, s, t: torch.bmm(s, t),
    "bmm.out": lambda c, a, b, v, s, t: torch.bmm(s, t, out=s.new_empty(3, 5, 7)),
    "dot": lambda c, a, b, v, s, t: torch.dot(v, v),
    "addmm": lambda c, a, b, v, s, t: torch.addmm(c, a, b, beta=0.5, alpha=2),
    "addmm.out": lambda c, a, b, v, s, t: torch.addmm(c, a, b, out=torch.empty_like(c)),
    "addmm_": lambda c, a, b, v, s, t: c.clone().addmm_(a, b, beta=2, alpha=-1),
    "baddbmm": lambda c, a, b, v, s, t: torch.baddbmm(c, s, t, beta=3),
    "baddbmm.out": lambda c, a, b, v, s, t: torch.baddbmm(c, s, t, out=s.new_empty(3, 5, 7)),
    "baddbmm_": lambda c, a, b, v, s, t: c.repeat(3, 1, 1).baddbmm_(s, t, alpha=2),
    "addmv": lambda c, a, b, v, s, t: torch.addmv(c[:, 0], a, v, alpha=3),
    "addmv.out": lambda c, a, b, v, s, t: torch.addmv(c[:, 0], a, v, out=a.new_empty(5)),
    "addmv_": lambda c, a, b, v, s, t: c[:, 0].clone().addmv_(a, v, beta=-1),
    "mv": lambda c, a, b, v, s, t: torch.mv(a, v),
    "matmul": lambda c, a, b, v, s, t: s @ b,
    "matmul of a vector": lambda c, a, b, v, s, t: torch.matmul(v, b),
    "linear": lambda c, a, b, v, s, t: F.linear(a, b.t(), c[0]),
    "linear of a stack": lambda c, a, b, v, s, t: F.linear(s, b.t(), c[0]),
    "einsum": lambda c, a, b, v, s, t: torch.einsum("bik,bkj->bij", s, t),
    "tensordot": lambda c, a, b, v, s, t: torch.tensordot(a, b, 1),
    "inner": lambda c, a, b, v, s, t: torch.inner(a, b.t()),
    "chain": lambda c, a, b, v, s, t: torch.linalg.multi_dot([a, b, c.t()]),
    "addbmm": lambda c, a, b, v, s, t: torch.addbmm(c, s, t),
    "bilinear": lambda c, a, b, v, s, t: F.bilinear(a, a, b.t()[:, None].expand(7, 33, 33).contiguous()),
    "a script": lambda c, a, b, v, s, t: SCRIPT(a, b),
    "attention": lambda c, a, b, v, s, t: attention(s),
    "lstm": lambda c, a, b, v, s, t: recurrent(s),
}


def attention(s):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(s[None], s[None], s[None])


def recurrent(s):
    cell = torch.nn.LSTMCell(33, 4)
    for x in cell.parameters():
        torch.nn.init.constant_(x, 0.01)
    return cell(s[0])[0].detach()


SCRIPT = torch.jit.CompilationUnit("def f(a, b):\n    return torch.mm(a, b)\n").f


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("name", CALLS)
def test_calls_arrive_and_the_old_bits_return(name, rng, rows):
    operands = [draw(rng, *shape) for shape in ((5, 7), (5, 33), (33, 7), (33,), (3, 5, 33), (3, 33, 7))]
    before = CALLS[name](*operands)
    with door.override("batch", strict=True) as active:
        result = CALLS[name](*operands)
        products = active.products
    assert products >= 1
    assert len(rows.problems) == products
    assert {x.reproducible for x in rows.problems} == {"batch"}
    assert result.stride() == before.stride()
    torch.testing.assert_close(result, before, rtol=1e-5, atol=1e-4)  # sums of up to 231 products, in another order
    assert torch.equal(CALLS[name](*operands), before)
    assert len(rows.problems) == products


@pytest.mark.parametrize("name", override._OPERATORS)
def test_every_operator_is_needed(name, rng, rows, monkeypatch):
    """An operator that is left out is missed by the call of it."""
    operands = [draw(rng, *shape) for shape in ((5, 7), (5, 33), (33, 7), (33,), (3, 5, 33), (3, 33, 7))]
    monkeypatch.setattr(override, "_OPERATORS", {**override._OPERATORS, name: lambda *operands, **named: None})
    with door.override() as active:
        CALLS[name](*operands)
    assert active.products == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_results_are_within_the_bounds(dtype, rng):
    a, b, c = (draw(rng, *shape, dtype=dtype) for shape in ((5, 33), (33, 7), (5, 7)))
    with door.override(strict=True):
        within(a @ b, a, b)
        within(torch.addmm(c, a, b, alpha=2, beta=3), a, b, alpha=2, beta=3, c=c)
        within(torch.addmm(c[0], a, b), a, b, bias=c[0])
        within(a.t().contiguous().t() @ b.t().contiguous().t(), a, b)
        if dtype.is_complex:
            within(a.conj() @ b, a.conj(), b)
            within(a.t().conj().t() @ b.imag.to(dtype), a.conj(), b.imag.to(dtype))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 1, 1), (1, 4, 5)])
def test_empty_and_small_shapes(m, n, k):
    a, b, c = torch.ones(m, k), torch.ones(k, n), torch.ones(m, n)
    calls = (
        lambda: a @ b, lambda: torch.addmm(c, a, b, beta=2), lambda: torch.addmm(c[:1], a, b) if m else c,
        lambda: torch.bmm(a[None], b[None]), lambda: torch.bmm(a.expand(0, m, k), b.expand(0, k, n)),
        lambda: torch.mv(a, torch.ones(k)), lambda: torch.dot(torch.ones(k), torch.ones(k)),
        lambda: torch.addmv(torch.ones(m), a, torch.ones(k), beta=0.5),
        lambda: torch.mm(a, b, out=torch.full((m, n), torch.nan)),
        lambda: c.clone().addmm_(a, b),
    )  # fmt: skip
    expected = [call() for call in calls]
    with door.override() as active:
        for call, theirs in zip(calls, expected):
            ours = call()
            assert torch.equal(ours, theirs)
            assert ours.is_contiguous()
            assert ours.stride() == theirs.stride() or not ours.numel()
    assert active.left == {}


def test_numbers_mean_what_they_mean_in_torch(rng):
    a, b = draw(rng, 4, 6), draw(rng, 6, 3)
    nan = torch.full((4, 3), torch.nan)
    with door.override(strict=True):
        within(torch.addmm(nan, a, b, beta=0), a, b)
        within(nan.clone().addmm_(a, b, beta=0), a, b)
        within(torch.addmm(nan, a, b, beta=0, out=nan.clone()), a, b)
        assert torch.equal(torch.addmm(torch.ones(3), a, b, alpha=0), torch.ones(4, 3))
        within(torch.addmm(torch.ones(4, 1), a, b), a, b, c=torch.ones(4, 3), beta=1)
        within(torch.addmm(torch.ones(()), a, b), a, b, c=torch.ones(4, 3), beta=1)
        assert torch.addmm(nan, a, b, beta=0, out=(out := nan.clone())) is out
        accumulated = torch.ones(4, 3)
        assert accumulated.addmm_(a, b) is accumulated
        assert torch.addmm(accumulated, a, b, out=accumulated) is accumulated


def test_a_conjugated_addend_is_written_and_not_a_copy_of_it(rng):
    a, b, c = (draw(rng, *shape, dtype=torch.complex64) for shape in ((4, 6), (6, 3), (4, 3)))
    expected = torch.addmm(c.conj().resolve_conj(), a, b)
    with door.override() as active:
        torch.testing.assert_close(c.conj().clone().addmm_(a, b), expected)
        lazy = c.conj()
        assert lazy.is_conj()
        assert lazy.addmm_(a, b) is lazy
    torch.testing.assert_close(lazy.resolve_conj(), expected)
    assert active.products + sum(active.left.values()) == 2


def test_gradients(rng, rows):
    """autograd's own products run in gemmhub, with the promise, and are gradients of torch's."""
    x, w, bias = (draw(rng, *s, dtype=torch.float64).requires_grad_() for s in ((4, 6), (3, 6), (3,)))
    with door.override("batch", strict=True) as active:
        F.linear(x, w, bias).square().sum().backward()
        assert active.products == 3
        assert torch.autograd.gradcheck(F.linear, (x, w, bias))
        assert torch.autograd.gradgradcheck(F.linear, (x, w, bias))
        assert torch.autograd.gradcheck(torch.bmm, (x[None], w.t()[None]))
        assert torch.autograd.gradcheck(torch.mv, (x, w[0]))
        z = draw(rng, 3, 4, dtype=torch.complex128).requires_grad_()
        assert torch.autograd.gradcheck(lambda z: z @ z.mH, (z,))
    assert {x.reproducible for x in rows.problems} == {"batch"}


def test_transforms_modes_and_fake_tensors(rng):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    x, w = draw(rng, 4, 6), draw(rng, 6, 3)

    def f(x, w):
        return torch.tanh(x @ w).sum()

    functions = {
        "grad": lambda: torch.func.grad(f)(x, w), "hessian": lambda: torch.func.hessian(f)(x, w),
        "vmap": lambda: torch.func.vmap(torch.mv, (None, 0))(x, w.t()),
        "vmap of rows": lambda: torch.func.vmap(torch.matmul, (0, None))(x, w),
        "jvp": lambda: torch.func.jvp(f, (x, w), (x, w))[1],
        "per-sample gradients": lambda: torch.func.vmap(torch.func.grad(f), (0, None))(x[:, None], w),
        "checkpoint": lambda: torch.utils.checkpoint.checkpoint(f, x, w, use_reentrant=False),
        "inference": lambda: torch.inference_mode()(torch.mm)(x, w).clone(),
    }  # fmt: skip
    expected = {name: function() for name, function in functions.items()}
    with door.override(strict=True) as active:
        for name, function in functions.items():
            before = active.products
            torch.testing.assert_close(function(), expected[name])
            assert active.products > before, name
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            tangent = torch.autograd.forward_ad.unpack_dual(dual @ w).tangent
        torch.testing.assert_close(tangent, x @ w)
        before = active.products
        with FlopCounterMode(display=False) as counter:
            x @ w
        assert counter.get_total_flops() == 2 * 4 * 6 * 3
        with torch.autocast("cpu", torch.bfloat16):
            assert (x @ w).dtype is torch.bfloat16
        assert active.products == before + 2
        with FakeTensorMode():
            fake = torch.empty(4, 6) @ torch.empty(6, 3)
        assert fake.shape == (torch.empty(4, 6, device="meta") @ torch.empty(6, 3, device="meta")).shape == (4, 3)
        assert active.products == before + 2


class Named(torch.Tensor):
    """A subclass whose memory is dense."""


def test_subclasses_and_parameters(rng):
    x, w = draw(rng, 4, 6), draw(rng, 6, 3)
    with door.override(strict=True) as active:
        assert type(x.as_subclass(Named) @ w) is Named
        assert torch.equal(x @ torch.nn.Parameter(w), x @ w)
    assert active.products == 3


def test_torch_computes_what_gemmhub_refuses(rng, caplog):
    integers = torch.ones(2, 2, dtype=torch.int64)
    x = draw(rng, 2, 2)
    sparse = x.to_sparse()
    calls = (lambda: integers @ integers, lambda: torch.mm(x, x, out=torch.empty(0)))
    expected = [call() for call in calls]
    with door.override() as active, caplog.at_level(logging.WARNING, "gemmhub"):
        for call, result in zip(calls * 2, expected * 2):
            assert torch.equal(call(), result)
        assert torch.equal(sparse @ x, torch.sparse.mm(sparse, x))
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            torch.mm(x, torch.ones(3, 3))
    assert active.products == 0
    assert active.left["aten::mm of int64 by int64 on cpu: not a call that gemmhub takes"] == 2
    assert sum("aten::mm of int64" in record.message for record in caplog.records) == 1
    with door.override(strict=True):
        with pytest.raises(InputError, match="override: a call of aten::mm of int64 by int64 on cpu, with strict=True"):
            calls[0]()
        assert torch.equal(x @ x, x @ x)


def test_without_a_backend_torch_computes_or_the_call_is_refused(rng):
    x = draw(rng, 2, 2)
    expected = x @ x
    with door.override("order.of.nobody") as active:
        assert torch.equal(x @ x, expected)
    assert next(iter(active.left)).startswith("aten::mm of float32 by float32 on cpu: no backend may run this product")
    with door.override("order.of.nobody", strict=True), pytest.raises(NoBackendError):
        x @ x


class Recursive(rows_backend.RowsBackend):
    """A backend that computes by torch's own product."""

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, **operands):
            self.problems.append(problem)
            out[...] = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()

        return gemmhub.Kernel(run, "torch")


def test_a_backend_may_call_torch(rng):
    """Its products are torch's: gemmhub is not called from within itself."""
    backend = Recursive()
    gemmhub.register(backend)
    try:
        x = draw(rng, 4, 4)
        expected = x @ x
        with door.override(backend="rows") as active:
            assert torch.equal(x @ x, expected)
            assert torch.equal(gemmhub.matmul(x, x, backend="rows"), expected)
        assert len(backend.problems) == 3  # the last one calls torch's product, which is overridden once more
        assert active.products == 2
    finally:
        gemmhub.unregister("rows")


def test_a_failing_kernel_is_reported_and_the_thread_recovers(rng, rows, monkeypatch):
    x = draw(rng, 4, 4).requires_grad_()
    with door.override("batch"):
        monkeypatch.setattr(rows, "problems", None)
        with pytest.raises(gemmhub.KernelError, match="rows"):
            x @ x
        assert torch.is_grad_enabled()
        monkeypatch.setattr(rows, "problems", [])
        (x @ x).sum().backward()
    assert len(rows.problems) == 3


def test_one_override_at_a_time(rng):
    x = draw(rng, 2, 2)
    first = door.override()
    try:
        with pytest.raises(InputError, match=r"override: called while .*; allowed: one override at a time. call undo"):
            door.override()
        assert first.active
        x @ x
        assert first.products == 1
        assert repr(first) == "<Override: active, 1 products, 0 left to torch>"
    finally:
        first.undo()
        first.undo()
    assert not first.active
    with door.override() as second:
        x @ x
    assert (first.products, second.products) == (1, 1)


def test_arguments():
    for options, words in (
        ({"strict": 1}, "strict: 1; allowed: True or False"), ({"backend": "nope"}, "no backend is called 'nope'"),
        ({"precision": "high"}, "precision: 'high'; allowed: ieee"), ({"reproducible": "batches"}, "reproducible: "),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            door.override(**options)
    with pytest.raises(TypeError, match=r"'precison'; did you mean precision=\?"):
        door.override(precison="tf32")


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(DependencyError, match=r"override: torch .* has no torch.library.get_kernel"):
        door.override()


def test_an_override_that_fails_midway_leaves_torch_as_it_was(rng, monkeypatch):
    x = draw(rng, 4, 4)
    expected = x @ x
    monkeypatch.setattr(override, "_undecomposed", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        door.override("batch")
    monkeypatch.undo()
    assert torch.equal(x @ x, expected)
    with door.override() as active:
        x @ x
    assert active.products == 1


def test_deterministic_algorithms_of_torch(rng, rows):
    x = draw(rng, 4, 4)
    torch.use_deterministic_algorithms(True)
    try:
        with door.override():
            x @ x
        with door.override("batch"):
            x @ x
        with door.override(), gemmhub.use(reproducible="batch"):
            x @ x
    finally:
        torch.use_deterministic_algorithms(False)
    with door.override():
        x @ x
    assert [problem.reproducible for problem in rows.problems] == ["run", "batch", "batch", None]


def test_the_whole_process(rng):
    """Threads share it; calls of each are counted."""
    x = draw(rng, 8, 8)
    with door.override(strict=True) as active:
        threads = [threading.Thread(target=lambda: [x @ x for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert active.products == 80


def newton_schulz(g, steps=2):
    """The orthogonalization of the Muon optimizer."""
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        y = x @ x.T
        x = 3.4445 * x + torch.addmm(-4.775 * y, y, y, alpha=2.0315) @ x
    return x


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_of_an_optimizer(backend, rng, rows):
    """Graphs call the operators; products of one row and one column, which inductor decomposes, too."""
    g, v = draw(rng, 6, 10), draw(rng, 10, 1)

    def step(g, v):
        return newton_schulz(g), v.t() @ v, torch.mv(g, v[:, 0]), torch.bmm(v.t()[None], v[None])

    with door.override("batch", strict=True) as active:
        expected = step(g, v)
        eager = active.products
        compiled = torch.compile(step, backend=backend, fullgraph=True)
        results = compiled(g, v)
        assert active.products == 2 * eager == len(rows.problems)
        for mine, theirs in zip(results, expected):
            torch.testing.assert_close(mine, theirs)
        assert torch.equal(results[1], expected[1])
        assert {x.reproducible for x in rows.problems} == {"batch"}
    torch.compiler.reset()


def test_breaks_of_graphs_do_not_compile_the_kernel(rng):
    x = draw(rng, 4, 4)

    @torch.compile(backend="aot_eager")
    def broken(x):
        y = x @ x
        torch._dynamo.graph_break()
        return torch.linalg.multi_dot([y, x, x])

    torch._dynamo.utils.counters.clear()
    with door.override(strict=True) as active:
        torch.testing.assert_close(broken(x), broken._torchdynamo_orig_callable(x))
    assert active.products == 6
    assert torch._dynamo.utils.counters["frames"]["total"] <= 3


def test_the_compiler_is_as_before_afterwards():
    from torch._inductor import decomposition, lowering

    mm = torch.ops.aten.mm.default

    def state():
        return dict(decomposition.decompositions), lowering.lowerings[mm], torch.compiler.config.cache_key_tag

    before = state()
    with door.override():
        decompositions, lowered, tag = state()
        assert mm not in decompositions
        assert lowered is not before[1]
        assert tag == before[2] + "+gemmhub.override"
    assert state() == before


def test_other_threads_multiply_while_it_begins_and_ends():
    with door.override():
        pass  # the kernels are in place from now on
    a, errors, stop = torch.randn(8, 8), [], threading.Event()

    def multiply():
        while not stop.is_set():
            try:
                torch.mm(a, a)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        with door.override():
            time.sleep(0.002)
        time.sleep(0.002)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
