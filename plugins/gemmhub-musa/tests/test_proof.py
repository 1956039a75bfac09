"""The product with everything at once: right kernels pass, and each kind of mistake is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from address_backend import Addresses, matrix
from gemmhub_musa import proof, testing

from gemmhub import Kernel, Refusal


def asked(dtype="float32", orders="row col", **options):
    plain = testing.problem(dtype=dtype, out="int32" if dtype == "int8" else None, alpha_is_one=False)
    return proof.everything(plain, 33, 20, 40, orders=orders, **options)


def proved(rt, problem, spoil=None, **options):
    kernel = Addresses(spoil=spoil).prepare(problem, "default", 0)
    return proof.compare(rt, problem, kernel, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "complex64"])
@pytest.mark.parametrize("orders", ["row row", "row col", "col row", "col col"])
def test_a_right_kernel_passes(rt, fake, dtype, orders):
    live = fake.fake_live()
    problem = asked(dtype, orders)
    assert problem.batch == (2,)
    assert problem.c == problem.out
    assert " ".join(x.layout.order for x in (problem.a, problem.b)) == orders
    assert min(x.layout.leading_dimension(x.layout.order) for x in (problem.a, problem.b, problem.out)) > 20
    assert proved(rt, problem) is None
    assert proved(rt, problem, alpha=-3 if dtype == "int8" else -0.5) is None
    assert fake.fake_live() == live


def test_a_single_product_with_a_bias_and_an_activation(rt):
    problem = asked(batched=False)
    assert problem.batch == ()
    plain = testing.problem(bias=testing.bias(axis="n"), activation="relu")
    assert proved(rt, proof.everything(plain, 33, 20, 40)) is None


@pytest.mark.parametrize(("dtype", "result", "activation", "other"), [
    ("float32", "float32", "gelu", "gelu_tanh"), ("float32", "float32", "gelu_tanh", "gelu"),
    ("float16", "float32", "gelu", "gelu_tanh"), ("bfloat16", "float32", "gelu_tanh", "gelu"),
    ("float16", "float16", "silu", "gelu_tanh"), ("bfloat16", "bfloat16", "gelu", "silu"),
])  # fmt: skip
def test_another_activation_is_found(rt, dtype, result, activation, other):
    """Results of 16 bits allow an error as large as the difference of the two formulas of GELU."""
    plain = testing.problem(dtype=dtype, out=result, bias=testing.bias(result), activation=activation)
    problem = proof.everything(plain, 5, 3, 8)
    exact = dtype != "float32"
    assert proved(rt, problem, exact=exact) is None
    kernel = Addresses().prepare(replace(problem, activation=other), "default", 0)
    assert "is wrong" in proof.compare(rt, problem, kernel, exact=exact).reason


def test_a_wrong_element_is_shown(rt):
    def spoil(result):
        result[1, 2, 3] += 1
        return result

    no = proved(rt, asked(), spoil)
    assert isinstance(no, Refusal)
    assert "is wrong: 1 of 1320 elements; element [1, 2, 3] is " in no.reason
    assert "gemmhub doctor musa" in no.remedy


def test_nan_is_found(rt):
    assert "is nan instead of" in proved(rt, asked(), lambda result: result * np.nan).reason


def test_rounded_operands_are_found(rt):
    """Float32 operands rounded to TF32 are exact as small whole numbers, and are not as numbers of all bits."""
    problem = asked()

    def rounded(a, b, out, *scalars, **operands):
        kept = []
        for operand, address in ((problem.a, a), (problem.b, b)):
            values = matrix(operand, address)
            kept.append(values.copy())
            values[...] = (values.view(np.uint32) & 0xFFFFE000).view(np.float32)
        Addresses().prepare(problem, "default", 0).run(a, b, out, *scalars, **operands)

    kernel = Kernel(rounded, "TF32")
    assert proof.compare(rt, problem, kernel, exact=True) is None
    assert "is wrong" in proof.compare(rt, problem, kernel, exact=False).reason
    assert proved(rt, problem, exact=False) is None


def test_writing_outside_the_result_is_found(rt):
    problem = asked()
    wider = replace(problem.out, layout=replace(problem.out.layout, cols=21))

    def careless(a, b, out, *scalars, **operands):
        Addresses().prepare(problem, "default", 0).run(a, b, out, *scalars, **operands)
        matrix(wider, out)[..., -1] = 0

    assert proof.compare(rt, problem, Kernel(careless, "careless")).reason.endswith("wrote outside the result")


def test_with_alpha_0_the_operands_are_nan(rt):
    problem = asked()
    assert "is nan" in proved(rt, problem, alpha=0).reason

    def careful(a, b, out, alpha, beta, stream, c):
        matrix(problem.out, out)[...] *= beta

    assert proof.compare(rt, problem, Kernel(careful, "beta C"), alpha=0) is None
