"""Linear layers that gemmhub computes, and their replacement in a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gemmhub import api
from gemmhub._doors.torch import gradients
from gemmhub.dtypes import ACTIVATIONS
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
    activation : None, "relu", "gelu" (tanh form) or "silu".

    Raises
    ------
    InputError : an unknown activation. Calls raise the errors of :func:`gemmhub.matmul`.

    Examples
    --------
    >>> layer = gemmhub.torch.Linear(64, 32, activation="gelu")
    >>> layer(torch.randn(8, 64)).shape
    torch.Size([8, 32])
    """

    activation: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012  (never written)
    _recent: tuple[Any, Any] | None = None

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
        reason = _kept(linear)
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
        if activation is not None and activation not in ACTIVATIONS:
            raise InputError("activation", f"{activation!r}", ", ".join(ACTIVATIONS))
        given = {"precision": precision, "deterministic": deterministic, "backend": backend}
        self.activation, self.options = activation, {name: x for name, x in given.items() if x}

    def forward(self, input: Tensor) -> Tensor:
        """Return the result, of shape (..., out_features), for ``input`` of shape (..., in_features)."""
        own = self._parameters  # faster than attributes of modules, which are looked up in Python
        weight, bias, options = own["weight"], own["bias"], self.options
        if weight.dtype in _PLAIN and weight.is_cuda:  # no library on a GPU adds a bias in these
            result = api.matmul(input, weight.t(), **options)
            result = result if bias is None else result + bias
            return result if self.activation is None else gradients.ACTIVATIONS[self.activation](result)
        if bias is not None:
            options = {**options, "bias": bias}
        if self.activation is not None:
            options = {**options, "activation": self.activation}
        b = weight.t()
        if not torch.compiler.is_compiling():
            result = self._again(input, b, options)
            if result is not None:
                return result
        return api.matmul(input, b, **options)

    def _again(self, a: Tensor, b: Tensor, options: dict[str, Any]) -> Tensor | None:
        """The product where this layer, or another, had one of its kind; None where gemmhub must analyse the call.

        Layers of a model run in turn: each compares its call with its own previous one.
        """
        path = api.fast_path(torch.Tensor)
        if path is None or path.another is None:
            return None
        if self._recent is None or self._recent[0] is not path:  # records or settings have changed
            self.__dict__["_recent"] = path, path.another()
        try:
            return self._recent[1](a, b, None, options)  # type: ignore[index]
        except Exception:
            return None  # api.matmul finds the reason, and reports it

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "_recent"}

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


def accelerate(model: torch.nn.Module, *, precision: str | None = None, backend: str | None = None) -> Accelerated:
    """Let gemmhub compute every plain :class:`torch.nn.Linear` of a model, in place.

    Layers stay the same objects, with their parameters, hooks and ``state_dict``: only their class becomes
    :class:`Linear`. So optimizers, DistributedDataParallel, FSDP and checkpoints work as before. Subclasses of
    torch.nn.Linear, which may compute something else, and layers with parametrizations are unchanged.

    Parameters
    ----------
    model : any module, models of transformers included.
    precision, backend : as of :func:`gemmhub.matmul`, for all its layers.

    Returns
    -------
    The layers replaced, and the modules left with reasons. Print it.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Embedding(4, 8))
    >>> print(gemmhub.torch.accelerate(model))
    1 linear layers replaced, 1 modules left
      2: an Embedding: it looks rows up
    """
    replaced, left = [], {}
    for name, module in model.named_modules():
        if type(module) is Linear:
            replaced.append(name)
            continue
        reason = _kept(module)
        if not reason:
            convert(module, precision, backend)
            replaced.append(name)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2 or isinstance(module, torch.nn.Linear):
            left[name] = reason
        elif isinstance(module, torch.nn.MultiheadAttention):
            left[name] = "a MultiheadAttention: it multiplies by torch's own functions; see gemmhub.torch.use()"
    return Accelerated(tuple(replaced), left)


def convert(module: Any, precision: str | None = None, backend: str | None = None) -> None:
    """Make a plain torch.nn.Linear a :class:`Linear`, in place."""
    module.__class__ = Linear
    module._set(None, precision, False, backend)


def _kept(module: Any) -> str:
    """The reason why a module is not a plain linear layer; empty where it is one."""
    kind = type(module)
    if kind not in (torch.nn.Linear, Linear):
        article = "an" if kind.__name__[:1] in "AEIOU" else "a"
        named = f"{article} {kind.__qualname__}"
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            return f"{named}: it looks rows up"
        if torch.nn.utils.parametrize.is_parametrized(module):
            return f"{named}: its weight is recomputed in each call (parametrizations)"
        if isinstance(module, torch.nn.Linear):
            return f"{named}: a subclass of torch.nn.Linear, which may compute something else"
        return f"{named}: not a torch.nn.Linear"
    if "forward" in vars(module):
        return f"a {kind.__qualname__} whose forward was replaced"
    if not (module.weight.is_floating_point() or module.weight.is_complex()):
        return f"a {kind.__qualname__} with weights of {module.weight.dtype}"
    return ""
