"""Quantization of a model: which of its linear layers get narrow weights, and which stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch

from gemmhub._base.wording import counted, instance, unexpected
from gemmhub._doors.torch import nn, quantized_linear
from gemmhub._doors.torch.quantized_linear import QuantizedLinear
from gemmhub.errors import InputError


@dataclass(frozen=True, repr=False)
class Quantized:
    """The result of :func:`quantize_`."""

    scheme: str
    """The scheme of the layers that the call quantized."""
    replaced: tuple[str, ...]
    """Names of the layers that the call quantized."""
    already: tuple[str, ...]
    """Names of the layers that were quantized before, by any scheme; they are unchanged."""
    left: dict[str, str]
    """Names of other modules with a weight matrix or stacks of them, with the reason why each is unchanged."""
    bytes_before: int
    """Bytes of the weights of the layers that the call quantized, before it."""
    bytes_after: int
    """Bytes of their narrow weights and scales."""
    nonfinite: tuple[str, ...] = ()
    """Names of the layers that the call quantized whose weights had NaN or infinities."""
    schemes: tuple[str, ...] = ()
    """The scheme of each layer that was quantized before, in the order of ``already``."""

    def _summary(self) -> str:
        memory = f"{self.bytes_before / 1e6:.1f} MB of weights before, {self.bytes_after / 1e6:.1f} MB after"
        before = f", {counted(len(self.already), 'layer')} quantized before" if self.already else ""
        before += f" by {' and '.join(sorted({*self.schemes}))}" if self.schemes else ""
        replaced = counted(len(self.replaced), "linear layer")
        return f"{replaced} quantized by {self.scheme} ({memory}){before}, {counted(len(self.left), 'module')} left"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        notes = {**self.left, **dict.fromkeys(self.nonfinite, "quantized; its weight had NaN or infinities")}
        return "\n".join([self._summary(), *(f"  {name or nn.ITSELF}: {reason}" for name, reason in notes.items())])


def quantize_(
    model: torch.nn.Module, scheme: str, *, filter: Callable[[torch.nn.Module, str], bool] | None = None,
    reproducible: str | None = None, backend: str | None = None, packed: bool | None = None, **others: NoReturn,
) -> Quantized:  # fmt: skip
    """Quantize the linear layers of a model in place: narrow weights, and activations that each call quantizes.

    Each :class:`torch.nn.Linear` and :class:`gemmhub.torch.Linear` becomes a :class:`QuantizedLinear`. It stays the
    same object, with its hooks; its weight is another parameter, so make optimizers afterwards. The full weights are
    freed, and there is no undo: load the checkpoint again. On the device ``meta`` the model becomes a skeleton for
    ``load_state_dict(..., assign=True)``.

    ==============  ===================  =================================  =======================
    scheme          elements             scales of weights                  scales of activations
    ==============  ===================  =================================  =======================
    ``fp8_row``     float8_e4m3fn        one for each output feature        one for each token
    ``fp8_block``   float8_e4m3fn        one for each block of 128 x 128    one for each 128 features
                                                                            of a token
    ``int8_row``    int8                 one for each output feature        one for each token
    ==============  ===================  =================================  =======================

    Layers stay as they are, with the reason in the report, whose weight is shared with another module (an output layer
    that is tied to the embedding), has another dtype than bfloat16, float16 and float32, is computed anew in each call,
    or is sharded; and subclasses of torch.nn.Linear, which may compute something else.

    Parameters
    ----------
    model : any module, models of transformers included.
    scheme : "fp8_row", "fp8_block" or "int8_row".
    filter : a function of a linear layer and its name, which returns whether to quantize it; by default all are.
    reproducible, backend : as of :func:`gemmhub.matmul`, for all its layers. By default those of a
        :class:`gemmhub.torch.Linear`, and for others those of the ``use()`` and ``override()`` in force at each call.
    packed : whether layers on the CPU may keep their narrow weights packed in inference; see
        :class:`gemmhub.torch.Linear`.

    Returns
    -------
    The layers quantized, those quantized before, the modules left with reasons, the bytes of weights before and after,
    and the layers whose weights had NaN or infinities. Print it.

    Raises
    ------
    InputError : a ``model`` that is no module, a ``filter`` that is no function, an unknown scheme, promise or backend.
        The model is unchanged. An exception of the filter, or a lack of memory, leaves layers before it quantized.

    See Also
    --------
    gemmhub.torch.QuantizedLinear : the layer.
    gemmhub.torch.accelerate : the same products for weights as they are.
    gemmhub.quantize : the elements and scales of an array.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    >>> print(gemmhub.torch.quantize_(model, "int8_row", filter=lambda layer, name: layer.out_features >= 128))
    1 linear layer quantized by int8_row (1.0 MB of weights before, 0.3 MB after), 1 module left
      2: the filter leaves it
    """
    for name in others:
        raise unexpected(name, ("filter", "reproducible", "backend", "packed"))
    if not isinstance(model, torch.nn.Module):
        raise InputError("model", instance(type(model)), "a torch.nn.Module", "pass the model")
    if filter is not None and not callable(filter):
        raise InputError("filter", instance(type(filter)), "None, or a function of a layer and its name")
    quantized_linear.check(scheme, reproducible, backend, packed)
    holders = _holders(model)
    replaced: list[str] = []
    already: list[str] = []
    nonfinite: list[str] = []
    left, before, after = {}, 0, 0
    try:
        for name, module in model.named_modules():
            if isinstance(module, QuantizedLinear):
                already.append(name)
                continue
            reason = quantized_linear.reason_to_leave(module)
            if not reason:
                others_with_it = [x for x in holders[id(module.weight)] if x != f"{name}.weight".lstrip(".")]
                if others_with_it:
                    reason = f"its weight is {others_with_it[0]}, too (tied)"
                elif filter is not None and not filter(module, name):
                    reason = "the filter leaves it"
            if reason:
                stacks = _stacks(module)
                if stacks or nn.listed(module):
                    left[name] = stacks or reason
                continue
            if not (module.weight.is_meta or module.weight.detach().isfinite().all()):
                nonfinite.append(name)
            before += module.weight.nbytes
            quantized_linear.convert(module, scheme, reproducible, backend, packed)
            after += module.weight.nbytes + module.weight_scale.nbytes
            replaced.append(name)
    finally:
        _avoid_fused(model)
    schemes = tuple(model.get_submodule(name).scheme for name in already)
    return Quantized(scheme, tuple(replaced), tuple(already), left, before, after, tuple(nonfinite), schemes)


def _stacks(module: torch.nn.Module) -> str:
    """The reason to leave a module that holds stacks of matrices, such as experts; empty for every other one."""
    names = [name for name, x in module._parameters.items() if x is not None and x.ndim == 3 and len(x) > 1]
    if not names or isinstance(module, (torch.nn.Conv1d, torch.nn.ConvTranspose1d)):
        return ""
    return f"{instance(type(module))}: stacks of matrices ({', '.join(names)}) are not quantized"


def _avoid_fused(model: torch.nn.Module) -> None:
    """Turn the fused path of torch's encoder layers off, which in inference reads the weights of layers inside them.

    The attribute of a layer selects that path; the one of an encoder selects the nested tensors that it alone takes.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer) and _has_quantized(module):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, torch.nn.TransformerEncoder) and _has_quantized(module):
            module.use_nested_tensor = False


def _has_quantized(module: torch.nn.Module) -> bool:
    return any(isinstance(x, QuantizedLinear) for x in module.modules())


def _holders(model: torch.nn.Module) -> dict[int, list[str]]:
    """The names of each parameter, by its identity: several where modules share it."""
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for own, parameter in module._parameters.items():
            holders.setdefault(id(parameter), []).append(f"{name}.{own}".lstrip("."))
    return holders
