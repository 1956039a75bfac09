"""libmusart by ctypes: only functions that public programs call, and no structure whose layout is not public."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from functools import cache, cached_property
from typing import Any

from gemmhub.capability import Absent, Refusal
from gemmhub.errors import AllocationError, BackendError
from gemmhub.kit import locks
from gemmhub_musa import first_run
from gemmhub_musa import sdk as sdks
from gemmhub_musa.sdk import Library, Sdk

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "musaGetDeviceCount": (c_void_p,),
    "musaGetDevice": (c_void_p,),
    "musaSetDevice": (c_int,),
    "musaDeviceGetAttribute": (c_void_p, c_int, c_int),
    "musaDeviceSynchronize": (),
    "musaRuntimeGetVersion": (c_void_p,),
    "musaDriverGetVersion": (c_void_p,),
    "musaMalloc": (c_void_p, c_size_t),
    "musaFree": (c_void_p,),
    "musaMallocHost": (c_void_p, c_size_t),
    "musaFreeHost": (c_void_p,),
    "musaMemGetInfo": (c_void_p, c_void_p),
    "musaMemcpy": (c_void_p, c_void_p, c_size_t, c_int),
    "musaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "musaMemcpy2DAsync": (c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p),
    "musaMemset": (c_void_p, c_int, c_size_t),
    "musaMemsetAsync": (c_void_p, c_int, c_size_t, c_void_p),
    "musaStreamCreate": (c_void_p,),
    "musaStreamDestroy": (c_void_p,),
    "musaStreamSynchronize": (c_void_p,),
    "musaStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "musaEventCreate": (c_void_p,),
    "musaEventDestroy": (c_void_p,),
    "musaEventRecord": (c_void_p, c_void_p),
    "musaEventSynchronize": (c_void_p,),
    "musaEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "musaGetLastError": (),
    "musaPeekAtLastError": (),
}
"""The functions that are called, with their arguments; all return a musaError_t."""
_TEXTS = ("musaGetErrorName", "musaGetErrorString")

OUT_OF_MEMORY = 2
NO_DEVICES = (100, 38)
"""musaErrorNoDevice: the vendor's header has 100, a public stub CUDA's former 38."""
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
"""musaMemcpyKind."""

THREADS_PER_BLOCK, SHARED_PER_BLOCK, WARP_SIZE, MULTIPROCESSORS, L2_CACHE = 1, 8, 10, 16, 38
SHARED_PER_MULTIPROCESSOR, MAJOR, MINOR = 81, 75, 76
"""musaDeviceAttr, as a public copy of the vendor's driver_types.h has them. MAJOR.MINOR is the compute capability."""
ARCHITECTURES = ((1, 0), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2))
"""Compute capabilities that public software supports."""


class MusaError(BackendError):
    """A call of the runtime failed."""

    def __init__(self, function: str, code: int, name: str, text: str) -> None:
        self.function, self.code, self.name, self.text = function, code, name, text
        super().__init__(f"{function}: {name} ({code}): {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, self.code, self.name, self.text)


class Runtime:
    """A loaded libmusart. Methods raise :class:`MusaError` where the runtime reports a failure.

    Addresses, streams and events are ints; the stream 0 is the default one. As MUSA's own functions, all of them mean
    the calling thread's current device, except where an index is passed.
    """

    def __init__(self, library: Library) -> None:
        """Raises AttributeError, with the names of all missing functions."""
        self.library = library
        missing = [name for name in (*FUNCTIONS, *_TEXTS) if not hasattr(library.cdll, name)]
        if missing:
            raise AttributeError(", ".join(missing))
        # By [], which makes new function objects: other users may declare other types for theirs.
        self._functions = {name: library.cdll[name] for name in (*FUNCTIONS, *_TEXTS)}
        for name, arguments in FUNCTIONS.items():
            self._functions[name].restype, self._functions[name].argtypes = c_int, arguments
        for name in _TEXTS:
            self._functions[name].restype, self._functions[name].argtypes = c_char_p, (c_int,)

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if code:
            self._functions["musaGetLastError"]()  # else the next call, of any code, may report it again
            raise MusaError(name, code, *self.words(code))

    def _int(self, name: str, *arguments: Any) -> int:
        value = c_int()
        self._call(name, byref(value), *arguments)
        return value.value

    def _handle(self, name: str, *arguments: Any) -> int:
        value = c_void_p()
        self._call(name, byref(value), *arguments)
        return value.value or 0

    def words(self, code: int) -> tuple[str, str]:
        """Return the name and the text of an error code, by the library."""
        name, text = (self._functions[function](code) or b"" for function in _TEXTS)
        return name.decode(errors="replace") or "unknown error", text.decode(errors="replace")

    def clear_error(self) -> str:
        """Read and reset the runtime's last error; return its name, empty where there was none.

        Libraries leave errors behind that the next call of other code would report.
        """
        code = self._functions["musaGetLastError"]()
        return self.words(code)[0] if code else ""

    # Devices

    def peek_error(self) -> int:
        """Return the runtime's last error, 0 where there is none; it stays."""
        code: int = self._functions["musaPeekAtLastError"]()
        return code

    def device_count(self) -> int:
        """Return the number of devices; 0 where the runtime reports that there is none."""
        try:
            return self._int("musaGetDeviceCount")
        except MusaError as error:
            if error.code in NO_DEVICES:
                return 0
            raise

    @property
    def current_device(self) -> int:
        """The index of the calling thread's current device."""
        return self._int("musaGetDevice")

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Make a device this thread's current one for a block."""
        before = self.current_device
        if before == index:
            yield
            return
        self._call("musaSetDevice", index)
        try:
            yield
        finally:
            self._call("musaSetDevice", before)

    def attribute(self, number: int, index: int) -> int:
        """Return a device attribute by its number."""
        return self._int("musaDeviceGetAttribute", number, index)

    def arch(self, index: int) -> tuple[int, int] | None:
        """Return the compute capability, (2, 2) for mp_22; None where it is none of :data:`ARCHITECTURES`."""
        try:
            found = self.attribute(MAJOR, index), self.attribute(MINOR, index)
        except MusaError:
            return None
        return found if found in ARCHITECTURES else None

    @property
    def version(self) -> str:
        return sdks.decimal(self._int("musaRuntimeGetVersion"))

    @property
    def driver_version(self) -> str:
        return sdks.decimal(self._int("musaDriverGetVersion"))

    def synchronize(self) -> None:
        """Wait for all work on the current device."""
        self._call("musaDeviceSynchronize")

    # Memory

    def malloc(self, nbytes: int) -> int:
        """Return the address of new memory; 0 for no bytes. Raises AllocationError where there is no room."""
        if nbytes == 0:
            return 0
        try:
            return self._handle("musaMalloc", nbytes)
        except MusaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise AllocationError(f"{nbytes / 2**30:.4g} GiB of device memory: {error}") from None

    def free(self, address: int) -> None:
        self._call("musaFree", address)

    def malloc_host(self, nbytes: int) -> int:
        """Return the address of new page-locked host memory, which :meth:`write_host` fills. Raises AllocationError."""
        try:
            return self._handle("musaMallocHost", nbytes)
        except MusaError as error:
            raise AllocationError(f"{nbytes} bytes of page-locked host memory: {error}") from None

    def write_host(self, address: int, data: bytes) -> None:
        """Write to memory of :meth:`malloc_host`."""
        self.library.loader.write(address, data)

    def free_host(self, address: int) -> None:
        self._call("musaFreeHost", address)

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the current device."""
        free, total = c_size_t(), c_size_t()
        self._call("musaMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def memcpy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        """Copy, and return when the copy is complete. ``kind`` is TO_DEVICE, TO_HOST or ON_DEVICE."""
        if nbytes:
            host = self.library.loader.host
            there = host(to, nbytes) if kind == TO_HOST else to
            self._call("musaMemcpy", there, host(source, nbytes) if kind == TO_DEVICE else source, nbytes, kind)

    def memcpy_async(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if nbytes:
            self._call("musaMemcpyAsync", to, source, nbytes, kind, stream)

    def memcpy_2d_async(
        self, to: int, to_pitch: int, source: int, source_pitch: int, width: int, height: int, stream: int
    ) -> None:
        """Copy ``height`` rows of ``width`` bytes on the device; the pitches are bytes from row to row."""
        if width and height:
            self._call("musaMemcpy2DAsync", to, to_pitch, source, source_pitch, width, height, ON_DEVICE, stream)

    def memset(self, address: int, value: int, nbytes: int) -> None:
        if nbytes:
            self._call("musaMemset", address, value, nbytes)

    def memset_async(self, address: int, value: int, nbytes: int, stream: int) -> None:
        if nbytes:
            self._call("musaMemsetAsync", address, value, nbytes, stream)

    # Streams and events

    def stream_create(self) -> int:
        return self._handle("musaStreamCreate")

    def stream_destroy(self, stream: int) -> None:
        self._call("musaStreamDestroy", stream)

    def stream_synchronize(self, stream: int) -> None:
        self._call("musaStreamSynchronize", stream)

    def stream_wait(self, stream: int, event: int) -> None:
        """Make later work on ``stream`` wait for ``event``."""
        self._call("musaStreamWaitEvent", stream, event, 0)

    def event_create(self) -> int:
        return self._handle("musaEventCreate")

    def event_destroy(self, event: int) -> None:
        self._call("musaEventDestroy", event)

    def event_record(self, event: int, stream: int) -> None:
        self._call("musaEventRecord", event, stream)

    def event_synchronize(self, event: int) -> None:
        self._call("musaEventSynchronize", event)

    def event_elapsed(self, start: int, end: int) -> float:
        """Return the milliseconds between two events that have happened."""
        value = c_float()
        self._call("musaEventElapsedTime", byref(value), start, end)
        return value.value


_VISIBLE = ("MUSA_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES")
_lock = locks.lock()


def load() -> Runtime | Absent:
    """Return the runtime of the installation that :func:`gemmhub_musa.sdk.find` finds; one for each installation."""
    found = sdks.find()
    if isinstance(found, Absent):
        return found
    with _lock:
        return _load(found)


@cache
def _load(sdk: Sdk) -> Runtime | Absent:
    return _loaded(sdk)


def _loaded(sdk: Sdk) -> Runtime | Absent:
    library = sdk.library("musart")
    if isinstance(library, Refusal):
        return Absent(library.reason, library.remedy)
    try:
        return Runtime(library)
    except AttributeError as error:
        return Absent(
            f"{library.where} lacks {error}",
            "install a MUSA SDK of version 3.1 or later, with libraries of one version",
        )


class Machine:
    """The installation, its runtime and its devices (at least one)."""

    def __init__(self, sdk: Sdk, runtime: Runtime, count: int) -> None:
        self.sdk, self.runtime, self.count = sdk, runtime, count

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The devices' names by the driver; empty where it reports none."""
        driver = self.sdk.load("musa")
        return tuple(_device_name(driver, index) for index in range(self.count))

    @cached_property
    def versions(self) -> dict[str, str]:
        """Versions and names that speed depends on, for :class:`gemmhub.capability.Ready`.

        The memory's bandwidth is not among them: no attribute for it is public.
        """
        arch = sorted({self.arch_name(index) for index in range(self.count)})
        names = sorted(set(self.names) - {""})
        processors = sorted({self._multiprocessors(index) for index in range(self.count)})
        return {
            "musa runtime": self.runtime.version,
            "musa driver": self.runtime.driver_version,
            "device": " + ".join(names or arch),
            "multiprocessors": " + ".join(processors),
        }

    def _multiprocessors(self, index: int) -> str:
        try:
            return str(self.runtime.attribute(MULTIPROCESSORS, index))
        except MusaError:
            return "unknown"

    def arch_name(self, index: int) -> str:
        """Return the compiler's name of the architecture, such as "mp_22"; "unknown" where the runtime reports none."""
        arch = self.runtime.arch(index)
        return "mp_{}{}".format(*arch) if arch else "unknown"

    def first(self, what: str, facts: Sequence[object], prove: Callable[[Machine], Refusal | None]) -> Refusal | None:
        """Return None where ``prove`` has passed on this machine in a child process; see :func:`first_run.passed`.

        ``prove`` gets the machine as the child process has it.
        """

        def there(sdk: Sdk) -> Refusal | None:
            parts = first_run.parts(sdk)
            if Machine not in parts:
                runtime = _loaded(sdk)
                if isinstance(runtime, Absent):
                    return Refusal(runtime.reason, runtime.remedy, runtime.traceback)
                parts[Machine] = Machine(sdk, runtime, self.count)
            return prove(parts[Machine])

        return first_run.passed(self.sdk, what, [*facts, *self.versions.items()], there)


_counted: set[tuple[Sdk, tuple[str, ...]]] = set()
"""Installations, and which devices are visible, whose runtime has counted its devices in a child process. The process
keeps the runtime that it loaded, and every array looks for its device: files are not read again for each."""


def machine() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    sdk = sdks.find()
    if isinstance(sdk, Absent):
        return sdk
    visible = tuple(os.environ.get(name, "") for name in _VISIBLE)
    if (sdk, visible) not in _counted:
        refusal = first_run.passed(sdk, "the MUSA runtime, when it counted its devices,", visible, _counts)
        if refusal is not None:
            return Absent(refusal.reason, refusal.remedy, refusal.traceback)
        _counted.add((sdk, visible))
    return _machine(sdk, load())


def _counts(sdk: Sdk) -> None:
    """Load the runtime and read the facts of its devices; what fails without a fault is found again later."""
    found = _machine(sdk, _loaded(sdk))
    if isinstance(found, Machine):
        with suppress(MusaError):
            found.versions  # noqa: B018 - reads them


def _machine(sdk: Sdk, runtime: Runtime | Absent) -> Machine | Absent:
    if isinstance(runtime, Absent):
        return runtime
    try:
        count = runtime.device_count()
    except MusaError as error:
        return Absent(
            f"the MUSA runtime does not work: {error}", "check that mthreads-gmi lists a device; reinstall the driver"
        )
    if count == 0:
        return Absent(
            "the MUSA runtime shows no device", "check MUSA_VISIBLE_DEVICES, and that mthreads-gmi lists a device"
        )
    return Machine(sdk, runtime, count)


def _device_name(driver: ctypes.CDLL | Refusal, index: int) -> str:
    if isinstance(driver, Refusal):
        return ""
    device, name = c_int(), ctypes.create_string_buffer(256)
    try:
        failed = driver.muInit(0) or driver.muDeviceGet(byref(device), index)
        failed = failed or driver.muDeviceGetName(name, len(name), device)
    except AttributeError:
        return ""
    return "" if failed else name.value.decode(errors="replace")
