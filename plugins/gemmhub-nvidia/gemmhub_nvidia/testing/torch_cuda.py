"""Tests of CUDA backends on a card: torch's memory for the conformance kit, and checks beyond the kit.

The checks are of graph capture, streams, threads and equal results from run to run. torch is imported at first use.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from typing import Any

import gemmhub
from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.testing.memory import Array, Memory
from gemmhub_nvidia.driver import Gpu

Run = Callable[..., object]
"""A kernel's ``run``, as :class:`gemmhub.backend.Kernel` describes it."""


def _torch() -> Any:
    return importlib.import_module("torch")


class TorchMemory(Memory):
    """Memory of torch's allocator on CUDA device ``index``, with work on a side stream of torch."""

    def __init__(self, index: int = 0) -> None:
        self.device = Device("cuda", index)
        self._stream: Any = None

    @property
    def stream(self) -> int:  # type: ignore[override]  # made on first use
        if self._stream is None:
            self._stream = _torch().cuda.Stream(self.device.index)
        handle: int = self._stream.cuda_stream
        return handle

    def empty(self, nbytes: int) -> Array:
        torch = _torch()
        return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self.device.index}")

    def write(self, buffer: Array, data: Array) -> None:
        buffer.copy_(_torch().from_numpy(data))

    def read(self, buffer: Array) -> Array:
        return buffer.cpu().numpy()

    def view(self, buffer: Array, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
        """The address, which kernels receive."""
        address: int = buffer.data_ptr() + offset
        return address

    def synchronize(self) -> None:
        _torch().cuda.synchronize(self.device.index)


class TorchProduct:
    """Two matrices on the current CUDA device, a dense row-major result, and the expected values."""

    def __init__(self, a: Any, b: Any, out_dtype: Any, tolerance: float = 0.0) -> None:
        """``a`` (m x k), ``b`` (k x n) are torch tensors; ``tolerance`` is the largest error, 0 for integers."""
        torch = _torch()
        self.a, self.b, self.tolerance = a, b, tolerance
        self.out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=a.device, dtype=out_dtype)
        self.exact = a.double() @ b.double()
        """Expected result, to be changed together with the operands."""
        torch.cuda.synchronize()

    def run(
        self, run: Run, stream: Any = None, c: int | None = None, bias: int | None = None, alpha: float = 1,
        beta: float = 0,
    ) -> None:  # fmt: skip
        """Call the kernel, by default on torch's current stream; ``c`` and ``bias`` are addresses."""
        stream = _torch().cuda.current_stream() if stream is None else stream
        addresses = (self.a.data_ptr(), self.b.data_ptr(), self.out.data_ptr())
        operands = {name: address for name, address in (("c", c), ("bias", bias)) if address is not None}
        run(*addresses, alpha, beta, stream.cuda_stream, **operands)

    @property
    def right(self) -> bool:
        """Wait for all work; return whether the result is correct."""
        torch = _torch()
        torch.cuda.synchronize()
        if self.tolerance:
            return bool(((self.out.double() - self.exact).abs() < self.tolerance).all())
        return bool(torch.equal(self.out.double(), self.exact.to(self.out.dtype).double()))

    def require(self, what: str) -> None:
        """Raise AssertionError unless the result is correct."""
        if not self.right:
            raise AssertionError(f"{what}: wrong result")


def check_graph(run: Run, product: TorchProduct) -> None:
    """Check that the first call of a kernel may be captured in a CUDA graph, and that replays read new operands."""
    torch = _torch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product.run(run)
    product.a.neg_()
    product.exact.neg_()
    for turn in range(3):
        product.out.fill_(float("nan"))
        graph.replay()
        product.require(f"replay {turn} of a captured call")


def check_graphs_that_are_gone(run: Run, product: TorchProduct, gpu: Gpu, graphs: int = 20) -> None:
    """Check that the scratch memory of a graph is reused after its end, and not before."""
    torch = _torch()
    sizes: list[int] = []
    allocate = gpu.allocate

    def noted(nbytes: int, zeroed: bool = False) -> int:
        sizes.append(nbytes)
        return allocate(nbytes, zeroed)

    def captured() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            product.run(run)
        return graph

    def replayed(graph: Any) -> None:
        product.out.fill_(float("nan"))
        graph.replay()
        product.require("replay of a captured call")

    gpu.allocate = noted  # type: ignore[method-assign]
    try:
        kept = captured()
        for _ in range(graphs):
            graph = captured()
            replayed(graph)
            graph.reset()
            torch.cuda.synchronize()
            time.sleep(0.01)  # a thread of the driver reports its end
            replayed(kept)
    finally:
        gpu.allocate = allocate  # type: ignore[method-assign]
    if len(sizes) > graphs // 2:
        raise AssertionError(f"{len(sizes)} allocations for {graphs} graphs, one after the other")


def check_equal_results(run: Run, product: TorchProduct, runs: int = 50) -> None:
    """Check that every call returns the same bits."""
    torch = _torch()
    results = set()
    for _ in range(runs):
        product.run(run)
        torch.cuda.synchronize()
        results.add(product.out.cpu().numpy().tobytes())
    if len(results) > 1:
        raise AssertionError(f"{len(results)} different results in {runs} calls")


def check_streams_and_threads(run: Run, products: Sequence[TorchProduct], runs: int = 100) -> None:
    """Check one kernel that is called from a thread for each product, each with its own stream."""
    torch = _torch()
    streams = [torch.cuda.Stream() for _ in products]
    torch.cuda.synchronize()

    def work(product: TorchProduct, stream: Any) -> None:
        for _ in range(runs):
            product.run(run, stream)

    with ThreadPoolExecutor(len(products)) as pool:
        list(pool.map(work, products, streams))
    for i, product in enumerate(products):
        product.require(f"calls from thread {i}")


def check_fresh_thread(run: Run, product: TorchProduct, threads: int = 3) -> None:
    """Check calls from threads that have not used CUDA, one after the other.

    A call from this thread precedes them, so that the library has done its initialisation.
    """
    stream = _torch().cuda.current_stream()
    product.run(run, stream)
    product.require("a call from this thread")
    for i in range(threads):
        product.out.fill_(float("nan"))
        _torch().cuda.synchronize()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(product.run, run, stream).result()
        product.require(f"a call from fresh thread {i}")


def check_other_context(run: Run, product: TorchProduct, gpu: Gpu) -> None:
    """Check calls from a thread whose current context is another one of the same device, and stays current.

    They run on the default stream, and on one of torch's streams.
    """
    torch = _torch()
    cuda = gpu.driver.cuda

    def work(stream: Any) -> None:
        context, current = c_void_p(), c_void_p()
        if cuda.cuCtxCreate_v2(byref(context), 0, gpu.index):
            raise AssertionError("the driver creates no context")
        try:
            product.run(run, stream)
            cuda.cuCtxGetCurrent(byref(current))
        finally:
            cuda.cuCtxDestroy_v2(context)
        if current.value != context.value:
            raise AssertionError("the thread's current context has changed")

    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        product.out.fill_(float("nan"))
        torch.cuda.synchronize()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, stream).result()
        product.require("a call from a thread with another context")


def check_nested_calls(run: Run, outer: TorchProduct, inner: TorchProduct, runs: int = 3) -> None:
    """Check calls with nested calls of the same kernel on the same stream, as in a profiler or a signal handler.

    A nested call is made at every call of a Python or C function.
    """
    torch = _torch()
    nested = 0

    def nest(frame: Any, event: str, argument: Any) -> None:
        nonlocal nested
        if event in ("call", "c_call"):
            nested += 1
            inner.run(run)

    for turn in range(runs):
        for product in (outer, inner):
            product.out.fill_(float("nan"))
        torch.cuda.synchronize()
        before = sys.getprofile()
        sys.setprofile(nest)
        try:
            outer.run(run)
        finally:
            sys.setprofile(before)
        outer.require(f"call {turn}, in which {nested} were nested so far")
        inner.require(f"the last of {nested} nested calls")
    if not nested:
        raise AssertionError("no call was nested")


def check_users_in_fresh_threads(backend: str, dtypes: Sequence[str], threads: int = 3) -> None:
    """Check gemmhub.matmul and a plan, with and without ``out``, from threads that have not used CUDA.

    Operands and plan come from this thread, which has used them.
    """
    torch = _torch()
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        a, b = (torch.randint(-2, 3, (256, 256), device="cuda").to(kind) for _ in range(2))
        out, exact = torch.empty_like(a), (a.double() @ b.double()).to(kind)
        planned = gemmhub.plan(a, b, out=out, backend=backend)

        def work() -> list[Any]:
            results = [planned(a, b, out).clone()]  # noqa: B023 (called within the loop)
            results += [gemmhub.matmul(a, b, out=out, backend=backend).clone()]  # noqa: B023
            results += [gemmhub.matmul(a, b, backend=backend)]  # noqa: B023
            torch.cuda.synchronize()
            return results

        for i in range(1 + threads):
            with ThreadPoolExecutor(1) as pool:
                results = pool.submit(work).result() if i else work()
            if not all(torch.equal(result, exact) for result in results):
                raise AssertionError(f"{dtype}: wrong result in {'fresh thread' if i else 'this thread'} {i}")
