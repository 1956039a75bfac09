"""Whether a backend takes the grouped products of experts on a device.

It is decided by dtypes, sizes and layouts alone. So nothing is read from the device, and nothing waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gemmhub import api, config, dtypes
from gemmhub._arrays.plugin_arrays import torch_type
from gemmhub._arrays.torch.operands import torch_dtypes
from gemmhub._base.geometry import MAX_ALIGNMENT
from gemmhub._call.describe import numerics
from gemmhub._call.options import Request
from gemmhub._grouped.call import check_options
from gemmhub.capability import Device
from gemmhub.epilogues import EPILOGUES
from gemmhub.kit import locks
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Groups, Operand

Weights = tuple[tuple[int, int, int], tuple[int, int, int], int]
"""Shape (experts, columns, k), strides in elements, and address modulo :data:`MAX_ALIGNMENT` of the weights of a layer:
transposed they are the b of its product."""

_ROWS = 1024
"""Rows of tokens of the problems that are decided. No refusal of groups depends on it, and traced calls have none."""


def taken(
    device_type: str, index: int, dtype: torch.dtype, weights_dtype: torch.dtype, up: Weights, down: Weights,
    activation: str | None, recorded: bool, options: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether backends take the products of both layers of experts, the first with this activation.

    Where autograd records them, backends must take those of the gradients, too.
    """
    known = torch_type(device_type, torch)
    if known is None:
        return False
    cache = api._cache  # before settings are read
    key = (
        "experts", config.current(), known.name, index, dtype, weights_dtype, up, down, activation, recorded,
        tuple(options.items()),
    )  # fmt: skip
    answer: bool | None = cache.find(key)
    if answer is not None:
        return answer
    device = Device(known.name, index)
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide

        cacheable = True
        for request, problem in _problems(device, dtype, weights_dtype, up, down, activation, recorded, options):
            decision = decide.decide(problem, request.settings)
            cacheable &= decision.cacheable
            if decision.chosen is None:
                answer = False
                break
        else:
            answer = True
    if cacheable:
        cache.put(key, answer)
    return answer


taken._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's compiler does not trace it


def _problems(
    device: Device, dtype: torch.dtype, weights_dtype: torch.dtype, up: Weights, down: Weights,
    activation: str | None, recorded: bool, options: Mapping[str, Any],
) -> Iterator[tuple[Request, GemmProblem]]:  # fmt: skip
    """The products of both layers and, where autograd records them, those of their gradients."""
    ours, _ = torch_dtypes()
    tokens, weights = ours[dtype], ours[weights_dtype]
    for layer, epilogue in ((up, activation), (down, None)):
        (count, columns, k), (outer, row, column), address = layer
        request = check_options({**options, "activation": epilogue})
        aligned = math.gcd(address, MAX_ALIGNMENT)
        lines = Operand(tokens, MatrixLayout.contiguous(_ROWS, k), MAX_ALIGNMENT)
        b = Operand(weights, MatrixLayout(k, columns, column, row, (count,), (outer,)), aligned)
        product = dtypes.output_dtype(tokens, weights, None)
        yield request, _problem(request, device, "m", lines, b)
        if recorded:
            grad = Operand(product, MatrixLayout.contiguous(_ROWS, columns), MAX_ALIGNMENT)
            turned = Operand(product, grad.layout.transposed, MAX_ALIGNMENT)
            request = check_options(options)
            yield request, _problem(request, device, "m", grad, Operand(weights, b.layout.transposed, aligned))
            yield request, _problem(request, device, "k", turned, lines, count)
        tokens = product


def _problem(
    request: Request, device: Device, divides: str, a: Operand, b: Operand, count: int | None = None
) -> GemmProblem:  # fmt: skip
    """The problem of one grouped product with a new result; ``count`` is given where no operand has it."""
    m, k, n = a.layout.rows, a.layout.cols, b.layout.cols
    groups = Groups(b.layout.batch[0] if count is None else count, divides)
    out = dtypes.output_dtype(a.dtype, b.dtype, request.out_dtype)
    _, compute, precision = numerics(request, a.dtype, b.dtype, out, device)
    columns = n if request.activation is None else EPILOGUES[request.activation].columns(n)
    return GemmProblem(
        m=m, n=n, k=k, a=a, b=b,
        out=Operand(out, MatrixLayout.contiguous(m, columns, groups.batch("out")), MAX_ALIGNMENT),
        compute_dtype=compute, activation=request.activation, precision=precision,
        reproducible=request.settings.reproducible, device=device, groups=groups,
    )  # fmt: skip
