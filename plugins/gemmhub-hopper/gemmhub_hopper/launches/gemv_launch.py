"""Launches kernels/gemv_kernel.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_uint64
from typing import Any

from gemmhub_nvidia.driver import Gpu
from gemmhub_nvidia.launch import WORD
from gemmhub_nvidia.scales import Scales

from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.launches import pdl
from gemmhub_hopper.launches.launch import Function, place_scales, scale_fields
from gemmhub_hopper.variants.config import OUTPUTS, RESULTS, number
from gemmhub_hopper.variants.gemv_kernel import THREADS


class Params(ctypes.Structure):
    """``GemvParams`` of gemv_kernel.cu."""

    _fields_ = (
        *((name, c_uint64) for name in ("x", "w", "d", "c", "bias")),
        *((name, c_int64) for name in (
            "x_m", "x_k", "x_batch", "w_ld", "w_batch", "d_m", "d_n", "d_batch", "c_m", "c_n", "c_batch",
        )),
        *((name, c_int) for name in (
            "bias_m", "bias_n", "m", "n", "k", "strips", "output", "addend", "bias_type", "activation",
        )),
        ("alpha", c_float), ("beta", c_float), ("next", c_int), ("padding", c_int),
        ("row_scales", Scales), ("column_scales", Scales),
    )  # fmt: skip


class Arguments(ctypes.Structure):
    """The arguments of the kernel."""

    _fields_ = (("p", Params),)


_X, _W, _D = (getattr(Params, name).offset // WORD for name in ("x", "w", "d"))
"""Indices of the addresses among the 8-byte words of :class:`Arguments`."""


def params(choice: GemvChoice, sms: int) -> Params:
    """Return the parameters without the addresses and scalars of a call."""
    lowering = choice.lowering
    form, x, w = lowering.form, lowering.a, lowering.b
    d_m, d_n = (1, lowering.d_ld) if form.transposed_d else (lowering.d_ld, 1)
    c_m, c_n = (1, lowering.c_ld) if form.transposed_d else (lowering.c_ld, 1)
    return Params(
        x_m=x.strides[0], x_k=x.strides[1], x_batch=x.strides[2],
        w_ld=w.strides[1] if choice.kernel.n_major else w.strides[0], w_batch=w.strides[2],
        d_m=d_m, d_n=d_n, d_batch=lowering.d_batch, c_m=c_m, c_n=c_n, c_batch=lowering.c_batch,
        bias_m=form.bias == "m", bias_n=form.bias == "n", m=lowering.m, n=lowering.n,
        k=0 if lowering.k_is_zero else lowering.k,
        strips=choice.strips, output=RESULTS[form.output], addend=OUTPUTS[form.addend] if form.addend else 0,
        bias_type=OUTPUTS[form.bias_type], activation=number(form.activation), alpha=1.0, beta=0.0,
        next=pdl.gemv(choice, sms), **scale_fields(lowering),
    )  # fmt: skip


class GemvLaunch:
    """A prepared product of a few vectors: :meth:`run` launches its kernel. Safe in any number of threads."""

    def __init__(self, gpu: Gpu, choice: GemvChoice, function: int, alone: bool) -> None:
        """Prepare the launch of the kernel ``function``. ``alone``: the machine has no other device."""
        self._gpu, self._alone = gpu, alone
        lowering, form = choice.lowering, choice.lowering.form
        self._lowering, self._swapped, self._k_is_zero = lowering, lowering.swapped, lowering.k_is_zero
        self._bare = not (lowering.has_alpha or form.addend or form.bias or form.scales)
        template, shared = Arguments(params(choice, gpu.sms)), choice.kernel.shared_bytes
        self._function = Function(gpu, function, template, choice.grid, THREADS, shared)

    def run(
        self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, stream: Any, c: Any = None, bias: Any = None,
        **scales: int,
    ) -> None:  # fmt: skip
        """Launch the kernel on ``stream``; operands are addresses."""
        function = self._function
        slot = function.take()
        words = slot.words
        if not self._k_is_zero:
            words[_X], words[_W] = (b, a) if self._swapped else (a, b)
        words[_D] = out
        if not self._bare:
            p = slot.arguments.p
            p.c, p.bias = c or 0, bias or 0
            place_scales(p, self._lowering, scales)
            p.alpha, p.beta = 0.0 if self._k_is_zero else float(alpha), float(beta)
        stream = stream or 0
        if not (self._alone and function.started(slot, stream)):
            with self._gpu:
                function.check(function.start(slot, stream))
        function.free.append(slot)
