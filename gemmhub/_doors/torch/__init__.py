"""Tensors of torch that need more than their memory: gradients, tracing, transformed functions, autocast."""

from __future__ import annotations

from types import CodeType
from typing import Any


def register() -> None:
    """Take the calls with tensors of torch; each is looked at, and plain ones are left to gemmhub."""
    import torch

    if not hasattr(getattr(torch, "autograd", None), "Function"):
        return  # a torch that is still being imported, or a stand-in for it
    from gemmhub import array_library
    from gemmhub._base import registered
    from gemmhub._doors.torch import calls

    array_library.register_deferring(torch.Tensor, calls.take)
    registered.record = calls.record
    _leave_to_python(torch)


def _leave_to_python(torch: Any) -> None:
    """Have torch's compiler run gemmhub's own functions as they are, where it leaves its graph for them.

    Else it would compile them frame by frame. What marks code for that is no public part of torch: where it is another,
    such calls are slow the first time, and torch warns of what it meets.
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
