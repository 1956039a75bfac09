"""Cache of prepared products of DTensors: sharding, collectives and result specification by call signature.

A signature is both operands' specifications (mesh, placements, shape, strides, dtype) and the options. Its first
product is computed by :mod:`sharded`; the cache then keeps the collectives, the options of the local product, and the
specification of the result. Products with addends, in chunks, or recorded for autograd are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from gemmhub import api
from gemmhub._call.options import pins_rows
from gemmhub._doors.torch.collectives import waited

Tensor = Any
Move = Callable[[Tensor], Tensor]

LIMIT = 1024
_PLAIN = (str, int, float, complex, type(None), torch.dtype)
"""Options that can be part of a key."""


class Prepared(NamedTuple):
    """The prepared product of one call signature."""

    a: Move | None
    """The move of the local part of a; None where it stays."""
    b: Move | None
    options: dict[str, Any]
    """Options of the local product."""
    after: Move | None
    """The operations on the local product."""
    spec: Any
    """torch's specification of the result."""

    def __call__(self, a: DTensor, b: DTensor) -> DTensor:
        left, right = waited(a._local_tensor), waited(b._local_tensor)
        if self.a is not None:
            left = self.a(left)
        if self.b is not None:
            right = self.b(right)
        result = api.matmul(left, right, **self.options)
        if self.after is not None:
            result = self.after(result)
        return DTensor(result, self.spec, requires_grad=False)


_kept: dict[Any, Prepared] = {}


def signature(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
    """The call signature of a product; None where products like it are not kept."""
    if type(a) is not DTensor or type(b) is not DTensor or out is not None or torch.compiler.is_compiling():
        return None
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return None
    pinned = pins_rows(options.get("reproducible"))  # the settings in force may pin what the options do not
    if not options:
        return a._spec, b._spec, pinned
    if not all(isinstance(x, _PLAIN) for x in options.values()) or options.get("stream") is not None:
        return None
    return a._spec, b._spec, pinned, *options.items()


def find(key: Any) -> Prepared | None:
    """The prepared product for this very mesh: equal ones may have other process groups."""
    prepared = _kept.get(key)
    return prepared if prepared is not None and prepared.spec.mesh is key[0].mesh else None


def keep(key: Any, prepared: Prepared) -> None:
    """Keep a prepared product; after ``LIMIT`` signatures begin anew."""
    if len(_kept) >= LIMIT:
        _kept.clear()
    _kept[key] = prepared
