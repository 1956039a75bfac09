"""Acceleration of a model: which of its linear layers and experts gemmhub computes, and which stay with torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from gemmhub._arrays.find import arrays_of
from gemmhub._base.timing import interleave
from gemmhub._base.wording import counted, instance, unexpected
from gemmhub._call.options import pins_rows
from gemmhub._doors.torch import calls, experts
from gemmhub._doors.torch.nn import ITSELF, Linear, convert, listed, reason_to_leave, revert
from gemmhub._doors.torch.packed_weights import KeepsPacked
from gemmhub._doors.torch.quantized_linear import QuantizedLinear
from gemmhub.errors import InputError


@dataclass(frozen=True, repr=False)
class Accelerated:
    """The result of :func:`accelerate`. As a context manager it undoes the acceleration at the end of the block."""

    replaced: tuple[str, ...]
    """Names of the linear layers that this call changed, so that gemmhub computes them."""
    already: tuple[str, ...]
    """Names of linear layers and experts that gemmhub computed before; they keep their options (see ``ignored``)."""
    left: dict[str, str]
    """Names of other modules with a weight matrix, with the reason why each is unchanged."""
    experts: tuple[str, ...] = ()
    """Names of the experts of mixtures that this call changed: modules with the weights of all experts of a layer."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Names of those ``already`` computed with other options than the call's, with what was not applied to each."""
    _layers: tuple[KeepsPacked, ...] = field(default=(), compare=False)
    _changed: list[Any] = field(default_factory=list, compare=False)

    @property
    def packed_bytes(self) -> int:
        """Bytes that packed weights of the layers hold now, beside the weights themselves."""
        return sum(layer.packed_bytes for layer in self._layers if isinstance(layer, KeepsPacked))

    def undo(self) -> None:
        """Let torch compute the layers and experts that this acceleration changed, and free their packed weights.

        Layers that gemmhub computed before stay as they are, and so do modules whose class something else has changed
        since (fully_shard).
        """
        while self._changed:
            _revert(self._changed.pop())

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def _summary(self) -> str:
        layers = f"{_counted(self.replaced, 'linear layer')} replaced"
        if self.experts:
            layers += f", {_counted(self.experts, 'mixture of experts', 'mixtures of experts')} replaced"
        if self.already:
            layers += f", {_counted(self.already, 'layer')} computed by gemmhub already"
            layers += f" ({len(self.ignored)} with other options)" if self.ignored else ""
        undone = "undone: " if (self.replaced or self.experts) and not self._changed else ""
        return f"{undone}{layers}, {_counted(self.left, 'module')} left"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        notes = {**self.ignored, **self.left}
        return "\n".join([self._summary(), *(f"  {name or ITSELF}: {reason}" for name, reason in notes.items())])


def _counted(names: Collection[str], noun: str, plural: str | None = None) -> str:
    """The number of modules in words. The model itself, whose name is empty, is named: it is then the only one."""
    number = f"{len(names)} {plural}" if plural is not None and len(names) != 1 else counted(len(names), noun)
    return number + (f" ({ITSELF})" if "" in names else "")


def _revert(module: Any) -> None:
    """Let torch compute a module that an acceleration changed, in place."""
    revert(module)
    experts.revert(module)


def accelerate(
    model: torch.nn.Module, *, precision: str | None = None, reproducible: str | None = None,
    backend: str | None = None, packed: bool = False, measure: int | None = None, **others: NoReturn,
) -> Accelerated:  # fmt: skip
    """Let gemmhub compute every plain :class:`torch.nn.Linear` and the experts of a model, in place.

    Layers stay the same objects, with their parameters, hooks and ``state_dict``: only their class becomes a subclass
    of :class:`Linear`. So optimizers, DistributedDataParallel, FSDP and checkpoints work as before, and so do
    parametrizations, pruning and quantization that follow. Subclasses of torch.nn.Linear, which may compute something
    else, layers that have parametrizations already, and layers whose weights override torch's products (those that
    torchao has quantized) are unchanged.

    Experts of a mixture (MoE) are those that transformers, since version 5, keeps in two parameters of three dimensions
    and computes by silu, gelu or another gate: Mixtral, Qwen-MoE, DeepSeek and others. Tokens are sorted by expert and
    multiplied by two products of :func:`gemmhub.grouped_matmul`; results differ from those of transformers by roundings
    to the dtype. Unchanged are experts with biases or transposed weights; experts on a device where no backend takes
    their products; and, unless bits of rows are pinned, experts of float32 and float64 on CPUs, where gemmhub is not
    known to be faster. Calls whose products no backend takes, after a model was moved for example, are computed by
    transformers unless bits of rows are pinned.

    Parameters
    ----------
    model : any module, models of transformers included.
    precision, reproducible, backend : as of :func:`gemmhub.matmul`, for all its layers.
    packed : whether layers on the CPU may keep their weights packed in inference; see :class:`Linear`. Packed weights
        take memory beside the weights, :attr:`Accelerated.packed_bytes`.
    measure : rows of an input. Each size of linear layer is then timed without gradients for so many rows, by torch and
        by gemmhub, and layers that torch computes in less time are left to it. Experts are not timed. By default
        nothing is measured.

    Returns
    -------
    The layers and experts replaced, those that gemmhub computed already, which keep their options, and the modules left
    with reasons; ``ignored`` names the options that were given and that a layer does not have. Print it.
    Its ``undo()`` restores the layers that it replaced, and as a context manager it does so at the end of the block.

    Raises
    ------
    InputError : a ``model`` that is no module; an unknown precision, promise or backend; ``measure`` that is no
        positive int, or of a model with weights that have no memory. The model is unchanged.

    See Also
    --------
    gemmhub.torch.Linear : the layer.
    gemmhub.torch.use : all products of a block of code.
    gemmhub.torch.override : all products of the process.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Embedding(4, 8))
    >>> print(gemmhub.torch.accelerate(model))
    1 linear layer replaced, 1 module left
      2: an Embedding: it looks rows up
    """
    for name in others:
        raise unexpected(name, ("precision", "reproducible", "backend", "packed", "measure"))
    if not isinstance(model, torch.nn.Module):
        raise InputError("model", instance(type(model)), "a torch.nn.Module", "pass the model")
    options = calls.kept(precision, reproducible, backend)
    if packed is not True and packed is not False:
        raise InputError("packed", f"{packed!r}", "True or False")
    if measure is not None:
        if pins_rows(reproducible):
            raise InputError(
                "measure", f"{measure!r} where the bits of rows are pinned, which a layer left to torch does not keep",
                "None", "leave measure= out, or reproducible=",
            )  # fmt: skip
        _measurable(model, measure)
    replaced: list[str] = []
    already: list[str] = []
    mixtures: list[str] = []
    left, layers, changed = {}, [], []
    slower: dict[Any, str] = {}
    try:
        for name, module in model.named_modules():
            if experts.is_experts(module):
                reason = experts.reason_to_leave(module, options)
                if reason:
                    left[name] = reason
                elif isinstance(module, experts.Experts):
                    already.append(name)
                else:
                    experts.convert(module, options)
                    changed.append(module)
                    mixtures.append(name)
                continue
            reason = "" if isinstance(module, QuantizedLinear) else reason_to_leave(module)
            names = already
            if not reason and type(module) is torch.nn.Linear:
                names = replaced
                convert(module, precision, reproducible, backend, packed)
                changed.append(module)
                if measure is not None:
                    reason = _slower(module, measure, slower)
                if reason:
                    revert(changed.pop())
            if not reason:
                names.append(name)
                layers.append(module)
            elif listed(module):
                left[name] = reason
            elif isinstance(module, torch.nn.MultiheadAttention):
                left[name] = "a MultiheadAttention: it multiplies by torch's own functions; see gemmhub.torch.use()"
    except BaseException:  # of a product that was measured
        for module in changed:
            _revert(module)
        raise
    ignored = {name: _ignored(model.get_submodule(name), {**options, "packed": packed}) for name in already}
    ignored = {name: text for name, text in ignored.items() if text}
    return Accelerated(tuple(replaced), tuple(already), left, tuple(mixtures), ignored, tuple(layers), changed)


def _ignored(module: Any, given: Mapping[str, Any]) -> str:
    """The given options that a module which gemmhub computes does not have; empty where it has them all."""
    own = module._options if isinstance(module, experts.Experts) else {**module.options, "packed": module.packed}
    names = own.keys() | {"precision", "reproducible", "backend"}
    if isinstance(module, QuantizedLinear):
        names -= {"precision"}  # of float32 operands
    given = {name: x for name, x in given.items() if x is not False and name in names and own.get(name) != x}
    if not given:
        return ""
    asked = ", ".join(f"{name}={x!r}" for name, x in given.items())
    has = ", ".join(f"{name}={own[name]!r}" for name in given if own.get(name) is not None)
    return f"{asked} not applied: it keeps {has or 'its options'}; undo() the earlier acceleration first"


def _measurable(model: torch.nn.Module, rows: Any) -> None:
    """Raise InputError where layers of ``model`` cannot be timed for ``rows``."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InputError("measure", f"{rows!r}", "None or a positive number of rows")
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear or reason_to_leave(module):
            continue
        if module.weight.is_meta or type(module.weight) not in (torch.Tensor, torch.nn.Parameter):
            raise InputError(
                "measure", f"{rows} rows, and the weight of {name or ITSELF} is sharded, or on the device "
                "meta", "weights that are plain tensors with memory", "load the weights first, or leave measure= out",
            )  # fmt: skip


def _slower(layer: Any, rows: int, known: dict[Any, str]) -> str:
    """The reason to leave a layer to torch, with the times measured; empty where gemmhub is as fast.

    ``known`` has the reasons of layers that were timed: those of equal sizes, dtypes and devices are not timed again.
    """
    weight, bias = layer.weight, layer.bias
    key = weight.dtype, weight.device, weight.shape, weight.stride(), None if bias is None else bias.dtype
    if key not in known:
        with torch.no_grad():
            x = torch.ones(rows, weight.shape[1], dtype=weight.dtype, device=weight.device)
            ours, theirs = interleave(
                [lambda: Linear.forward(layer, x), lambda: torch.nn.functional.linear(x, weight, bias)],
                clock=arrays_of(weight.detach(), "weight").clock(), warmup=3,
            )  # fmt: skip
        known[key] = ""
        if theirs.minimum < ours.minimum:
            times = f"{_shown(theirs.minimum)} by torch, {_shown(ours.minimum)} by gemmhub"
            known[key] = f"a Linear that torch computes faster: {times}, for {rows} rows"
    return known[key]


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"
