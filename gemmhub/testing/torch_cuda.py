"""For tests of CUDA backends on a real card: memory of torch's for the conformance kit, and checks of what the kit does
not see: graph capture, streams, threads, equal results from run to run.

torch is imported when something here is first used.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.native.cuda import Gpu
from gemmhub.testing.operands import Array, Memory

Run = Callable[..., object]
"""A kernel's ``run``, as :class:`gemmhub.backend.Kernel` describes it."""


def _torch() -> Any:
    return importlib.import_module("torch")


class TorchMemory(Memory):
    """Memory of torch's allocator on CUDA device ``index``, work on a side stream of torch's."""

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
        """The address: what kernels get."""
        address: int = buffer.data_ptr() + offset
        return address

    def synchronize(self) -> None:
        _torch().cuda.synchronize(self.device.index)


class TorchProduct:
    """Two matrices on the current CUDA device, a dense row-major result, and what must come out of it."""

    def __init__(self, a: Any, b: Any, out_dtype: Any, tolerance: float = 0.0) -> None:
        """``a`` (m x k), ``b`` (k x n): torch tensors; ``tolerance``: the largest error; 0 for integers, say."""
        torch = _torch()
        self.a, self.b, self.tolerance = a, b, tolerance
        self.out = torch.full((a.shape[0], b.shape[1]), float("nan"), device=a.device, dtype=out_dtype)
        self.exact = a.double() @ b.double()
        """May be changed together with the operands."""
        torch.cuda.synchronize()

    def run(
        self, run: Run, stream: Any = None, c: int | None = None, bias: int | None = None, alpha: float = 1,
        beta: float = 0,
    ) -> None:  # fmt: skip
        """Call the kernel, on torch's current stream if ``stream`` is not given; ``c``, ``bias``: addresses."""
        stream = _torch().cuda.current_stream() if stream is None else stream
        places = (self.a.data_ptr(), self.b.data_ptr(), self.out.data_ptr())
        run(*places, c, bias, alpha, beta, stream.cuda_stream)

    @property
    def right(self) -> bool:
        """Whether the result is what it must be, once all work is done."""
        torch = _torch()
        torch.cuda.synchronize()
        if self.tolerance:
            return bool(((self.out.double() - self.exact).abs() < self.tolerance).all())
        return bool(torch.equal(self.out.double(), self.exact.to(self.out.dtype).double()))

    def require(self, what: str) -> None:
        """AssertionError unless the result is right."""
        if not self.right:
            raise AssertionError(f"{what}: wrong result")


def check_graph(run: Run, product: TorchProduct) -> None:
    """The very first call of a kernel may be captured in a CUDA graph; replays see new operands."""
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
    """Of a kernel with scratch memory: what a graph has others get when it is gone, and not before."""
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
            time.sleep(0.01)  # a thread of the driver tells of its end
            replayed(kept)
    finally:
        gpu.allocate = allocate  # type: ignore[method-assign]
    if len(sizes) > graphs // 2:
        raise AssertionError(f"{len(sizes)} allocations for {graphs} graphs, one after the other")


def check_equal_results(run: Run, product: TorchProduct, runs: int = 50) -> None:
    """Every call gives the same bits."""
    torch = _torch()
    results = set()
    for _ in range(runs):
        product.run(run)
        torch.cuda.synchronize()
        results.add(product.out.cpu().numpy().tobytes())
    if len(results) > 1:
        raise AssertionError(f"{len(results)} different results in {runs} calls")


def check_streams_and_threads(run: Run, products: Sequence[TorchProduct], runs: int = 100) -> None:
    """One kernel, called from a thread for each product, each with a stream of its own."""
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


def check_fresh_thread(run: Run, product: TorchProduct) -> None:
    """A call from a thread that never met CUDA."""
    stream = _torch().cuda.current_stream()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(product.run, run, stream).result()
    product.require("a call from a fresh thread")
