"""Linear layers that gemmhub computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gemmhub import api
from gemmhub._base.wording import instance
from gemmhub._doors.torch import activations, calls, override, packed_weights
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import InputError

Tensor = Any

ITSELF = "the model itself"
"""The name in reports of a model that is a layer."""
_PLAIN = (torch.float64, torch.complex64, torch.complex128)


class Linear(packed_weights.KeepsPacked, torch.nn.Linear):
    """Compute ``activation(x @ weight.T + bias)`` in one product of gemmhub.

    It is a :class:`torch.nn.Linear` with the same parameters, initial values and ``state_dict``; ``precision``,
    ``reproducible`` and ``backend`` are those of :func:`gemmhub.matmul`. By default they are those of the
    :class:`gemmhub.torch.use` and :func:`gemmhub.torch.override` in force at each call.

    With ``packed``, a layer on the CPU keeps its weight packed (:func:`gemmhub.pack`) between calls that autograd does
    not record, where that is expected to be faster for the rows of the call. The packed form is memory beside the
    weight, :attr:`packed_bytes`. It is no part of ``state_dict`` and of copies, and is freed with the layer.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype : as of :class:`torch.nn.Linear`.
    activation : as of :func:`gemmhub.matmul`. Gated ones ("swiglu", "geglu") give half as many columns as
        ``out_features``.
    packed : whether the layer may keep its weight packed. A weight that changed is packed anew: by any operation that
        torch counts, or by one that changes any of 256 elements that are compared. After another write through
        ``weight.data``, a NumPy view or another process, call :meth:`drop_packed`.

    Raises
    ------
    InputError : an unknown activation, precision or backend. Calls raise the errors of :func:`gemmhub.matmul`.

    See Also
    --------
    gemmhub.torch.accelerate : replace the linear layers of a model.

    Examples
    --------
    >>> layer = gemmhub.torch.Linear(64, 32, activation="gelu")
    >>> layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    if TYPE_CHECKING:  # torch.jit.script cannot read annotations of attributes that are strings
        activation: str | None
        precision: str | None
        reproducible: str | None
        backend: str | None
        packed: bool
        options: dict[str, Any]

    __jit_ignored_attributes__ = ("options", "_held")
    __jit_unused_properties__ = ("packed_bytes",)

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        activation: str | None = None, precision: str | None = None, reproducible: str | None = None,
        backend: str | None = None, packed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set(activation, precision, reproducible, backend, packed)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, *, activation: str | None = None, precision: str | None = None,
        reproducible: str | None = None, backend: str | None = None, packed: bool = False,
    ) -> Linear:  # fmt: skip
        """Return a layer that shares the parameters of ``linear``. InputError unless it is a plain torch.nn.Linear."""
        reason = reason_to_leave(linear) or reason_not_to_share(linear)
        if reason:
            raise InputError("linear", reason, "a torch.nn.Linear")
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.weight, made.bias = linear.weight, linear.bias
        made.train(linear.training)
        made._set(activation, precision, reproducible, backend, packed)
        return made

    def _set(
        self, activation: str | None, precision: str | None, reproducible: str | None, backend: str | None, packed: bool
    ) -> None:
        if packed is not True and packed is not False:
            raise InputError("packed", f"{packed!r}", "True or False")
        if activation is not None and activation not in EPILOGUES:
            raise InputError("activation", f"{activation!r}", ", ".join(EPILOGUES))
        self.options = calls.kept(precision, reproducible, backend)
        self.activation, self.precision = activation, precision
        self.reproducible, self.backend = reproducible, backend
        self.packed = packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the result, of shape (..., out_features), for ``input`` of shape (..., in_features)."""
        if torch.jit.is_scripting():  # torch.jit.script compiles this line alone
            return torch.ops.gemmhub.matmul(
                input, self.weight.t(), bias=self.bias, activation=self.activation, precision=self.precision,
                reproducible=self.reproducible, backend=self.backend,
            )  # fmt: skip
        return self._product(input)

    @torch.jit.unused
    def _product(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias  # parameters, or what a parametrization computes
        own = options = {**override.in_force(), **self.options}
        if bias is not None:
            options = {**options, "bias": bias}
        if self.activation is not None:
            options = {**options, "activation": self.activation}
        if self.packed and not torch.compiler.is_compiling():
            result = packed_weights.product(self, input, options)
            if result is not None:
                return result
        result = calls.repeated_linear(input, weight, options)
        if result is not None:
            return result
        if not isinstance(input, torch.Tensor) and not hasattr(input, "__torch_function__"):
            raise InputError("input", instance(type(input)), "a tensor")
        if calls.multiplies_itself(input, weight, bias):
            result = torch.nn.functional.linear(input, weight, bias)
            return result if self.activation is None else activations.activated(self.activation, result)
        if weight.dtype in _PLAIN and weight.is_cuda:  # no library on a GPU adds a bias in these
            result = api.matmul(input, weight.t(), **own)
            result = result if bias is None else result + bias
            return result if self.activation is None else activations.activated(self.activation, result)
        return api.matmul(input, weight.t(), **options)

    def extra_repr(self) -> str:
        """Return the sizes and options for a printed model."""
        options = {"activation": self.activation, **self.options} if self.activation else self.options
        return ", ".join([super().extra_repr(), *(f"{name}={x!r}" for name, x in options.items())])


class _EqualToTorchs(type):
    """The type of a class that look-ups by type take for :class:`torch.nn.Linear`."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.nn.Linear

    def __hash__(cls) -> int:
        return hash(torch.nn.Linear)


class Replaced(Linear, metaclass=_EqualToTorchs):
    """A :class:`torch.nn.Linear` that :func:`accelerate` changed.

    Libraries that exchange layers (torch.ao.quantization) find them by their exact type, and would pass over a layer of
    any other one without a word. A :class:`Linear` that a user made may have an activation, which such an exchange
    would lose, so that class is not equal to torch's.
    """

    def _get_name(self) -> str:
        return "Linear"


def convert(
    module: Any, precision: str | None = None, reproducible: str | None = None, backend: str | None = None,
    packed: bool = False,
) -> None:  # fmt: skip
    """Let gemmhub compute a plain torch.nn.Linear, in place."""
    module.__class__ = Replaced
    module._set(None, precision, reproducible, backend, packed)


def revert(module: Any) -> None:
    """Let torch compute a layer that :func:`convert` changed, in place; parametrizations stay."""
    kind = type(module)
    if kind is Replaced:
        module.__class__ = torch.nn.Linear
    elif kind.__bases__ == (Replaced,) and torch.nn.utils.parametrize.is_parametrized(module):
        own = {name: x for name, x in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(kind.__name__, (torch.nn.Linear,), own)
    else:
        return  # something else has changed its class since
    for name in ("activation", "precision", "reproducible", "backend", "packed", "options", "_held"):
        module.__dict__.pop(name, None)


def reason_to_leave(module: Any) -> str:
    """The reason why gemmhub does not compute a module as a linear layer; empty where it does, or may."""
    kind = type(module)
    parametrized = torch.nn.utils.parametrize.is_parametrized(module)
    if parametrized and isinstance(module, Linear):
        kind = kind.__bases__[0]  # parametrizations put a class of their own before that of the layer
    kind = torch.nn.Linear if kind is Replaced else kind
    named = instance(kind)
    if kind not in (torch.nn.Linear, Linear):
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            return f"{named}: it looks rows up"
        if parametrized:
            return f"{named}: its weight is recomputed in each call (parametrizations)"
        if isinstance(module, torch.nn.Linear):
            return f"{named}: a subclass of torch.nn.Linear, which may compute something else"
        return f"{named}: not a torch.nn.Linear"
    if "forward" in vars(module):
        return f"{named} whose forward was replaced"
    for name in ("weight", "bias"):
        x = getattr(module, name)
        if calls.multiplies_itself(x):
            of = type(x).__qualname__
            return f"{named} whose {name} is of type {of}, which overrides products (quantized weights)"
    if not (module.weight.is_floating_point() or module.weight.is_complex()):
        return f"{named} with weights of {module.weight.dtype}"
    return ""


def listed(module: Any) -> bool:
    """Whether reports name a module that is unchanged: it has a weight matrix, or is a linear layer."""
    return getattr(getattr(module, "weight", None), "ndim", 0) == 2 or isinstance(module, torch.nn.Linear)


def reason_not_to_share(module: Any) -> str:
    """The reason why another layer cannot share the parameters of this one; empty where it can."""
    for name in ("weight", "bias"):
        if name not in module._parameters:
            return f"a layer whose {name} is no parameter: something computes it anew (pruning, weight_norm, FSDP)"
    return ""
