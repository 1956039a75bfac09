"""CPU tensors of torch itself: version counters, tensors that are no plain memory, dtypes. Runs where torch is."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from products import F32, draw, ratio

import gemmhub
from gemmhub.errors import DeviceError, InputError, OutputError

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def pair(rng):
    return torch.from_numpy(draw(rng, (4, 4), F32)), torch.from_numpy(draw(rng, (4, 4), F32))


def writers():
    """name -> function of (a, b, out) that writes into ``out``."""

    def planned(a, b, out, **options):
        gemmhub.plan(a, b, **options)(a, b, out, **options)

    def warm(a, b, out):
        for _ in range(2):
            gemmhub.matmul(a, b, out=torch.zeros_like(out))
        gemmhub.matmul(a, b, out=out)

    return {
        "matmul": lambda a, b, out: gemmhub.matmul(a, b, out=out),
        "warm": warm,
        "options": lambda a, b, out: gemmhub.matmul(a, b, out=out, alpha=2),
        "c in place": lambda a, b, out: gemmhub.matmul(a, b, out=out, c=out, beta=1),
        "an operand": lambda a, b, out: gemmhub.matmul(out, b, out=out),
        "plan": planned,
        "plan, c in place": lambda a, b, out: planned(a, b, out, c=out, beta=1),
        "torch": lambda a, b, out: torch.matmul(a, b, out=out),
    }


@pytest.mark.parametrize("part", ["tensor", "view", "base", "detached"])
@pytest.mark.parametrize("name", writers())
def test_a_backward_pass_through_what_was_overwritten_is_refused(name, part, pair):
    """As after torch.matmul(out=), which is one of these."""
    saved = torch.ones(8, 4)
    out = {"tensor": saved[:4], "view": saved[:4], "base": saved[:4], "detached": saved[:4].detach()}[part]
    x = torch.ones_like(saved[:4] if part != "base" else saved, requires_grad=True)
    kept = {"tensor": out, "view": out[:], "base": saved, "detached": saved[:4]}[part]
    y = (x * kept).sum()
    writers()[name](*pair, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_what_was_not_written_keeps_its_version(pair):
    a, b = pair
    out = torch.zeros(4, 4)
    before = [x._version for x in (a, b, out)]
    gemmhub.matmul(a, b), gemmhub.plan(a, b, out=out), gemmhub.explain(a, b, out=out), gemmhub.tune(a, b, out=out)
    for wrong in (torch.zeros(3, 4), torch.zeros(4, 4, dtype=torch.int32)):
        with pytest.raises(OutputError):
            gemmhub.matmul(a, b, out=wrong)
        assert wrong._version == 0
    assert [x._version for x in (a, b, out)] == before
    gemmhub.matmul(a, b, out=out)
    assert [x._version for x in (a, b)] == before[:2]
    assert out._version > before[2]


def test_inference_tensors_have_no_version(pair):
    with torch.inference_mode():
        out = torch.zeros(4, 4)
        gemmhub.matmul(*pair, out=out)
    for _ in range(2):
        out_before = out.clone()
        gemmhub.matmul(*pair, out=out)
        assert torch.equal(out, out_before)


def test_plans_record_no_gradients(pair):
    a, b = pair
    weight = torch.nn.Parameter(b)
    planned = gemmhub.plan(a, b)
    with pytest.raises(InputError, match=r"b: a tensor that requires grad.*no_grad"):
        planned(a, weight)
    for call in (gemmhub.matmul, planned):
        with torch.no_grad():
            got = call(a, weight)
        assert type(got) is torch.Tensor
        assert ratio(got.numpy(), a.numpy(), b.numpy()) <= 1


def test_lazily_negated_and_conjugated_tensors(pair):
    """They are copied first; plans and what is written must be plain memory."""
    a, b = pair
    z = torch.complex(a, -a)
    assert ratio(gemmhub.matmul(z.conj().imag, b).numpy(), a.numpy(), b.numpy()) <= 1
    for lazy, matrix in ((z.conj().imag, b), (z.conj(), torch.complex(b, b))):
        with pytest.raises(InputError, match=r"lazily .* x\.resolve_conj\(\)"):
            gemmhub.plan(lazy, matrix)
        result = gemmhub.matmul(lazy, matrix)
        with pytest.raises(InputError, match="out: a lazily conjugated or negated tensor"):
            gemmhub.matmul(lazy, matrix, out=torch._neg_view(torch.empty_like(result)))


def test_subclasses_of_tensor(pair):
    """Those that compute by themselves get products as operators of torch; other calls refuse them."""
    a, b = pair

    class Tagged(torch.Tensor):
        pass

    gemmhub.matmul(a, b)
    for x in (a.as_subclass(Tagged), torch.nn.parameter.UninitializedParameter()):
        for function in (gemmhub.explain, gemmhub.plan, gemmhub.plan(a, b)):
            with pytest.raises(InputError, match=rf"a \S*{type(x).__name__}, a subclass") as raised:
                function(x, b)
            assert raised.value.argument == "a"


def test_sparse_and_nested_tensors_are_refused(pair):
    a, b = pair
    with pytest.raises(InputError, match="sparse"):
        gemmhub.matmul(a.to_sparse(), b)


def test_storage_stays_resizable(pair):
    """torch.Tensor.numpy() would forbid torch to resize it, as FSDP does."""
    x, y = torch.ones(4, 4), torch.ones(4, 4)
    gemmhub.matmul(x, y, out=torch.empty(4, 4))
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().size() == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_lacks(name, rng):
    """Read and written where they are, with any strides; results are tensors."""
    dtype, native = getattr(torch, name), np.dtype(getattr(ml_dtypes, name))
    x, y = draw(rng, (6, 10), native), draw(rng, (8, 10), native)
    bits = np.int16 if native.itemsize == 2 else np.uint8
    a, b = (torch.from_numpy(z.view(bits)).view(dtype) for z in (x, y))
    a, x = a[::2, 1:], x[::2, 1:]
    b, y = b[:, 1:].t(), y[:, 1:].T
    got = gemmhub.matmul(a, b, out_dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16
    expected = gemmhub.matmul(x, y, out_dtype="bfloat16")
    assert np.array_equal(got.float().numpy(), expected.astype(F32))
    out = torch.zeros(16, 8, dtype=torch.bfloat16)[::5, :][:3]
    gemmhub.matmul(a, b, out=out)
    assert torch.equal(out, got)
    assert gemmhub.spot_check(a, b, got).ok
    assert (gemmhub.matmul(a, a.t()).dtype == dtype) if name == "bfloat16" else True


def test_dtypes(pair):
    a, b = pair
    assert gemmhub.matmul(a, b, out_dtype=torch.float64).dtype == torch.float64
    half = gemmhub.matmul(a, b, out_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), a @ b, rtol=2**-8, atol=1e-5)
    assert gemmhub.plan(a, b, out_dtype=torch.bfloat16)(a, b).dtype == torch.bfloat16
    x = a.numpy()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.half):
        assert str(gemmhub.matmul(x, x, out_dtype=dtype).dtype) == str(dtype).rpartition(".")[2]
    assert gemmhub.pack(x, a_dtype=torch.float32).a_dtype == F32
    for dtype in (torch.qint8, torch.complex32):
        with pytest.raises(InputError, match=r"out_dtype: dtype \S+ is not supported"):
            gemmhub.matmul(x, x, out_dtype=dtype)


def test_torch_beside_numpy(pair):
    a, b = pair
    with pytest.raises(DeviceError, match="a is torch on cpu, b is numpy on cpu"):
        gemmhub.matmul(a, b.numpy())


FIRST = """
import sys, torch, gemmhub
a = torch.ones(8, 8)
assert (gemmhub.matmul(a, a) == 8).all() and (gemmhub.matmul(a, a, bias=a[0]) == 9).all()
assert gemmhub.matmul(a.requires_grad_(), a).requires_grad
print(sorted({name.split(".")[1] for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}))
"""


def test_first_products_do_not_import_the_compiler():
    """Its import takes a process a second or two."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_spot_check_takes_the_options_of_a_product(activation):
    a, b = torch.randn(200, 150), torch.randn(150, 180)
    options = {"c": torch.randn(200, 180), "beta": -2, "bias": torch.randn(180), "alpha": 0.5, "activation": activation}
    right = gemmhub.matmul(a, b, **options)
    assert gemmhub.spot_check(a, b, right, **options)
    assert gemmhub.compare(a, b, **options)
    for name, value in (("alpha", 1), ("beta", 2), ("bias", None), ("activation", "silu")):
        assert not gemmhub.spot_check(a, b, right, **{**options, name: value}), name
    with torch.autocast("cpu"):  # as in a product, operands and addends are rounded to bfloat16
        rounded = gemmhub.matmul(a, b, **options)
        assert rounded.dtype == torch.bfloat16
        assert gemmhub.spot_check(a, b, rounded, **options)
        assert not gemmhub.spot_check(a, b, rounded, **{**options, "alpha": -0.5})
    a.requires_grad_()
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, **options), **options)
