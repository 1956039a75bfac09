"""The keyword arguments of a product: one typed list and one table for matmul, plan, explain and tune."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, cast

from gemmhub import config
from gemmhub._base import promises
from gemmhub._base.device_types import stream_attributes
from gemmhub._base.guard import words
from gemmhub._base.wording import did_you_mean, instance, unexpected
from gemmhub.dtypes import PRECISIONS, DType, as_dtype, info, scaled_dtype, single
from gemmhub.epilogues import EPILOGUES, EpilogueName
from gemmhub.errors import DTypeError, InputError
from gemmhub.operands import OPERANDS, WRITTEN

if TYPE_CHECKING:
    from gemmhub.capability import Device

F = TypeVar("F", bound=Callable[..., Any])


class ContractionOptions(TypedDict, total=False):
    """The keyword arguments of a sum of products, which may be several products of matrices."""

    out_dtype: Any
    precision: Literal["ieee", "bf16x3", "tf32", "bf16"] | None
    reproducible: str | None
    backend: str | None


class LinearOptions(ContractionOptions, total=False):
    """The keyword arguments of a product but ``bias``."""

    alpha: complex
    beta: complex
    c: Any
    scale_a: Any
    scale_b: Any
    scale_out: Any
    pre_activation: Any
    amax: Any
    activation: (
        Literal[
            "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu_squared", "leaky_relu", "hardswish", "swiglu",
            "swiglu_interleaved", "geglu",
        ]
        | EpilogueName
        | None
    )  # fmt: skip
    stream: Any


class Options(LinearOptions, total=False):
    """The keyword arguments of a product; :func:`gemmhub.matmul` documents each."""

    bias: Any
    symmetric: bool


class Option(NamedTuple):
    """Properties of one keyword argument of a product."""

    default: Any
    keyed: str = "value"
    """Contribution to the cache key of a call: "value" itself, the :func:`~gemmhub.dtypes.scalar_class` of a "number",
    the dtype, shape and strides of an "array", or the "presence" alone. A call of a plan takes all but values.
    """


OPTIONS: dict[str, Option] = {
    "out_dtype": Option(None),
    "alpha": Option(1, "number"),
    "beta": Option(0, "number"),
    **{name: Option(None, "array") for name in OPERANDS},
    "activation": Option(None),
    "precision": Option(None),
    "reproducible": Option(None),
    "symmetric": Option(False),
    "backend": Option(None),
    "stream": Option(None, "presence"),
}
"""The options by name, in the order of ``help()``."""

DEFAULTS: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
NUMBERS = tuple(name for name, option in OPTIONS.items() if option.keyed == "number")
ARRAYS = tuple(OPERANDS)
"""Options that are operands."""
VALUES = frozenset(name for name, option in OPTIONS.items() if option.keyed == "value")


def signature(options: type = Options) -> Callable[[F], F]:
    """Show help() and inspect every option by name, though the function takes ``**options``, of the type ``options``.

    matmul takes ``**options`` because filling and testing ten keyword defaults costs a quarter of its
    overhead budget in a call that passes none.
    """

    def decorate(function: F) -> F:
        plain = inspect.Signature.from_callable(function)
        variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        parameters = [p for p in plain.parameters.values() if p.kind not in variable]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in DEFAULTS.items()
            if options is Options or name in options.__annotations__
        ]
        cast(Any, function).__signature__ = plain.replace(parameters=parameters)
        return function

    return decorate


@dataclass(frozen=True, eq=False)
class Request:
    """Checked options of one call, with the settings in force."""

    settings: config.Settings
    out_dtype: DType | None
    alpha: Any
    beta: Any
    activation: str | None
    stream: Any
    operands: Mapping[str, Any]
    """The operands that the call has, by name."""
    symmetric: bool = False
    """Whether the caller promises that the product, and c, are symmetric."""

    @property
    def rest(self) -> tuple[Any, ...]:
        """The arguments after a, b and out in a call of :data:`gemmhub._call.bind.Execute`."""
        return self.operands, self.alpha, self.beta, self.stream

    @property
    def named(self) -> dict[str, Any]:
        """The operands and scalars by name, as :attr:`gemmhub.backend.Kernel.direct_epilogue` reads them."""
        return {"alpha": self.alpha, "beta": self.beta, **self.operands}

    @property
    def in_force(self) -> dict[str, Any]:
        """The precision, the promise on bits and the one backend of the call, or of the settings around it, for a
        product that is computed later or elsewhere."""
        settings = self.settings
        return {
            "precision": settings.precision,
            "reproducible": settings.reproducible or "off",
            **({"backend": settings.backend[0]} if settings.forced else {}),
        }

    def check_scalars(self, a: DType, b: DType, out: DType) -> None:
        """Refuse scalars and activations that the arithmetic of the result cannot hold."""
        classes = {info(x).kind for x in (a, b, out)}
        integral = info(out).kind in ("int", "uint", "bool")
        for argument, value in (("alpha", self.alpha), ("beta", self.beta)):
            if isinstance(value, complex) and "complex" not in classes:
                raise InputError(argument, f"{value} for a real product", "real numbers")
            if integral and not float(value.real).is_integer():
                raise InputError(argument, f"{value} for a result of {out}", "integers", "give out_dtype=float32")
            if integral and abs(value.real) >= 2**31:
                raise InputError(argument, f"{value} for a result of {out}", "integers of 32 bits")
            if out.kind == "b" and value not in (0, 1):
                raise InputError(argument, f"{value} for a result of bool", "0 and 1")
        if self.activation is not None:
            if "complex" in classes:
                raise DTypeError("activation", f"{self.activation} of complex numbers", "real results")
            if out.kind == "b" or (integral and self.activation != "relu"):
                raise DTypeError(
                    "activation", f"{self.activation} of a result of {out}", "floating results", "give out_dtype="
                )

    def scaled(self, compute: DType, out: DType, device: Device) -> DType:
        """The dtype to accumulate in: ``compute``, or on the CPU a wider one where alpha or beta needs it."""
        wide = scaled_dtype(compute, out, self.alpha, self.beta)
        if wide != compute and device.type != "cpu":
            argument, value = ("alpha", self.alpha) if not single(self.alpha) else ("beta", self.beta)
            raise InputError(
                argument, f"{value} for a result computed in float32 on {device}",
                "0 and magnitudes from 1.2e-38 to 3.4e38", "scale an operand, or multiply in float64",
            )  # fmt: skip
        return wide


def scalar(value: object, argument: str) -> Any:
    """A Python int, float or complex; InputError for anything else, and for ints beyond all floats."""
    if not isinstance(value, (int, float)):
        refuse_recorded({argument: value})
    try:
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()
    except MemoryError:
        raise
    except Exception as error:  # foreign code
        actual = f"{instance(type(value))} that is not read: {words(error)}"
        raise InputError(argument, actual, "a number (an int, a float, a complex)") from error
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and abs(value) >= 2**1023:
        raise InputError(argument, f"an int of {value.bit_length()} bits", "ints that a float can hold")
    if isinstance(value, Number) and isinstance(value, (int, float, complex)):
        return value
    raise InputError(argument, f"{value!r:.80} is not a number", "a number (an int, a float, a complex)")


def with_scalars(options: Options) -> dict[str, Any]:
    """``options`` with alpha and beta as Python numbers; InputError where they are none."""
    values: dict[str, Any] = dict(options)
    for name in NUMBERS:
        if name in values:
            values[name] = scalar(values[name], name)
    return values


def refuse_operands(options: Mapping[str, Any], allowed: Container[str], where: str) -> None:
    """InputError for an operand that is not ``allowed`` in a call, and for ``symmetric``: ``where`` names the class of
    calls."""
    if options.get("symmetric"):
        raise InputError("symmetric", f"given {where}", "False: not implemented there", "leave symmetric= out")
    for name in ARRAYS:
        if name not in allowed and options.get(name) is not None:
            raise InputError(name, f"given {where}", "None: not implemented there", f"leave {name}= out")


def refuse_recorded(options: Mapping[str, Any]) -> None:
    """InputError for a number that is a tensor whose gradient is recorded: products have none for numbers."""
    from gemmhub._arrays.torch.tensors import is_tensor  # here, so that importing gemmhub does not

    for name in NUMBERS:
        value = options.get(name)
        if value is not None and is_tensor(value) and value.requires_grad and sys.modules["torch"].is_grad_enabled():
            factor = "gemmhub.matmul(a, b)" if name == "alpha" else "c, with beta=1"
            raise InputError(
                name, "a tensor that requires grad, for which products record no gradient", "numbers",
                f"multiply {factor} by it, or pass {name}.item()",
            )  # fmt: skip


def stream_handle(value: Any) -> int | None:
    """The native handle of a stream: an int, or what torch, cupy and ``__cuda_stream__`` objects carry."""
    if value is None:
        return None
    handle = value
    try:
        if hasattr(value, "__cuda_stream__"):
            handle = value.__cuda_stream__()[1]
        else:
            names = (*stream_attributes(), "ptr")  # of torch's streams, and of cupy's
            handle = next((getattr(value, x) for x in names if hasattr(value, x)), value)
    except Exception:  # foreign code, or a class instead of a stream
        handle = None
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < 2**64:
        raise InputError("stream", f"{value!r:.80}", "a stream of torch or cupy, or a native handle (an int)")
    return handle


def one_backend(value: Any) -> str | None:
    """``value`` of the argument ``backend``; InputError unless it names one backend."""
    if value is not None and (not isinstance(value, str) or not value or "," in value):
        raise InputError("backend", f"{value!r}", "the name of one backend; gemmhub.backends() lists them")
    return value


def pins_rows(reproducible: str | None) -> bool:
    """Whether the bits of rows are pinned: by this value of ``reproducible=``, or where it is None by the settings."""
    return promises.pins_rows(config.current().reproducible if reproducible is None else reproducible)


pins_rows._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's compiler does not trace it


def promise(value: Any) -> str | None:
    """``value`` of the argument ``reproducible``; InputError unless it is None or names a promise."""
    if value is not None:
        try:
            promises.promise(value)
        except ValueError:
            raise InputError("reproducible", f"{value!r:.80}", f"None, {promises.ALLOWED}") from None
    return value  # type: ignore[no-any-return]


_MEANT = {"dtype": "out_dtype", "preferred_element_type": "out_dtype", "epilogue": "activation", "rows": "m"}
"""Names that other libraries have for options."""


def unknown(name: str, allowed: Iterable[str] = ("out", *DEFAULTS)) -> TypeError:
    """The error for a keyword argument that a call has not, with the one that was meant, where one is likely."""
    names = list(allowed)
    hint = f"did you mean {_MEANT[name]}=?" if _MEANT.get(name) in names else ""
    if name == "dtype" and "out_dtype" in names:
        hint = "out_dtype= is the dtype of the result, and a and b have their own"
    return unexpected(name, names, hint)


def positional(rest: tuple[object, ...]) -> TypeError:
    """The error for positional arguments after a and b."""
    meant = "write out=" if hasattr(rest[0], "shape") else "write its name"
    return TypeError(
        f"{len(rest) + 2} positional arguments, the third {instance(type(rest[0]))}; allowed: a and b. {meant}; the "
        f"others are out, {', '.join(DEFAULTS)}"
    )


@lru_cache(maxsize=64, typed=True)  # True is not 1.0
def _wanted(value: Any) -> DType:
    return as_dtype(value)


def request(options: Options) -> Request:
    """Return ``options`` checked, except for checks that need the operands."""
    for name in options:
        if name not in DEFAULTS:
            raise unknown(name)
    values = cast("dict[str, Any]", {**DEFAULTS, **options})
    alpha, beta = scalar(values["alpha"], "alpha"), scalar(values["beta"], "beta")
    if values["c"] is None and beta != 0:
        raise InputError("beta", f"{beta} without c", "beta with c", "pass c=; c=out accumulates into out")
    if values["c"] is not None and "beta" not in options:
        raise InputError("c", "given without beta", "c with beta", "pass beta=1 to add it")
    activation, precision = values["activation"], values["precision"]
    if activation is not None and not (isinstance(activation, str) and activation in EPILOGUES):
        raise InputError("activation", f"{activation!r}", ", ".join(EPILOGUES), did_you_mean(activation, EPILOGUES))
    if precision is not None and not (isinstance(precision, str) and precision in PRECISIONS):
        raise InputError("precision", f"{precision!r}", ", ".join(PRECISIONS), did_you_mean(precision, PRECISIONS))
    settings = config.override(
        config.current(), "the call",
        backend=one_backend(values["backend"]), precision=precision,
        reproducible=promise(values["reproducible"]),
    )  # fmt: skip
    wanted = values["out_dtype"]
    try:
        out_dtype = None if wanted is None else _wanted(wanted)
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        out_dtype = as_dtype(wanted)  # unhashable: let the error name it
    stream = stream_handle(values["stream"])
    operands = {name: values[name] for name in ARRAYS if values[name] is not None}
    for name in WRITTEN:
        if isinstance(operands.get(name), bool):
            allowed = "an array to write" + ", or True in matmul" * (name == "pre_activation")
            raise InputError(name, f"{operands[name]}", allowed)
    return Request(settings, out_dtype, alpha, beta, activation, stream, operands, _symmetric(values, settings))


def _symmetric(values: Mapping[str, Any], settings: config.Settings) -> bool:
    """The value of ``symmetric``; InputError where the call has something that symmetric products do not."""
    symmetric = values["symmetric"]
    if symmetric is not True and symmetric is not False:
        raise InputError("symmetric", f"{symmetric!r:.80}", "True, False")
    if not symmetric:
        return False
    others = [name for name in (*ARRAYS, "activation") if name != "c" and values[name] is not None]
    if others:
        raise InputError(
            others[0], "given with symmetric=True", "a, b, c, alpha and beta", f"apply {others[0]}= to the product"
        )
    if promises.pins_rows(settings.reproducible):
        raise InputError(
            "reproducible", f"{settings.reproducible!r} with symmetric=True, where elements of a row are copied from "
            "other rows", 'None, "run"', "leave symmetric= out",
        )  # fmt: skip
    return True


def check(options: Mapping[str, Any]) -> bool:
    """Check the options that several products will have, a backend's name included, before any of them runs.

    torch's compiler, which cannot trace it, runs it when it traces a function.
    """
    request(cast("Options", options))
    backend = options.get("backend")
    names = None if backend is None or config.backend_names is None else config.backend_names()
    if names is not None and backend not in names:
        raise InputError("backend", f"no backend is called {backend!r}", ", ".join(names))
    return True


# What torch.compiler.assume_constant_result does, without its import of the compiler, which takes a first call seconds.
check._dynamo_marked_constant = True  # type: ignore[attr-defined]
