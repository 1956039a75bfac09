"""A user's program: mypy --strict checks it, and it is not run. A line that is wrong must be reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import gemmhub


class Tensor:
    """An array of a library without a type in gemmhub."""


a: npt.NDArray[np.float32] = np.ones((2, 3), np.float32)
b: npt.NDArray[np.float32] = np.ones((3, 2), np.float32)

assert_type(gemmhub.matmul(a, b), npt.NDArray[np.float32])
assert_type(gemmhub.matmul(Tensor(), Tensor()), Tensor)
assert_type(gemmhub.matmul([[1.0]], a), Any)
gemmhub.matmul(a, b, bias=a[0], activation="gelu", precision="tf32", alpha=2, beta=0.5, c=a, reproducible="run")
gemmhub.matmul(a, b, scale_a=a[0], scale_b=a[0, :1])
assert_type(gemmhub.linear(a, b, a[0], activation="silu", out=a), npt.NDArray[np.float32])
assert_type(gemmhub.einsum("ij,jk,kl->il", a, b, a, precision="tf32"), npt.NDArray[np.float32])
assert_type(gemmhub.einsum("ij,jk", Tensor(), Tensor()), Tensor)
assert_type(gemmhub.einsum("i,i", [1.0], [2.0]), Any)
assert_type(gemmhub.tensordot(a, b, ((1,), (0,)), out_dtype="float64"), npt.NDArray[np.float32])
assert_type(gemmhub.vecdot(a, a, axis=0, backend="numpy"), npt.NDArray[np.float32])
assert_type(gemmhub.bmm(a[None], b[None], alpha=2), npt.NDArray[np.float32])

tuned = gemmhub.tune(a, b, bias=a[0])
assert_type(tuned.best.seconds, float | None)
of_function = gemmhub.tune(lambda x, scale: gemmhub.matmul(x, b, alpha=scale), a, scale=2, records="the function's own")
assert_type(of_function.gain, float | None)
of_function.save("model.jsonl")
with gemmhub.use(records=["model.jsonl", tuned.path or "other.jsonl"], precision="tf32"):
    pass

plan = gemmhub.plan(a, b, backend="numpy")
assert_type(plan.decision, gemmhub.Decision)
assert_type(plan.kernel, gemmhub.Kernel)
assert_type(plan, gemmhub.Plan[npt.NDArray[np.float32]])
assert_type(plan(a, b), npt.NDArray[np.float32])
assert_type(gemmhub.plan(Tensor(), Tensor())(Tensor(), Tensor()), Tensor)
assert_type(gemmhub.plan([[1.0]], a)(a, a), Any)
spec = gemmhub.ArraySpec((2, 3), "bfloat16", order="F", device="cuda:1")
assert_type(gemmhub.plan(spec, spec)(a, b), Any)
assert_type(gemmhub.explain(spec, spec), gemmhub.Decision)
assert_type(gemmhub.explain(a, b), gemmhub.Decision)
assert_type(gemmhub.explain(a, b).chosen, "str | None")
assert_type(gemmhub.pack(b), gemmhub.PackedB)
assert_type(bool(gemmhub.spot_check(a, b, a)), bool)
with gemmhub.use(backend="numpy"):
    pass

gemmhub.matmul(a, b, activation="swish")  # type: ignore[call-overload]
gemmhub.matmul(a, b, activation=gemmhub.register_epilogue("twice", lambda x, functions: 2 * x, slope=2, evaluation=0))
gemmhub.matmul(a, b, precision="fp16")  # type: ignore[call-overload]
gemmhub.matmul(a, b, reproducible=1)  # type: ignore[call-overload]
gemmhub.matmul(a, b, tile=3)  # type: ignore[call-overload]
gemmhub.matmul(a, b, a)  # type: ignore[call-overload]
gemmhub.use("numpy")  # type: ignore[arg-type]
gemmhub.matmul(a)  # type: ignore[call-overload]
gemmhub.einsum("ij,jk", a, b, activation="relu")  # type: ignore[call-overload]
gemmhub.linear(a, b, scale=2)  # type: ignore[call-overload]
print(gemmhub.explain(a, b).winner)  # type: ignore[attr-defined]
