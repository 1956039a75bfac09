"""One check that torch tensors are still what they were: the guards that torch.compile puts before compiled code.

Compared one by one in Python, the type, dtype, device, shape, strides and flags of three tensors take a microsecond;
torch's own guard compares them all in a quarter of that. It is not public in torch, so its behaviour is tested once
a process; where any answer is not as expected there are no guards, and callers compare in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

Check = Callable[..., bool]


def guard(*tensors: Any) -> Check | None:
    """A function that compares as many tensors with these.

    It compares class, dtype, device, shape, strides, requires_grad, lazy bits and the inference mode; the grad mode is
    ignored. None where torch has no usable guard. The tensors are not kept alive.
    """
    return _made(*tensors) if usable() else None


def _made(*tensors: Any) -> Check:
    guards = sys.modules["torch"]._C._dynamo.guards
    check: Check = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@cache
def usable() -> bool:
    torch = sys.modules["torch"]
    try:
        x, y = torch.empty(3, 4), torch.empty(3, 4)
        check = _made(x, y)
        if not (check(x, y) and check(y, torch.empty(3, 4))):
            return False

        class Other(torch.Tensor):  # type: ignore[misc, name-defined]
            pass

        others = (
            torch.empty(4, 3), torch.empty(3, 4, 1), torch.empty(3, 5)[:, :4], torch.empty(4, 3).t(),
            torch.empty(3, 4, dtype=torch.float64), torch.empty(3, 4).requires_grad_(), x.as_subclass(Other),
            torch.empty(3, 4, device="meta"), torch.conj(torch.zeros(3, 8, dtype=torch.complex64)).imag[:, ::2],
        )  # fmt: skip
        negated = torch.conj(torch.zeros(3, 4, dtype=torch.complex64)).imag
        lazy = _made(torch.empty_strided(negated.shape, negated.stride()))
        return not any(check(x, other) or check(other, y) for other in (*others, None, 1)) and not lazy(negated)
    except Exception:  # another version of torch may raise anything
        return False
