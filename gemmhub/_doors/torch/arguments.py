"""The argument of the activation of a recorded product, written by the backend that computes the product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gemmhub import api, config
from gemmhub._arrays.torch.operands import epilogue_dtype
from gemmhub._call.keys import number_class
from gemmhub._call.options import NUMBERS
from gemmhub._doors.torch.shapes import result

Tensor = Any
_settings = config.context.get


def both(a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The product, and the argument of its activation in the accumulator's dtype: plain tensors."""
    argument = new(a, b, options.get("out_dtype"))
    return api.matmul(a, b, **options, pre_activation=argument), argument


def new(a: Tensor, b: Tensor, wanted: Any) -> Tensor:
    """A tensor for the argument of the activation of a product."""
    shape, dtype = result(a, b, wanted)
    return a.new_empty(shape, dtype=epilogue_dtype(a.dtype, b.dtype, dtype))


def written(a: Tensor, b: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether the backend that runs a product writes the argument of its activation, too.

    Another backend's result might have other bits. Where the choice depends on no size and no layout, it is looked up
    by dtypes and options alone.
    """
    cache = api._cache  # before settings are read
    family = _family(a, b, options)
    if family is None:
        return False
    decision = cache.find(family)
    if decision is None:
        key = *family, *(x for t in (a, b) for x in (t.shape, t.stride(), t.data_ptr() % 256))
        decision = cache.find(key)
        if decision is None:
            plain = api.explain(a, b, **options)
            wider = api.explain(a, b, **options, pre_activation=new(a, b, options.get("out_dtype")))
            decision = plain.chosen is not None and plain.chosen == wider.chosen
            free = all(x.size_free and x.layout_free for x in (plain, wider))
            cache.put(family if free else key, decision)
    return bool(decision)


def _family(a: Tensor, b: Tensor, options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The facts of a call but for sizes and strides; None where one is not known without a look at a tensor."""
    key = ["argument", _settings(), a.device, a.dtype, b.dtype, a.dim(), b.dim()]
    for name, x in options.items():
        if isinstance(x, torch.Tensor):
            if name in NUMBERS:
                return None
            key += (name, x.dtype, x.dim())
        else:
            key += (name, number_class(x) if name in NUMBERS else x)
    return tuple(key)
