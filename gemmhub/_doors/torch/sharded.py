"""Products of DTensors: operands are placed as :mod:`placements` chooses, local ones multiplied, partial sums added.

Where k is split, partial results leave the product in the accumulator's dtype (float32 for 16 bits), are reduced in it,
and rounded once. A gradient is a product of DTensors, too, and gets the placements of its operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gemmhub import api, dtypes
from gemmhub._arrays.torch.operands import epilogue_dtype, output_dtype, torch_dtypes
from gemmhub._base.wording import instance
from gemmhub._call.options import pins_rows, refuse_operands, refuse_recorded
from gemmhub._doors.torch import activations, adjoints, collectives, gradients, node, overlapped, repeated
from gemmhub._doors.torch.placements import Sizes, Split, choose, placed, scattered
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DTypeError, InputError, OutputError, ShapeError
from gemmhub.operands import addend_dtypes
from gemmhub.verdict import Decision, Partition

Tensor = Any

_ADDED = ("c", "bias")
"""Operands that products of DTensors have beside a, b and out."""
_LATER = ("c", "beta", "bias", "activation", "out_dtype")
"""Options that act on the whole sum, after partial results are added."""


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of a call with DTensors."""
    if call == "matmul":
        return matmul(*operands, **options)
    if call == "explain":
        return explain(*operands, **options)
    name = next((name for name, x in zip(("a", "b", "result"), operands) if isinstance(x, DTensor)), "a")
    raise InputError(
        name, f"a DTensor, in {call}", "DTensors in matmul and explain", f"pass {name}.to_local(), or .full_tensor()"
    )


def matmul(a: Any, b: Any, *, out: Any = None, **options: Any) -> Tensor:
    """The product as a DTensor, with the placements that :func:`explain` shows; see :func:`gemmhub.matmul`."""
    key = repeated.signature(a, b, out, options)
    prepared = None if key is None else repeated.find(key)
    if prepared is not None:
        return prepared(a, b)
    call_options = dict(options)
    refuse_recorded(options)
    checked(a, b, out, options)
    tensors = [x for x in (a, b, out, options.get("c"), options.get("bias")) if isinstance(x, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if recorded and out is not None:
        raise OutputError(
            "out", "given where a tensor requires grad", "no out with tensors that require grad", "drop out="
        )
    rows, columns = a.ndim == 1, b.ndim == 1
    left, right = a.unsqueeze(0) if rows else a, b.unsqueeze(1) if columns else b
    if columns and not rows and getattr(options.get("bias"), "ndim", 0) == 1:
        options["bias"] = options["bias"].unsqueeze(1)  # an element for each row
    if options.get("c") is not None:
        addend = options["c"].unsqueeze(-1) if columns else options["c"]
        options["c"] = addend.unsqueeze(-2) if rows else addend
    if torch.compiler.is_compiling():
        result = multiplied(left, right, **options)
    elif recorded:
        computed = gradients.Computed(multiplied, multiplied, lambda a, b, options: False, matmul, _over_rows)
        result = node.record(_Recorded, computed, left, right, options)
    else:
        with torch.no_grad():  # so that .to_local() records no node of autograd
            result = multiplied(left, right, **options)
            if key is not None and not rows and not columns:
                _keep(key, a, b, call_options, result)
    result = result.squeeze(-1) if columns else result
    result = result.squeeze(-2 if not columns else -1) if rows else result
    if out is None:
        return result
    if (
        out.shape != result.shape
        or out.dtype is not result.dtype
        or any(isinstance(p, Partial) for p in out.placements)
    ):
        raise OutputError(
            "out", f"{tuple(out.shape)} {out.dtype}, placed {out.placements}",
            f"{tuple(result.shape)} {result.dtype}, sharded or replicated",
        )  # fmt: skip
    return out.copy_(result)


def _keep(key: Any, a: DTensor, b: DTensor, options: dict[str, Any], result: DTensor) -> None:
    """Keep this product prepared for its call signature, where its moves are single collectives, in one chunk."""
    split, shape, _, dtype, wide, ends = facts(a, b, options)
    mesh = a.device_mesh
    changes = [
        (tuple(a.shape), placed(a.placements, a.ndim), split.a), (tuple(b.shape), placed(b.placements, b.ndim), split.b)
    ]  # fmt: skip
    chunks = any(overlapped.gathering(x, *change[1:], mesh) is not None for x, change in zip((a, b), changes))
    if "k" in split.axes:
        chunks = chunks or overlapped.scattering(shape, wide, split.partial, split.out, mesh) is not None
        changes.append((shape, split.partial, split.out))
    moves = [None if old == new else collectives.move(of, mesh, old, new) for of, old, new in changes]
    if chunks or any(move is None and old != new for move, (_, old, new) in zip(moves, changes)):
        return
    after = None
    local_options = dict(options)
    if "k" in split.axes:
        local_options = {name: x for name, x in options.items() if name not in _LATER} | {"out_dtype": wide}
        name, total = options.get("activation"), moves[2]

        def after(part: Tensor) -> Tensor:
            part = part if total is None else total(part)
            part = part.to(ends)
            return adjoints.rounded(part if name is None else activations.activated(name, part), dtype)

    repeated.keep(key, repeated.Prepared(moves[0], moves[1], local_options, after, result._spec))


def checked(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> None:
    """InputError unless all arrays of a call are DTensors on one mesh; ShapeError unless they fit."""
    refuse_operands(options, _ADDED, "with a DTensor")
    for name, x in {"a": a, "b": b, "out": out, "c": options.get("c"), "bias": options.get("bias")}.items():
        if x is None:
            continue
        if not isinstance(x, DTensor):
            raise InputError(
                name, f"{instance(type(x))} beside a DTensor", "DTensors only",
                "place it by torch.distributed.tensor.distribute_tensor, or pass .to_local() of the others",
            )  # fmt: skip
        mesh = a.device_mesh if isinstance(a, DTensor) else x.device_mesh
        if x.device_mesh != mesh:
            raise InputError(name, f"on {x.device_mesh}", f"{mesh}, that of a", "redistribute it")
        if any(not _known(p) for p in x.placements):
            raise InputError(
                name, f"placed {x.placements}", "Shard, Replicate and Partial of sums", "redistribute it first"
            )
    if options.get("stream") is not None:
        raise InputError("stream", "given with a DTensor", "None", "make the stream current: with torch.cuda.stream(s)")
    if options.get("c") is not None and "beta" not in options:
        raise InputError("c", "given without beta", "c with beta", "pass beta=1 to add it")
    if options.get("activation") not in (None, *EPILOGUES):
        raise InputError("activation", f"{options['activation']!r}", f"None, {', '.join(EPILOGUES)}")
    for name, x in (("a", a), ("b", b)):
        if not x.ndim:
            raise ShapeError(name, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    if a.shape[-1] != b.shape[0 if b.ndim == 1 else -2]:
        raise ShapeError("a, b", f"{tuple(a.shape)} by {tuple(b.shape)}", "as many columns of a as rows of b")


def _known(placement: Any) -> bool:
    if isinstance(placement, Partial):
        return bool(placement.reduce_op == "sum")
    return isinstance(placement, (Shard, Replicate))


class Facts(NamedTuple):
    """Facts that are computed once for products of one call signature."""

    split: Split
    shape: tuple[int, ...]
    """Shape of the result."""
    strides: tuple[int, ...]
    dtype: Any
    """torch's, of the result."""
    wide: Any
    """torch's, of the accumulator."""
    ends: Any
    """torch's, of the epilogue."""


def facts(a: DTensor, b: DTensor, options: Mapping[str, Any]) -> Facts:
    """The split and dtypes of a product of operands of two dimensions or more.

    InputError where the bits of rows are pinned and an operand is divided along k.
    """
    mesh = a.device_mesh
    analysis: Facts = _facts(
        tuple(a.shape), tuple(b.shape), a.dtype, b.dtype, options.get("out_dtype"),
        pins_rows(options.get("reproducible")), tuple(mesh.shape), mesh.device_type, tuple(a.placements),
        tuple(b.placements),
    )  # fmt: skip
    return analysis


@torch.compiler.assume_constant_result
def _facts(*arguments: Any) -> Facts:
    """The same, without tensors; torch's compiler does not trace it."""
    return _settled(*arguments)


@lru_cache(maxsize=1024)
def _settled(
    a: tuple[int, ...], b: tuple[int, ...], a_dtype: Any, b_dtype: Any, wanted: Any, pinned: bool,
    mesh: tuple[int, ...], device: str, a_placements: tuple[Any, ...], b_placements: tuple[Any, ...],
) -> Facts:  # fmt: skip
    to_ours, to_torch = torch_dtypes()
    if wanted is not None and not isinstance(wanted, torch.dtype):
        wanted = to_torch[dtypes.as_dtype(wanted)]
    dtype = output_dtype(a_dtype, b_dtype, wanted)
    wide = to_torch[dtypes.compute_dtype(to_ours[a_dtype], to_ours[b_dtype], to_ours[dtype])]
    shape = (*torch.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    itemsize = max(a_dtype.itemsize, b_dtype.itemsize)
    sizes = Sizes(a, b, shape, mesh, itemsize, wide.itemsize, device, pinned)
    before = placed(a_placements, len(a)), placed(b_placements, len(b))
    for name, dim, placements in zip("ab", (len(a) - 1, len(b) - 2), before):
        if pinned and any(p == Shard(dim) and devices > 1 for p, devices in zip(placements, mesh)):
            raise InputError(
                "reproducible", f"the bits of rows pinned, and {name} placed {_named(placements)}, which divides k: "
                "partial sums would be added", "operands divided along rows, columns or batches, or replicated",
                f'redistribute {name}, or pass reproducible="run"',
            )  # fmt: skip
    split = choose(sizes, *before)
    return Facts(split, shape, _strides(shape), dtype, wide, epilogue_dtype(a_dtype, b_dtype, dtype))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a C-ordered tensor, in elements."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def ended(analysis: Facts, mesh: Any, activation: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and strides of the result. InputError where devices have parts of the pairs of columns of a gate."""
    shape, strides = analysis.shape, analysis.strides
    epilogue = None if activation is None else EPILOGUES[activation]
    if epilogue is None or epilogue.arity == 1:
        return shape, strides
    if shape[-1] % epilogue.arity:
        text = f"{activation} with {shape[-1]} columns of the product"
        raise ShapeError("activation", text, "an even number of columns: gate and value")
    parts = prod(mesh.size(i) for i, p in enumerate(analysis.split.out) if p == Shard(len(shape) - 1))
    if parts > 1 and (epilogue.gate == "halves" or shape[-1] % (epilogue.arity * parts)):
        raise InputError(
            "activation", f"{activation} of a product whose {shape[-1]} columns are split over {parts} devices",
            "gates whose pairs of columns are on one device",
            "swiglu_interleaved with columns that divide evenly, or apply it to the product",
        )  # fmt: skip
    shape = (*shape[:-1], epilogue.columns(shape[-1]))
    return shape, _strides(shape)


def multiplied(a: DTensor, b: DTensor, **options: Any) -> DTensor:
    """The product of matrices or stacks of them, whose gradients are those of its parts."""
    analysis = facts(a, b, options)
    split, shape, strides, dtype, wide, ends = analysis
    mesh = a.device_mesh
    result_shape, result_strides = ended(analysis, mesh, options.get("activation"))
    gated = result_shape != shape  # in chunks of columns, pairs would be apart
    gathering = None if gated else overlapped.gathering(b, placed(b.placements, b.ndim), split.b, mesh)
    by_rows = None
    if not gated and gathering is None and b.ndim == 2 and "k" not in split.axes and overlapped.by_rows(options):
        by_rows = overlapped.gathering(a, placed(a.placements, a.ndim), split.a, mesh)
    local_a = local(a, split.a, split.out) if by_rows is None else collectives.waited(a.to_local())
    local_b = local(b, split.b, split.out) if gathering is None else collectives.waited(b.to_local())
    if "k" not in split.axes:
        for name in ("c", "bias"):
            if options.get(name) is not None:
                options[name] = local(options[name], _beside(options[name], split.out, shape), split.out)
        for i, gathered in ((gathering, overlapped.gathered), (by_rows, overlapped.gathered_rows)):
            if i is not None:
                options.pop("out_dtype", None)
                return _global(gathered(local_a, local_b, mesh, i, dtype, options), mesh, split.out, shape, strides)
        options["out_dtype"] = dtype
        part = api.matmul(local_a, local_b, **options)
        return _global(part, mesh, split.out, result_shape, result_strides)
    alone = {name: x for name, x in options.items() if name not in _LATER}
    for name in ("c", "bias"):
        allowed = _addends(dtype, wide)
        if options.get(name) is not None and options[name].dtype not in allowed:
            raise DTypeError(name, f"dtype {options[name].dtype}", " or ".join(map(str, allowed)), "convert it")
    scattering = overlapped.scattering(shape, wide, split.partial, split.out, mesh)
    if scattering is not None:
        result = overlapped.scattered(local_a, local_b, mesh, scattering, wide, alone)
    else:
        part = api.matmul(local_a, local_b, out_dtype=wide, **alone)
        result = collectives.moved(part, shape, mesh, split.partial, split.out) if collectives.eager() else None
        if result is None:
            result = local(_global(part, mesh, split.partial, shape, strides), split.out)
    finished = _finished(result.to(ends), options, split, shape, dtype)
    return _global(finished, mesh, split.out, result_shape, result_strides)


def _finished(x: Tensor, options: Mapping[str, Any], split: Split, shape: tuple[int, ...], dtype: Any) -> Tensor:
    """The result after addend, bias and activation, in the epilogue's dtype until it is rounded once."""
    c, bias, beta = options.get("c"), options.get("bias"), options.get("beta", 0)
    if c is not None and beta != 0:
        x = x + beta * local(c, _beside(c, split.out, shape), split.out).to(x.dtype)
    if bias is not None:
        x = x + local(bias, _beside(bias, split.out, shape), split.out).to(x.dtype)
    activation = options.get("activation")
    if activation is not None:
        x = activations.activated(activation, x)
    return adjoints.rounded(x, dtype)


@torch.compiler.assume_constant_result
def _addends(dtype: Any, wide: Any) -> tuple[Any, ...]:
    """torch's dtypes of addends."""
    to_ours, to_torch = torch_dtypes()
    return tuple(to_torch[x] for x in addend_dtypes(to_ours[dtype], to_ours[wide]))


def _beside(x: DTensor, out: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The placements of an addend beside those of the result: split where it has that dimension."""
    placements = []
    for placement in out:
        own = placement.dim - (len(shape) - x.ndim) if isinstance(placement, Shard) else -1
        placements.append(Shard(own) if own >= 0 and x.shape[own] != 1 else Replicate())
    return tuple(placements)


def local(x: DTensor, placements: tuple[Any, ...], out: tuple[Any, ...] | None = None) -> Tensor:
    """The local part of a DTensor, after it was placed so. Where the placements ``out`` of the result split what this
    array replicates, each device computes a partial sum of its gradient.
    """
    grads = placements
    if out is not None and torch.is_grad_enabled():
        grads = tuple(
            Partial() if isinstance(p, Replicate) and isinstance(q, Shard) else p for p, q in zip(placements, out)
        )
    before = placed(x.placements, x.ndim)
    if collectives.eager():
        part = collectives.moved(collectives.waited(x.to_local()), tuple(x.shape), x.device_mesh, before, placements)
        if part is not None:
            return part
    if before != placements:
        x = x.redistribute(placements=placements)
    return collectives.waited(x.to_local(grad_placements=grads))


def _global(
    x: Tensor, mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...], strides: tuple[int, ...]
) -> DTensor:
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


class _Recorded(node.Product):
    """A node of autograd's graph around one product of DTensors."""

    @staticmethod
    def forward(ctx: Any, call: Any, *operands: DTensor) -> DTensor:
        ctx.placements = [x.placements for x in operands]
        return node.Product.forward(ctx, call, *operands)

    @staticmethod
    def backward(ctx: Any, *grads: DTensor) -> tuple[DTensor | None, ...]:
        _, *operand_grads = node.Product.backward(ctx, *grads)
        return None, *(
            None if x is None else _like(x, placements) for x, placements in zip(operand_grads, ctx.placements)
        )


def _like(grad: DTensor, placements: Iterable[Any]) -> DTensor:
    """A gradient with the placements of its operand; replicated where the operand has partial sums."""
    return grad.redistribute(placements=[Replicate() if isinstance(p, Partial) else p for p in placements])


def _over_rows(a: DTensor, g: DTensor, batch: Any, dtype: Any, transposed: bool, summed_product: Any) -> DTensor:
    """``a^H @ g`` of stacks, summed over all of their rows: on the rows that each device has, then over the devices."""
    pinned = pins_rows(summed_product.keywords["options"].get("reproducible"))  # a gradient of b adds over rows anyway
    if batch or (a.ndim == 2 and not pinned) or a.shape[:-1] != g.shape[:-1]:
        return adjoints.right(a, g, batch, dtype, transposed, summed_product)
    to_a: list[Any] = []
    to_g: list[Any] = []
    out: list[Any] = []
    last = a.ndim - 1
    for p, q in zip(placed(a.placements, a.ndim), placed(g.placements, g.ndim)):
        rows = next((x for x in (p, q) if isinstance(x, Shard) and x.dim < last), None)
        if rows is not None:
            to_a, to_g, out = [*to_a, rows], [*to_g, rows], [*out, Partial()]
        elif isinstance(p, Shard):
            to_a, to_g, out = [*to_a, p], [*to_g, Replicate()], [*out, Shard(0)]
        else:
            columns = isinstance(q, Shard)
            to_a, to_g = [*to_a, Replicate()], [*to_g, q if columns else Replicate()]
            out.append(Shard(1) if columns else Replicate())
    x, y = local(a, tuple(to_a)).flatten(0, -2), local(g, tuple(to_g)).flatten(0, -2)
    x, y = adjoints.alike(x, y)
    summed = any(isinstance(p, Partial) for p in out)
    wide = dtype if dtype.itemsize > 2 or not dtype.is_floating_point else torch.float32
    options = {**summed_product.keywords["options"], "out_dtype": wide if summed else dtype}
    product = api.matmul(adjoints.conjugate(x).transpose(0, 1), y, **options)
    shape = (a.shape[-1], g.shape[-1])
    result = _global(product, a.device_mesh, tuple(out), shape, _strides(shape))
    if not summed:
        return result
    return result.redistribute(placements=scattered(out, shape, tuple(a.device_mesh.shape))).to(dtype)


@dataclass(frozen=True)
class Shards(Partition):
    """The split of a product of DTensors over the devices of their mesh."""

    mesh: tuple[int, ...]
    before: tuple[tuple[Any, ...], tuple[Any, ...]]
    """Placements of a and b as passed."""
    split: Split
    accumulator: str

    def to_dict(self) -> dict[str, Any]:
        return {"mesh": list(self.mesh), **{label: text for label, text in self.facts() if label != "mesh"}}

    def facts(self) -> list[tuple[str, str]]:
        names = {"m": "rows", "n": "columns", "k": "k", "": "nothing"}
        axes = ", ".join(names.get(axis, f"batch dimension {axis}") for axis in self.split.axes)
        rows = [("mesh", f"{' x '.join(map(str, self.mesh))}, which splits {axes}")]
        for name, before, after in zip("ab", self.before, (self.split.a, self.split.b)):
            rows.append((name, _named(before) + ("" if before == after else f", placed {_named(after)}")))
        added = f", partial sums are added in {self.accumulator}" if "k" in self.split.axes else ""
        rows.append(("result", f"{_named(self.split.out)}{added}"))
        moved = f"{self.split.received} bytes to each device, estimated {self.split.seconds:.3g} s in all"
        return [*rows, ("moves", f"{moved}; the local product:")]


def _named(placements: Iterable[Any]) -> str:
    return ", ".join(
        f"Shard({p.dim})" if isinstance(p, Shard) else "Partial" if isinstance(p, Partial) else "Replicate"
        for p in placements
    )


def explain(a: Any, b: Any, **options: Any) -> Decision:
    """The split of the product, the bytes it moves, and the local decision. No collective is called."""
    checked(a, b, options.pop("out", None), options)
    a, b = a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b
    analysis = facts(a, b, options)
    ended(analysis, a.device_mesh, options.get("activation"))
    split, wide, parts = analysis.split, analysis.wide, []
    before = placed(a.placements, a.ndim), placed(b.placements, b.ndim)
    for x, own, placements in ((a, before[0], split.a), (b, before[1], split.b)):
        if own == placements:
            parts.append(x.to_local().detach())
            continue
        shape = list(x.shape)
        for i, p in enumerate(placements):
            if isinstance(p, Shard):
                shape[p.dim] = -(-shape[p.dim] // a.device_mesh.shape[i])
        parts.append(torch.empty(shape, dtype=x.dtype, device=x.to_local().device))
    kept = {name: x for name, x in options.items() if name not in ("c", "beta", "bias")}
    if "k" in split.axes:
        kept = {name: x for name, x in kept.items() if name not in _LATER} | {"out_dtype": wide}
    decision = api.explain(*parts, **kept)
    shards = Shards(tuple(a.device_mesh.shape), before, split, str(wide).removeprefix("torch."))
    return replace(decision, partition=shards)
