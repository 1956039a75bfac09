"""Linear layers with narrow weights: float8 or int8, with float32 quantization scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from gemmhub import api, scale_layouts
from gemmhub._base.wording import did_you_mean, instance
from gemmhub._doors.torch import activations, calls, nn, override, packed_weights
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.operands import BLOCK
from gemmhub.quantization import quantize

Tensor = Any


class Granularity(NamedTuple):
    """The elements that share a scale, in the words of :func:`gemmhub.quantize`."""

    name: str
    block: tuple[int, int] | None = None


class Scheme(NamedTuple):
    """A narrow dtype with the granularities of its scales."""

    dtype: Any
    """torch's, of weights and activations."""
    input: Granularity
    """The granularity of activations (rows, in_features)."""
    weight: Granularity
    """The granularity of weights (out_features, in_features)."""


_ROW = Granularity("row")
SCHEMES = {
    "fp8_row": Scheme(torch.float8_e4m3fn, _ROW, _ROW),
    "fp8_block": Scheme(torch.float8_e4m3fn, Granularity("block", (1, BLOCK)), Granularity("block", (BLOCK, BLOCK))),
    "int8_row": Scheme(torch.int8, _ROW, _ROW),
}
WIDE = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of the weights that are quantized, and of activations and results."""
_WORDS = {torch.float8_e4m3fn: torch.uint8, torch.int8: torch.uint8, torch.float32: torch.int32}
"""Integer dtypes of equal size, which conversions of a model to another floating dtype leave as they are."""


class QuantizedLinear(packed_weights.KeepsPacked):
    """Compute ``activation(x @ weight.T + bias)`` with a narrow weight and activations that each call quantizes.

    Its parameters are ``weight``, float8_e4m3fn or int8, of shape (out_features, in_features), and ``weight_scale``,
    float32, both without gradients, and ``bias``, that of the layer it was made of. Activations are bfloat16, float16
    or float32; the result has their dtype. Weight and scale keep their dtypes in ``.to(torch.bfloat16)`` and its like.

    ``load_state_dict`` takes the state of such a layer bit for bit, and that of a layer with weights of bfloat16,
    float16 or float32, which it quantizes. A narrow weight of another dtype, or one without its scale, is an error.

    The gradient of activations is the product with the dequantized weight: quantization counts as the identity
    (straight-through). The bias has a gradient, too; weight and scale have none. Tangents (forward mode) are the same.

    Parameters
    ----------
    linear : :class:`torch.nn.Linear` or :class:`gemmhub.torch.Linear`, whose activation and options the layer has. It
        is unchanged.
    scheme : "fp8_row", "fp8_block" or "int8_row", as of :func:`gemmhub.torch.quantize_`.
    reproducible, backend, packed : as of :class:`gemmhub.torch.Linear`; by default as ``linear`` has them.

    Raises
    ------
    InputError : an unknown scheme, promise or backend; a layer that is not quantized. Calls raise the errors of
        :func:`gemmhub.matmul`, DTypeError for activations of other dtypes and for a wide weight that was assigned, and
        ShapeError for other sizes.

    See Also
    --------
    gemmhub.torch.quantize_ : quantize the linear layers of a model.
    gemmhub.quantize : the elements and scales of an array.

    Examples
    --------
    >>> layer = gemmhub.torch.QuantizedLinear(torch.nn.Linear(256, 128), "fp8_block")
    >>> layer.weight.dtype, layer.weight_scale.shape
    (torch.float8_e4m3fn, torch.Size([1, 2]))
    >>> layer(torch.randn(8, 256)).shape
    torch.Size([8, 128])
    """

    def __init__(
        self, linear: torch.nn.Linear, scheme: str, *, reproducible: str | None = None, backend: str | None = None,
        packed: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check(scheme, reproducible, backend, packed)
        reason = reason_to_leave(linear)
        if reason:
            raise InputError("linear", reason, "a torch.nn.Linear with weights of " + ", ".join(map(str, WIDE)))
        own = isinstance(linear, nn.Linear)
        options = calls.kept(None, reproducible, backend)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scheme, self.activation = scheme, linear.activation if own else None
        self.options = {**(linear.options if own else {}), **options}
        self.options.pop("precision", None)  # of float32 operands
        self.packed = packed if packed is not None else own and linear.packed
        weight, scale = _quantized(linear.weight, scheme)
        self.weight, self.weight_scale = (torch.nn.Parameter(x, requires_grad=False) for x in (weight, scale))
        self.bias = linear.bias
        self.train(linear.training)

    def dequantize(self, dtype: Any = torch.float32) -> torch.Tensor:
        """Return the weight that the layer multiplies by, in another dtype: a new tensor."""
        self._check_weight()
        return _dequantized(self.weight, self.weight_scale, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the result, of shape (..., out_features), for ``input`` of shape (..., in_features)."""
        self._check_weight()
        x, bias = self._taken(input), self.bias
        rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)  # a reshape to (-1, 0) is an error
        options = {**_in_force(), **self.options}
        if forward_ad._current_level >= 0:  # tensors may have tangents, with or without torch.no_grad()
            # A dict among the arguments would be a tree, whose tangents the rule of torch.vmap cannot match.
            result = self._recorded(_WithTangents, rows, bias, MappingProxyType(options))
        elif torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
            result = self._recorded(_StraightThrough, rows, bias, options)
        else:
            result = self._product(rows, bias, options)
        return result.reshape(*x.shape[:-1], result.shape[-1])

    def _check_weight(self) -> None:
        """Raise DTypeError for a weight of another dtype, which was assigned to the layer without its scale."""
        narrow = SCHEMES[self.scheme].dtype
        if self.weight.dtype is not narrow:
            raise DTypeError(
                "weight", f"{self.weight.dtype} assigned to a layer quantized by {self.scheme}", str(narrow),
                "load_state_dict() quantizes a wide weight; or quantize the layer that has it",
            )  # fmt: skip

    def _taken(self, x: Tensor) -> Tensor:
        """The activations, in the dtype that torch.autocast rounds them to."""
        if not isinstance(x, torch.Tensor):
            raise InputError("input", instance(type(x)), "a tensor")
        if x.dtype not in WIDE:
            raise DTypeError(
                "input", f"activations of {x.dtype}", ", ".join(map(str, WIDE)), "convert them, or leave the layer "
                "out by the filter of quantize_()",
            )  # fmt: skip
        if not x.dim() or x.shape[-1] != self.in_features:
            raise ShapeError("input", f"shape {tuple(x.shape)}", f"(..., {self.in_features})")
        kind = x.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        return x

    def _product(self, x: Tensor, bias: Tensor | None, options: Mapping[str, Any]) -> Tensor:
        if self.activation is not None:
            options = {**options, "activation": self.activation}
        if not self.packed or torch.compiler.is_compiling():
            return _product(x, self.weight, self.weight_scale, bias, self.scheme, x.dtype, options)
        a, named = _operands(x, self.weight_scale, bias, self.scheme, x.dtype, options)
        result = packed_weights.product(self, a, named)
        return api.matmul(a, self.weight.t(), **named) if result is None else result

    def _recorded(
        self, function: type[_StraightThrough], x: Tensor, bias: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """The product with its gradients. The activation is differentiated in float32, in which it is computed."""
        dtype = x.dtype if self.activation is None else torch.float32
        bias = None if bias is None else bias.to(dtype)
        result = function.apply(x, self.weight, self.weight_scale, bias, self.scheme, dtype, options)
        return result if self.activation is None else activations.activated(self.activation, result).to(x.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the bytes of the weight: torch does not load storages of float8 that pickle wrote."""
        self._check_weight()
        state = super().__getstate__()
        weight = self.weight.detach().view(_WORDS[self.weight.dtype])
        return {**state, "_parameters": {**self._parameters, "weight": weight}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        weight = self._parameters["weight"].view(SCHEMES[self.scheme].dtype)
        self._parameters["weight"] = torch.nn.Parameter(weight, requires_grad=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """Let a conversion of the model move the weight and its scale, and not change their dtypes."""
        kept = {id(self.weight), id(self.weight_scale)}

        def apply(x: Tensor) -> Tensor:
            if id(x) not in kept:
                return fn(x)
            words = x.view(_WORDS[x.dtype])
            moved = fn(words)
            if moved.dtype is not words.dtype:  # Module.type() converts integers, too
                moved = words.to(moved.device)
            return moved.view(x.dtype)

        super()._apply(apply, recurse)
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        weight, scale = (state_dict.get(prefix + name) for name in ("weight", "weight_scale"))
        if weight is not None and scale is None and weight.dtype in WIDE and weight.shape == self.weight.shape:
            quantized = dict(zip(("weight", "weight_scale"), _quantized(weight, self.scheme)))
            state_dict = {**state_dict, **{prefix + name: x for name, x in quantized.items()}}
        elif weight is not None or scale is not None:
            reason = _refusal(weight, scale, self.weight, self.weight_scale)
            if reason:
                error_msgs.append(f"{prefix}weight: {reason}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        """Return the sizes, scheme and options for a printed model."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        options = {"scheme": self.scheme, "activation": self.activation, **self.options}
        return ", ".join([sizes, *(f"{name}={x!r}" for name, x in options.items() if x is not None)])


def check(scheme: object, reproducible: str | None, backend: str | None, packed: object) -> None:
    """Raise InputError for arguments of quantized layers that cannot be used."""
    if scheme not in SCHEMES:
        raise InputError("scheme", f"{scheme!r}", ", ".join(SCHEMES), did_you_mean(scheme, SCHEMES))
    if packed not in (True, False, None):
        raise InputError("packed", f"{packed!r}", "True, False or None")
    calls.kept(None, reproducible, backend)


def convert(module: Any, scheme: str, reproducible: str | None, backend: str | None, packed: bool | None) -> None:
    """Quantize a linear layer in place: it stays the same object, with its hooks."""
    made = QuantizedLinear(module, scheme, reproducible=reproducible, backend=backend, packed=packed)
    for name in ("precision", "reproducible", "backend", "_held"):
        module.__dict__.pop(name, None)
    module.__class__ = QuantizedLinear
    module._parameters = made._parameters
    module.__dict__.update({name: x for name, x in made.__dict__.items() if not name.startswith("_")})


def reason_to_leave(module: Any) -> str:
    """The reason why a module is not quantized; empty where it is."""
    if isinstance(module, QuantizedLinear):
        return f"quantized already ({module.scheme})"
    reason = nn.reason_to_leave(module) or nn.reason_not_to_share(module)
    if reason:
        return reason
    if type(module.weight) is not torch.nn.Parameter:
        return f"{instance(type(module))} whose weight is {instance(type(module.weight))}: quantize before sharding"
    if module.weight.dtype not in WIDE:
        return f"{instance(type(module))} with weights of {module.weight.dtype}"
    return ""


def _in_force() -> dict[str, Any]:
    """The promise and backend of the active override and of the blocks of ``use`` around a call."""
    options = override.in_force()
    options.pop("precision", None)  # of float32 operands
    return options


class _StraightThrough(torch.autograd.Function):
    """A product of quantized operands whose gradient is that of the dequantized ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, scheme: str, dtype: Any,
        options: Mapping[str, Any],
    ) -> Tensor:  # fmt: skip
        return _product(x, weight, scale, bias, scheme, dtype, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, scale, _, _, _, options = inputs
        ctx.save_for_backward(weight, scale)
        ctx.dtype, ctx.options = x.dtype, options

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        of_x = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = api.matmul(grad.to(ctx.dtype), _dequantized(weight, scale, ctx.dtype), **ctx.options)
        if ctx.needs_input_grad[3]:
            of_bias = grad.sum(0)
        return of_x, None, None, of_bias, None, None, None


class _WithTangents(_StraightThrough):
    """The same product with its tangents (forward mode). torch.compile takes no function that has them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _StraightThrough.setup_context(ctx, inputs, output)
        _, weight, scale, _, _, dtype, _ = inputs
        ctx.save_for_forward(weight, scale)
        ctx.out_dtype = dtype

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor, of_weight: Any, of_scale: Any, of_bias: Tensor | None, *_: Any) -> Tensor:
        weight, scale = ctx.saved_tensors
        named = {**ctx.options, "out_dtype": ctx.out_dtype}
        if of_bias is not None:
            named["bias"] = of_bias
        return api.matmul(of_x, _dequantized(weight, scale, ctx.dtype).t(), **named)


def _product(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, scheme: str, dtype: Any, options: Mapping[str, Any]
) -> Tensor:
    a, named = _operands(x, scale, bias, scheme, dtype, options)
    return api.matmul(a, weight.t(), **named)


def _operands(
    x: Tensor, scale: Tensor, bias: Tensor | None, scheme: str, dtype: Any, options: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The narrow activations, and the product's options."""
    narrow, granularity, _ = SCHEMES[scheme]
    a, scale_a = quantize(x, narrow, granularity.name, block=granularity.block)
    named = {**options, "scale_a": scale_a, "scale_b": scale.t(), "out_dtype": dtype}
    if bias is not None:
        named["bias"] = bias.to(dtype)
    return a, named


def _quantized(weight: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """The narrow weight and its scale: tensors that autograd can save, in inference mode, too."""
    narrow, _, granularity = SCHEMES[scheme]
    with torch.inference_mode(False), torch.no_grad():
        q, scale = quantize(weight.detach(), narrow, granularity.name, block=granularity.block)
        return q.contiguous(), scale.contiguous()


def _dequantized(weight: Tensor, scale: Tensor, dtype: Any) -> Tensor:
    return (weight.to(torch.float32) * scale_layouts.spread(scale, weight.shape)).to(dtype)


def _refusal(weight: Tensor | None, scale: Tensor | None, own: Tensor, own_scale: Tensor) -> str:
    """The reason why a state is not loaded into a layer that has two of its own; empty where torch decides."""
    wide = ", ".join(map(str, WIDE))
    if weight is None or scale is None:
        given = "a weight_scale without its weight" if weight is None else f"{weight.dtype} without its weight_scale"
        return f"{given}; allowed: {own.dtype} with its weight_scale, or one of {wide} of shape {tuple(own.shape)}"
    if weight.dtype is not own.dtype:
        return f"{weight.dtype} with a weight_scale; allowed: {own.dtype}. Quantize the model by the state's scheme"
    if scale.dtype is not torch.float32:
        return f"a weight_scale of {scale.dtype}; allowed: torch.float32. Convert it"
    if scale.shape != own_scale.shape and weight.shape == own.shape:
        shapes = f"a weight_scale of shape {tuple(scale.shape)}; allowed: {tuple(own_scale.shape)}"
        return f"{shapes}. Quantize the model by the state's scheme"
    return ""
