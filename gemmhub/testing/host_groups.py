"""Check of a kernel's ``groups``: all products of a grouped call at once, with the bits of each product alone."""

from __future__ import annotations

import numpy as np

from gemmhub.backend import Kernel
from gemmhub.testing.answers import call, require
from gemmhub.testing.operands import Operands


def check_host_groups(operands: Operands, kernel: Kernel, name: str) -> None:
    """Run groups of rows of a, by b and its columns in other orders, where the kernel takes groups; a group is empty,
    and the last row belongs to none. AssertionError for one whose bits are not those of its product by ``run``.
    """
    problem = operands.problem
    if kernel.groups is None or problem.empty or problem.batch:
        return  # of a stack it is not called
    label = f"candidate {name!r}, groups()"
    require(problem.plain, f"{label}: returned for a product that is not plain")
    a, b = np.ascontiguousarray(operands.a.array), operands.b.array
    sizes = [problem.m, 0, max(1, problem.m // 2), 1]
    rows = np.concatenate([a[:size] for size in sizes] + [a[:1]])
    stack = np.stack([b, b, b[:, ::-1], np.roll(b, 1, axis=1)])
    ends = np.cumsum(sizes, dtype=np.int64)
    out = np.zeros((len(rows), problem.n), problem.out.dtype)
    out.view(np.uint8)[...] = 0xA5
    untouched = out[-1:].tobytes()
    with np.errstate(all="ignore"):
        if not call(label, kernel.groups, (0, -1, 0), ends, rows, stack, out):
            return
    for i, (start, end) in enumerate(zip([0, *ends], ends)):
        if end > start:
            alone = np.zeros((end - start, problem.n), problem.out.dtype)
            with np.errstate(all="ignore"):
                call("run()", kernel.run, rows[start:end], stack[i], alone, 1, 0, None)
            require(alone.tobytes() == out[start:end].tobytes(), f"{label}: group {i} has other bits than its product")
    require(out[-1:].tobytes() == untouched, f"{label}: a row beyond the last end was written")
