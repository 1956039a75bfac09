"""Tuning on the workers: each times its own backends on a block of the product, and records the times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import api
from gemmhub._doors.dask import blocking, cluster, operands

if TYPE_CHECKING:
    from gemmhub._measure.tune import TuneResult


def tune(a: Any, b: Any, **options: Any) -> dict[str, TuneResult]:
    """Time every backend of every worker on a block of this product; return the results by the workers' addresses.

    The blocks are random numbers in the memory of the CPU. Later blocks like these use the fastest backend of their
    worker. Without a client this process is tuned, and named "local". See :func:`gemmhub.tune`.
    """
    call = operands.describe(a, b, options)
    chosen = blocking.choose(call, cluster.present())
    m, n, k = (max(chosen.chunks[x], default=0) for x in "mnk")
    how = {**call.request.in_force, "out_dtype": call.accumulator if chosen.steps > 1 else call.out_dtype}
    operand_dtypes = call.a.array.dtype, call.b.array.dtype
    client = cluster.current_client()
    if client is None:
        return {"local": _tune((m, n, k), operand_dtypes, how)}
    return dict(client.run(_tune, (m, n, k), operand_dtypes, how))


def _tune(sizes: tuple[int, int, int], operand_dtypes: tuple[Any, Any], options: Mapping[str, Any]) -> TuneResult:
    """Tune one block on this worker."""
    m, n, k = sizes
    rng = np.random.default_rng(0)
    a, b = (_draw(rng, shape, dtype) for shape, dtype in (((m, k), operand_dtypes[0]), ((k, n), operand_dtypes[1])))
    tuned: TuneResult = api.tune(a, b, **options)
    return tuned


def _draw(rng: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Any:
    """Random numbers of a dtype whose products do not overflow."""
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape, np.int8).astype(dtype)
    return rng.standard_normal(shape, np.float32).astype(dtype)
