"""The deferring library for torch: gradients, tracing, transformed functions, autocast, DTensors."""

from __future__ import annotations

from types import CodeType
from typing import Any


def register() -> None:
    """Register for calls with tensors of torch; calls with plain tensors are left to gemmhub."""
    import torch

    if not hasattr(getattr(torch, "autograd", None), "Function"):
        return  # a torch that is still being imported, or a stand-in for it
    from gemmhub import array_library
    from gemmhub._base import registered
    from gemmhub._doors.torch import calls, node

    array_library.register_deferring(torch.Tensor, calls.take)
    registered.record = node.record_again
    _leave_to_python(torch)


def _leave_to_python(torch: Any) -> None:
    """Make torch's compiler run gemmhub's own functions uncompiled, where it breaks its graph for them.

    Otherwise it would compile them frame by frame. The function that marks code for that is not public in torch: where
    it differs, such calls are slow the first time, and torch issues warnings.
    """
    from gemmhub import api
    from gemmhub._call import plan

    makers = (plan.make_plan, plan._learning_plan, plan._short_plan)
    plans = [code for maker in makers for code in maker.__code__.co_consts if isinstance(code, CodeType)]
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for code in (api.matmul.__code__, api.explain.__code__, *plans):  # explain's is that of every checked function
            frames.set_code_exec_strategy(code, skip)
    except (AttributeError, TypeError):
        return
