"""Launching gemv_kernel.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_uint64
from typing import Any

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_launch import WORD
from gemmhub_hopper import pdl
from gemmhub_hopper.config import ACTIVATIONS, OUTPUTS
from gemmhub_hopper.gemv import THREADS, GemvChoice
from gemmhub_hopper.launch import Function


class Params(ctypes.Structure):
    """GemvParams of gemv_kernel.cu."""

    _fields_ = (
        *((name, c_uint64) for name in ("x", "w", "d", "c", "bias")),
        *((name, c_int64) for name in (
            "x_m", "x_k", "x_batch", "w_ld", "w_batch", "d_m", "d_n", "d_batch", "c_m", "c_n", "c_batch",
        )),
        *((name, c_int) for name in (
            "bias_m", "bias_n", "m", "n", "k", "strips", "output", "addend", "bias_type", "activation",
        )),
        ("alpha", c_float), ("beta", c_float), ("next", c_int), ("padding", c_int),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The parameters of the kernel."""

    _fields_ = (("p", Params),)


_X, _W, _D = (getattr(Params, name).offset // WORD for name in ("x", "w", "d"))
"""Words of Arguments."""


def params(choice: GemvChoice, sms: int) -> Params:
    """All but the addresses and scalars of a call."""
    way = choice.way
    form, x, w = way.form, way.a, way.b
    d_m, d_n = (1, way.d_ld) if form.transposed else (way.d_ld, 1)
    c_m, c_n = (1, way.c_ld) if form.transposed else (way.c_ld, 1)
    return Params(
        x_m=x.strides[0], x_k=x.strides[1], x_batch=x.strides[2],
        w_ld=w.strides[1] if choice.kernel.n_major else w.strides[0], w_batch=w.strides[2],
        d_m=d_m, d_n=d_n, d_batch=way.d_batch, c_m=c_m, c_n=c_n, c_batch=way.c_batch,
        bias_m=form.bias == "m", bias_n=form.bias == "n", m=way.m, n=way.n, k=0 if way.without_k else way.k,
        strips=choice.strips, output=OUTPUTS[form.output], addend=OUTPUTS[form.addend] if form.addend else 0,
        bias_type=OUTPUTS[form.bias_type], activation=ACTIVATIONS[form.activation], alpha=1.0, beta=0.0,
        next=pdl.gemv(choice, sms),
    )  # fmt: skip


class GemvLaunch:
    """A product of a few vectors: :meth:`run` calls its kernel. Safe in any number of threads."""

    def __init__(self, gpu: Gpu, choice: GemvChoice, function: int, alone: bool) -> None:
        """``function``: the kernel. ``alone``: the machine has no other device."""
        self._gpu, self._alone = gpu, alone
        way, form = choice.way, choice.way.form
        self._swapped, self._without_k = way.swapped, way.without_k
        self._bare = not (form.scaled or form.addend or form.bias)
        template, shared = Arguments(params(choice, gpu.sms)), choice.kernel.shared_bytes
        self._function = Function(gpu, function, template, choice.grid, THREADS, shared)

    def run(self, a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        function = self._function
        slot = function.take()
        words = slot.words
        if not self._without_k:
            words[_X], words[_W] = (b, a) if self._swapped else (a, b)
        words[_D] = out
        if not self._bare:
            p = slot.arguments.p
            p.c, p.bias = c or 0, bias or 0
            p.alpha, p.beta = 0.0 if self._without_k else float(alpha), float(beta)
        stream = stream or 0
        if not (self._alone and function.started(slot, stream)):
            with self._gpu:
                function.check(function.start(slot, stream))
        function.free.append(slot)
