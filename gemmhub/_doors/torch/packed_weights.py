"""Packed weights: the packed form of a linear layer's weight, kept by the layer between calls without gradients.

A packed form is used only while the weight is the tensor that was packed, unchanged. What torch counts is compared in
each call: the tensor itself, its version counter, storage, address, dtype, shape and strides. Writes that torch does
not count (through ``weight.data`` or a NumPy view) are detected where they change one of some elements that are
compared, too. Any difference packs the weight anew.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmhub import api, config
from gemmhub._arrays.torch import tensors
from gemmhub._base.evicting import keep
from gemmhub._call import pack
from gemmhub._call.plan import Plan
from gemmhub.errors import GemmhubError
from gemmhub.kit import locks
from gemmhub.packed import PackedB

Tensor = Any

_PLANS = 256
"""The most plans of one weight."""
_SAMPLES = 16
"""The rows, and the columns, of the elements that are compared in each call."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_autocast = tensors.any_autocast()


class PackedWeight:
    """The packed form of one weight as it is now, under the settings in force, and the plans of its products.

    It keeps no reference to the weight. Threads may share it: two that miss the same entry compute it twice.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight: Any = weakref.ref(weight)
        self._facts, self._settings = _facts(weight), config.current()
        self._storage = StorageWeakRef(weight.untyped_storage())  # while it lives, no other storage has this cdata
        self._sample = _sample(weight).clone()
        self._packed: PackedB | None = None
        self._plans: OrderedDict[Any, tuple[Plan[Tensor], PackedB] | None] = OrderedDict()

    def holds(self, weight: Tensor) -> bool:
        """Whether ``weight`` is the tensor that this was made of, unchanged, and the settings are the same."""
        return (
            self._weight() is weight
            and self._storage.cdata == weight.untyped_storage()._cdata
            and self._facts == _facts(weight)
            and self._settings is config.current()
            and (self._packed is None or torch.equal(_sample(weight), self._sample))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form; 0 while no product needed it."""
        return 0 if self._packed is None else self._packed.nbytes or 0

    def product(self, a: Tensor, weight: Tensor, options: Mapping[str, Any]) -> Tensor | None:
        """The product of ``a`` and the packed weight; None where the weight itself is expected to be as fast."""
        bias = options.get("bias")
        others = tuple((name, value) for name, value in options.items() if name != "bias")
        key = a.shape, a.stride(), None if bias is None else bias.dtype, others
        try:
            if key not in self._plans:
                keep(self._plans, key, self._planned(a, weight, options), _PLANS)
            plan, packed = self._plans[key] or (None, None)
            if plan is None:
                return None
            result: Tensor = plan(a, packed) if bias is None else plan(a, packed, bias=bias)
        except (GemmhubError, KeyError):  # another thread has evicted the plan
            return None  # the call with the weight itself runs, or reports the reason
        return result

    def _planned(self, a: Tensor, weight: Tensor, options: Mapping[str, Any]) -> tuple[Plan[Tensor], PackedB] | None:
        b, rows = weight.detach().t(), a.numel() // a.shape[-1]
        with locks.deciding:
            backend = pack.saver(b, rows, options.get("backend"), options.get("reproducible"))
        if backend is None:
            return None
        packed = self._packed
        if packed is None:
            packed = self._packed = api.pack(b, m=rows, backend=backend, reproducible=options.get("reproducible"))
        return (api.plan(a, packed, **options), packed) if packed.backend == backend else None


def product(layer: Any, a: Tensor, options: Mapping[str, Any]) -> Tensor | None:
    """The product of ``a`` and the packed weight of ``layer``; None where the layer has to multiply by the weight.

    It has to where autograd records the product, a mode or a transform of torch is active, or a tensor is not a plain
    one on the CPU. The packed form is then dropped.
    """
    weight: Tensor = layer._parameters.get("weight")
    bias = options.get("bias")
    if not _takes(a, weight, bias):
        layer.drop_packed()
        return None
    held = layer._held
    if held is None or not held.holds(weight):
        held = layer.__dict__["_held"] = PackedWeight(weight)
    result: Tensor | None = held.product(a, weight, options)
    return result


def _takes(a: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if a.__class__ is not torch.Tensor or weight.__class__ is not torch.nn.Parameter:
        return False
    if bias is not None and bias.__class__ not in (torch.Tensor, torch.nn.Parameter):
        return False
    if _autocast() or tensors.traced((a, weight)):  # first: a trace of torch.jit has tensors for sizes
        return False
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, weight, bias)):
        return False
    if not (a.is_cpu and weight.is_cpu and a.dtype is weight.dtype and weight.dtype.is_floating_point):
        return False
    if weight.is_inference() or weight.is_shared() or any(x.is_neg() or x.is_conj() for x in (a, weight)):
        return False  # an inference tensor counts no writes, and another process may write into shared memory
    return bool(a.ndim and a.numel() and weight.numel())


def _facts(weight: Tensor) -> tuple[Any, ...]:
    return weight._version, weight.data_ptr(), weight.dtype, weight.shape, weight.stride()


def _sample(weight: Tensor) -> Tensor:
    """Elements in rows and columns spread over the weight, as integers."""
    rows, columns = (-(-size // _SAMPLES) for size in weight.shape)
    return weight.detach()[::rows, ::columns].view(_WORDS[weight.element_size()])
