"""The call target of programs compiled by JAX: gemmhub's product on the runtime's own buffers and stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from importlib import metadata
from typing import Any

import numpy as np

from gemmhub import api, dtypes
from gemmhub.errors import InputError
from gemmhub.kit import install

_LACKING = {
    "jax-tvm-ffi": ((0, 1, 3), "has no float64"),
    "apache-tvm-ffi": ((0, 1, 13), "gives no addresses of arrays"),
}
"""The oldest versions that serve, and what earlier ones lack."""
_VERSIONS = "jax 0.9.1 or later, jax-tvm-ffi 0.1.3, apache-tvm-ffi 0.1.13 or later, Python 3.11 or later"
"""Versions that pyproject.toml allows. A jax-tvm-ffi is built for one version of XLA's interface; older jax refuse its
functions: 0.1.3 needs jax 0.9.1.
"""


_calls: dict[int, tuple[Any, ...]] = {}
"""The traced calls, by their numbers in compiled programs."""


def encoded(call: Any, names: tuple[str, ...]) -> Any:
    """The number of a call, from its content: the same in every process, as caches of compiled programs require.

    It is not a string, because jax-tvm-ffi 0.1.3 corrupts memory with strings of 8 bytes and more.
    """
    return number_of((call.alpha, call.beta, call.activation, call.options, call.pre, names))


def number_of(fields: tuple[Any, ...]) -> Any:
    """The number of these facts of a call, which :func:`facts` returns to the function that runs it."""
    number = int.from_bytes(blake2b(repr(fields).encode(), digest_size=8).digest(), "little", signed=True)
    _calls[number] = fields
    return np.int64(number)


def facts(number: int) -> tuple[Any, ...]:
    """The fields that :func:`number_of` keeps under ``number``; RuntimeError where that was in another process."""
    if number not in _calls:
        raise RuntimeError("a program that another process traced: gemmhub's products run where they were traced")
    return _calls[number]


def registered(platform: str) -> str:
    """The name by which XLA finds the function of a product; InputError where JAX lacks this interface to Python."""
    return register(f"gemmhub_matmul_{platform}", _run_on_cpu if platform == "cpu" else _run_on_gpu, platform)


def register(name: str, function: Callable[..., None], platform: str) -> str:
    """Register a function of a number and buffers with XLA, once, and return its name."""
    try:
        import jax_tvm_ffi  # noqa: F401
    except ImportError as error:
        raise InputError(
            "a, b", f"arrays that JAX traces, without jax-tvm-ffi ({error})", _VERSIONS,
            f"{install.command('gemmhub[jax]')}, or call gemmhub outside of the traced function",
        ) from error  # fmt: skip
    return _register(name, function, platform)


@cache
def _register(name: str, run: Callable[..., None], platform: str) -> str:
    import jax_tvm_ffi
    import tvm_ffi

    for distribution, (oldest, lack) in _LACKING.items():
        if tuple(map(int, re.findall(r"\d+", _version(distribution))[:3])) < oldest:
            raise _unfit(f"{distribution} {lack}")
    function = tvm_ffi.convert(run)
    try:
        jax_tvm_ffi.register_ffi_target(
            name, function, ["attrs.call", "args", "rets"], platform=platform, allow_cuda_graph=platform == "gpu"
        )
    except Exception as error:  # whatever XLA raises for a function of another version of its interface
        raise _unfit(f"jax refuses its functions: {error}") from error
    return name


def _unfit(why: str) -> InputError:
    """The error for installed versions that do not work together."""
    installed = ", ".join(f"{x} {_version(x)}" for x in ("jax", *_LACKING))
    return InputError(
        "a, b", f"arrays that JAX traces, with {installed} ({why})", _VERSIONS,
        "pip install 'jax>=0.9.1' 'jax-tvm-ffi==0.1.3' 'apache-tvm-ffi>=0.1.13', or call gemmhub outside of the traced "
        "function",
    )  # fmt: skip


def _version(distribution: str) -> str:
    return metadata.version(distribution)


def _run(number: int, arrays: tuple[Any, ...], stream: Any = None) -> None:
    alpha, beta, activation, options, pre, names = facts(number)
    (a, b, *rest), (out, *before) = arrays[: 2 + len(names)], arrays[2 + len(names) :]
    arguments = {**dict(options), **dict(zip(names, rest))}
    if "c" in arguments:
        arguments["beta"] = beta
    if pre:
        (arguments["pre_activation"],) = before
    if alpha != 1:
        arguments["alpha"] = alpha
    if activation is not None:
        arguments["activation"] = activation
    if stream is not None:
        arguments["stream"] = stream
    try:
        api.matmul(a, b, out=out, **arguments)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


class _Memory:
    """A buffer of the runtime as the array interface of NumPy, or of CUDA."""

    def __init__(self, x: Any, attribute: str) -> None:
        dtype = dtypes.as_dtype(str(x.dtype))
        self.shape, self.dtype = tuple(x.shape), dtype
        code = f"|V{dtype.itemsize}" if dtype.name in dtypes.ML_DTYPES else dtype.str
        pointer = x.data_ptr() if callable(x.data_ptr) else x.data_ptr
        interface = {"shape": self.shape, "typestr": code, "data": (pointer, False), "version": 3}
        setattr(self, attribute, interface)


def _run_on_cpu(number: int, *buffers: Any) -> None:
    _run(number, views(buffers))


def views(buffers: Iterable[Any]) -> tuple[Any, ...]:
    """Buffers of the runtime on the CPU as ndarrays."""
    arrays = []
    for x in buffers:
        memory = _Memory(x, "__array_interface__")
        array = np.asarray(memory) if all(memory.shape) else np.empty(memory.shape, memory.dtype)
        arrays.append(array if array.dtype == memory.dtype else array.view(memory.dtype))
    return tuple(arrays)


def _run_on_gpu(number: int, *buffers: Any) -> None:  # not run: no GPU was at hand
    import tvm_ffi

    stream = tvm_ffi.get_raw_stream(buffers[0].device)
    _run(number, tuple(_Memory(x, "__cuda_array_interface__") for x in buffers), stream)
