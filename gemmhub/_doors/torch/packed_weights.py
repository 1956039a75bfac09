"""Packed weights: the packed form of a linear layer's weight, kept by the layer between calls without gradients.

A packed form is used only while the weight is the tensor that was packed, unchanged. What torch counts is compared in
each call: the tensor itself, its version counter, storage, address, dtype, shape and strides. Writes that torch does
not count (through ``weight.data`` or a NumPy view) are detected where they change one of some elements that are
compared, too. Any difference packs the weight anew.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gemmhub import api, config
from gemmhub._arrays.torch import tensors
from gemmhub._base.evicting import keep
from gemmhub._call import pack
from gemmhub._call.plan import Plan
from gemmhub.errors import GemmhubError, NoBackendError
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
        operands = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
        others = tuple((name, x) for name, x in options.items() if name not in operands)
        described = tuple((name, x.dtype, x.shape, x.stride()) for name, x in operands.items())
        key = a.shape, a.stride(), described, others
        try:
            if key not in self._plans:
                keep(self._plans, key, self._planned(a, weight, options), _PLANS)
            plan, packed = self._plans[key] or (None, None)
            if plan is None:
                return None
            result: Tensor = plan(a, packed, **operands)
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
        if packed.backend != backend:
            return None
        try:
            return api.plan(a, packed, **options), packed
        except NoBackendError:  # the backend packs such a weight, and does not take all of the product's operands
            if not any(self._plans.values()):
                self._packed = None
            return None


class KeepsPacked(torch.nn.Module):
    """A layer that may keep its parameter ``weight`` packed: beside it, and outside of ``state_dict`` and copies."""

    _held: Any = None

    @property
    def packed_bytes(self) -> int:
        """Bytes that the packed form of the weight holds now."""
        held = self._held
        return 0 if held is None else held.nbytes

    def drop_packed(self) -> None:
        """Free the packed form of the weight; the next call without gradients packs it again."""
        self.__dict__.pop("_held", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # FSDP sets a weight again after writes that it hides from the version counter
            self.drop_packed()
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "_held"}


def product(layer: Any, a: Tensor, options: Mapping[str, Any]) -> Tensor | None:
    """The product of ``a`` and the packed weight of ``layer``; None where the layer has to multiply by the weight.

    It has to where autograd records the product, a mode or a transform of torch is active, or a tensor is not a plain
    one on the CPU. The packed form is then dropped.
    """
    weight: Tensor = layer._parameters.get("weight")
    if not _takes(a, weight, [x for x in options.values() if isinstance(x, torch.Tensor)]):
        layer.drop_packed()
        return None
    held = layer._held
    if held is None or not held.holds(weight):
        held = layer.__dict__["_held"] = PackedWeight(weight)
    result: Tensor | None = held.product(a, weight, options)
    return result


def _takes(a: Tensor, weight: Tensor, operands: Sequence[Tensor]) -> bool:
    if a.__class__ is not torch.Tensor or weight.__class__ is not torch.nn.Parameter:
        return False
    if any(x.__class__ not in (torch.Tensor, torch.nn.Parameter) for x in operands):
        return False
    if _autocast() or tensors.traced((a, weight)):  # first: a trace of torch.jit has tensors for sizes
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (a, weight, *operands)):
        return False
    if not (a.is_cpu and weight.is_cpu and a.dtype is weight.dtype and not weight.dtype.is_complex):
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
