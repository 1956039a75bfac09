"""Implementations with planted faults. Each function stands alone: its source is the script that repeats the fault."""

from __future__ import annotations

import numpy as np

from gemmhub.testing import Claims, Implementation, products

ALL = frozenset({"batch"})
F32 = products("f32")


def correct(a, b):
    return np.matmul(a, b)


def correct_with_everything(a, b, c=None, bias=None, alpha=1, beta=0, out=None):
    result = alpha * np.matmul(a, b) if alpha else np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    result = result + beta * c if beta else result
    result = result if bias is None else result + bias
    result = result.astype(a.dtype)
    if out is None:
        return result
    out[...] = result


def drops_k_remainder(a, b):
    k = a.shape[-1] // 32 * 32 if a.shape[-1] > 32 else a.shape[-1]
    return a[..., :k] @ b[..., :k, :]


def reads_c_at_beta_zero(a, b, c=None, beta=0):
    return a @ b if c is None else a @ b + np.float32(beta) * c


def ignores_the_stride_of_a_vector(a, b):
    if b.shape[1] == 1:
        b = np.lib.stride_tricks.as_strided(b, b.shape, (b.itemsize, b.itemsize))
    return a @ b


def reads_past_a_row(a, b):
    if a.shape[1] % 2:
        a = np.lib.stride_tricks.as_strided(a, (a.shape[0], a.shape[1] + 1), a.strides)
        b = np.concatenate([b, np.zeros((1, b.shape[1]), b.dtype)])
    return a @ b


def misses_an_odd_leading_dimension(a, b):
    lead = a.strides[0] // a.itemsize
    if lead % 2 and lead > a.shape[1] and a.shape[0] > 1 and a.strides[1] == a.itemsize:
        a = np.lib.stride_tricks.as_strided(a, a.shape, ((lead - 1) * a.itemsize, a.itemsize))
    return a @ b


def saturates_pairs(a, b):
    if a.shape[1] % 2:
        a, b = np.pad(a, ((0, 0), (0, 1))), np.pad(b, ((0, 1), (0, 0)))
    terms = a[:, :, None].astype(np.int32) * b[None].astype(np.int32)
    pairs = terms[:, 0::2] + terms[:, 1::2]
    return np.clip(pairs, -32768, 32767).sum(axis=1, dtype=np.int32)


def accumulates_in_16_bits(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for i in range(a.shape[1]):
        total = total + a[:, i : i + 1] * b[i]
    return total


def adds_the_bias_after_rounding(a, b, bias=None):
    product = a.astype(np.float64) @ b.astype(np.float64)
    return product.astype(np.float16) if bias is None else product.astype(np.float16) + bias


def ignores_the_batch_stride(a, b):
    if a.ndim == 3 and b.ndim == 3:
        b = np.broadcast_to(b[:1], b.shape)
    return a @ b


def drops_nan(a, b):
    return np.nan_to_num(a @ b, nan=0.0, posinf=np.inf, neginf=-np.inf)


def writes_while_it_reads(a, b, out=None):
    out = np.empty((a.shape[0], b.shape[1]), a.dtype) if out is None else out
    for j in range(b.shape[1]):
        out[:, j] = a @ b[:, j]
    return out


def adds_in_any_order(a, b):
    order = np.random.permutation(a.shape[1])
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for i in order:
        total += a[:, i : i + 1] * b[i]
    return total


def has_another_order_for_one_row(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    order = range(a.shape[1])
    for i in reversed(order) if a.shape[0] == 1 else order:
        total += a[:, i : i + 1] * b[i]
    return total


def shares_a_buffer_between_threads(a, b):
    import threading

    return a @ b if threading.current_thread() is threading.main_thread() else a @ b + 1


def writes_past_the_result(a, b, out=None):
    if out is None:
        return a @ b
    out[...] = a @ b
    if out.strides[1] == out.itemsize:
        np.lib.stride_tricks.as_strided(out, (out.shape[0], out.shape[1] + 1), out.strides)[-1:, -1] = 0


def changes_an_operand(a, b):
    a *= 2
    return a @ b / 2


def transposes_stacks(a, b):
    result = a @ b
    square = result.ndim == 3 and result.shape[1] == result.shape[2]
    return np.ascontiguousarray(result.swapaxes(1, 2)) if square else result


def applies_alpha_to_c(a, b, c=None, alpha=1, beta=0):
    return np.float32(alpha) * (a @ b + np.float32(beta) * c) if c is not None else np.float32(alpha) * (a @ b)


def doubles_by_imports_of_its_own(a, b):
    import ml_dtypes
    import numpy as np

    wide = a.astype(np.float32) @ b.astype(np.float32) * np.float32(2)
    return wide.astype(ml_dtypes.bfloat16) if a.dtype != ml_dtypes.float8_e5m2 else wide


C, BIAS = {"c": frozenset({"matrix"})}, {"bias": frozenset({"n"})}
SCALED = frozenset({"alpha"})

PLANTED = {
    "drops_k_remainder": (Claims(F32), "product", "value"),
    "reads_c_at_beta_zero": (Claims(F32, takes=C, features=frozenset({"zero beta"})), "nan in c", "nan"),
    "ignores_the_stride_of_a_vector": (Claims(F32), "product", "nan"),
    "reads_past_a_row": (Claims(F32), "product", "nan"),
    "misses_an_odd_leading_dimension": (Claims(F32), "product", "nan"),
    "saturates_pairs": (Claims(products("int8->int32")), "product", "value"),
    "accumulates_in_16_bits": (Claims(products("f16")), "product", "value"),
    "adds_the_bias_after_rounding": (Claims(products("f16"), takes=BIAS), "product", "value"),
    "ignores_the_batch_stride": (Claims(F32, features=ALL), "product", "value"),
    "drops_nan": (Claims(F32), "product", "value"),
    "writes_while_it_reads": (Claims(F32, features=frozenset({"out", "alias"})), "alias", "value"),
    "adds_in_any_order": (Claims(F32, bits=frozenset({"run"})), "repeat", "bits"),
    "has_another_order_for_one_row": (Claims(F32, bits=frozenset({"rows"})), "rows", "bits"),
    "shares_a_buffer_between_threads": (Claims(F32), "threads", "value"),
    "writes_past_the_result": (Claims(F32, features=frozenset({"out"})), "product", "outside"),
    "changes_an_operand": (Claims(F32), "product", "input"),
    "transposes_stacks": (Claims(F32, features=ALL), "product", "value"),
    "applies_alpha_to_c": (Claims(F32, takes=C, features=SCALED), "product", "value"),
}
"""By the name of a function above: its claims, and the kinds of the trial and of the fault that find it."""


def planted(name: str) -> Implementation:
    return Implementation.of(globals()[name], PLANTED[name][0])
