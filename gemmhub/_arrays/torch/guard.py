"""One check that torch tensors are still what they were: the guards that torch.compile puts before compiled code.

Asked one by one in Python, the type, dtype, device, shape, strides and flags of three tensors take a microsecond;
torch's own guard compares them all in a quarter of that. It is no public part of torch, so what it does is tried
out once a process, and where any answer is not as expected there are no guards: callers then look for themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

Check = Callable[..., bool]


def guard(*tensors: Any) -> Check | None:
    """A function of as many tensors: whether each has the class, dtype, device, shape, strides, requires_grad and
    lazy bits of these, under the same inference mode; whether grad is recorded does not count. None where torch has no
    such thing. The tensors are not kept.
    """
    return _made(*tensors) if _as_expected() else None


def _made(*tensors: Any) -> Check:
    guards = sys.modules["torch"]._C._dynamo.guards
    check: Check = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@cache
def _as_expected() -> bool:
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
    except Exception:  # whatever another version of torch says to this
        return False
