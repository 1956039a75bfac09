"""Linear layers that gemmhub computes, and their replacement in a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gemmhub import api
from gemmhub._doors.torch import activations, calls
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import InputError

Tensor = Any


_PLAIN = (torch.float64, torch.complex64, torch.complex128)


class Linear(torch.nn.Linear):
    """Compute ``activation(x @ weight.T + bias)`` in one product of gemmhub.

    It is a :class:`torch.nn.Linear` with the same parameters, initial values and ``state_dict``; ``precision``,
    ``deterministic`` and ``backend`` are those of :func:`gemmhub.matmul`.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype : as of :class:`torch.nn.Linear`.
    activation : as of :func:`gemmhub.matmul`. Gated ones ("swiglu", "geglu") give half as many columns as
        ``out_features``.

    Raises
    ------
    InputError : an unknown activation, precision or backend. Calls raise the errors of :func:`gemmhub.matmul`.

    Examples
    --------
    >>> layer = gemmhub.torch.Linear(64, 32, activation="gelu")
    >>> layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    if TYPE_CHECKING:  # torch.jit.script cannot read annotations of attributes that are strings
        activation: str | None
        precision: str | None
        deterministic: bool
        backend: str | None
        options: dict[str, Any]

    __jit_ignored_attributes__ = ("options",)

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        activation: str | None = None, precision: str | None = None, deterministic: bool = False,
        backend: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set(activation, precision, deterministic, backend)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, *, activation: str | None = None, precision: str | None = None,
        deterministic: bool = False, backend: str | None = None,
    ) -> Linear:  # fmt: skip
        """Return a layer that shares the parameters of ``linear``. InputError unless it is a plain torch.nn.Linear."""
        reason = _kept(linear) or _computed(linear)
        if reason:
            raise InputError("linear", reason, "a torch.nn.Linear")
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.weight, made.bias = linear.weight, linear.bias
        made.train(linear.training)
        made._set(activation, precision, deterministic, backend)
        return made

    def _set(self, activation: str | None, precision: str | None, deterministic: bool, backend: str | None) -> None:
        if activation is not None and activation not in EPILOGUES:
            raise InputError("activation", f"{activation!r}", ", ".join(EPILOGUES))
        self.options = calls.kept(precision, deterministic, backend)
        self.activation, self.precision, self.deterministic, self.backend = (
            activation,
            precision,
            deterministic,
            backend,
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the result, of shape (..., out_features), for ``input`` of shape (..., in_features)."""
        if torch.jit.is_scripting():  # torch.jit.script compiles this line alone
            return torch.ops.gemmhub.matmul(
                input, self.weight.t(), bias=self.bias, activation=self.activation, precision=self.precision,
                deterministic=self.deterministic, backend=self.backend,
            )  # fmt: skip
        return self._product(input)

    @torch.jit.unused
    def _product(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias, options = self.weight, self.bias, self.options  # parameters, or what a parametrization computes
        if bias is not None:
            options = {**options, "bias": bias}
        if self.activation is not None:
            options = {**options, "activation": self.activation}
        result = calls.repeated_linear(input, weight, options)
        if result is not None:
            return result
        if calls.multiplies_itself(input, weight, bias):
            result = torch.nn.functional.linear(input, weight, bias)
            return result if self.activation is None else activations.activated(self.activation, result)
        if weight.dtype in _PLAIN and weight.is_cuda:  # no library on a GPU adds a bias in these
            result = api.matmul(input, weight.t(), **self.options)
            result = result if bias is None else result + bias
            return result if self.activation is None else activations.activated(self.activation, result)
        return api.matmul(input, weight.t(), **options)

    def extra_repr(self) -> str:
        """Return the sizes and options for a printed model."""
        options = {"activation": self.activation, **self.options} if self.activation else self.options
        return ", ".join([super().extra_repr(), *(f"{name}={x!r}" for name, x in options.items())])


@dataclass(frozen=True)
class Accelerated:
    """The result of :func:`accelerate`."""

    replaced: tuple[str, ...]
    """Names of the layers that gemmhub computes."""
    left: dict[str, str]
    """Names of other modules with a weight matrix, with the reason why each is unchanged."""

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} linear layers replaced, {len(self.left)} modules left"]
        return "\n".join([*lines, *(f"  {name or 'the model itself'}: {reason}" for name, reason in self.left.items())])


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


def accelerate(model: torch.nn.Module, *, precision: str | None = None, backend: str | None = None) -> Accelerated:
    """Let gemmhub compute every plain :class:`torch.nn.Linear` of a model, in place.

    Layers stay the same objects, with their parameters, hooks and ``state_dict``: only their class becomes a subclass
    of :class:`Linear`. So optimizers, DistributedDataParallel, FSDP and checkpoints work as before, and so do
    parametrizations, pruning and quantization that follow. Subclasses of torch.nn.Linear, which may compute something
    else, layers that have parametrizations already, and layers whose weights multiply themselves (those that torchao
    has quantised) are unchanged.

    Parameters
    ----------
    model : any module, models of transformers included.
    precision, backend : as of :func:`gemmhub.matmul`, for all its layers.

    Returns
    -------
    The layers replaced, and the modules left with reasons. Print it.

    Raises
    ------
    InputError : an unknown precision or backend; the model is unchanged.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Embedding(4, 8))
    >>> print(gemmhub.torch.accelerate(model))
    1 linear layers replaced, 1 modules left
      2: an Embedding: it looks rows up
    """
    calls.kept(precision, False, backend)
    replaced, left = [], {}
    for name, module in model.named_modules():
        reason = _kept(module)
        if not reason:
            if type(module) is torch.nn.Linear:
                convert(module, precision, backend)
            replaced.append(name)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2 or isinstance(module, torch.nn.Linear):
            left[name] = reason
        elif isinstance(module, torch.nn.MultiheadAttention):
            left[name] = "a MultiheadAttention: it multiplies by torch's own functions; see gemmhub.torch.use()"
    return Accelerated(tuple(replaced), left)


def convert(module: Any, precision: str | None = None, backend: str | None = None) -> None:
    """Let gemmhub compute a plain torch.nn.Linear, in place."""
    module.__class__ = Replaced
    module._set(None, precision, False, backend)


def _kept(module: Any) -> str:
    """The reason why gemmhub does not compute a module as a linear layer; empty where it does, or may."""
    kind = type(module)
    parametrized = torch.nn.utils.parametrize.is_parametrized(module)
    if parametrized and isinstance(module, Linear):
        kind = kind.__bases__[0]  # parametrizations put a class of their own before that of the layer
    kind = torch.nn.Linear if kind is Replaced else kind
    article = "an" if kind.__name__[:1] in "AEIOU" else "a"
    named = f"{article} {kind.__qualname__}"
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
            return (
                f"{named} whose {name} is of type {type(x).__qualname__}, which multiplies itself (quantised weights)"
            )
    if not (module.weight.is_floating_point() or module.weight.is_complex()):
        return f"{named} with weights of {module.weight.dtype}"
    return ""


def _computed(module: Any) -> str:
    """The reason why another layer cannot share the parameters of this one; empty where it can."""
    for name in ("weight", "bias"):
        if name not in module._parameters:
            return f"a layer whose {name} is no parameter: something computes it anew (pruning, weight_norm, FSDP)"
    return ""
