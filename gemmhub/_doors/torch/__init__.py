"""The deferring library for torch: gradients, tracing, transformed functions, autocast, DTensors."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register for calls with tensors of torch; calls with plain tensors are left to gemmhub."""
    import torch

    if not hasattr(getattr(torch, "autograd", None), "Function"):
        return  # a torch that is still being imported, or a stand-in for it
    from gemmhub import api, array_library
    from gemmhub._base import registered
    from gemmhub._doors.torch import dispatch, node

    array_library.register_deferring(torch.Tensor, dispatch.take)
    registered.record = node.record_again
    registered.exempt = exempt
    for function in (api.matmul, api.explain):  # explain's code is that of every checked function
        exempt(function)


def exempt(function: Any) -> None:
    """Make torch's compiler run a function of gemmhub uncompiled, where it breaks its graph for it.

    Otherwise it would compile what the function calls, frame by frame. The function that marks code for that is not
    public in torch: where it differs, such calls are slow the first time, and torch issues warnings.
    """
    import torch

    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(function.__code__, skip)
    except (AttributeError, TypeError):
        return
