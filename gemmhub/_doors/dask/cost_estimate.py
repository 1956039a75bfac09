"""The result of explain for Dask arrays: blocks, tasks, bytes moved, memory a worker and seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dask.utils import format_bytes

from gemmhub._doors.dask.blocking import Blocking, estimated
from gemmhub._doors.dask.cluster import Cluster
from gemmhub._doors.dask.operands import Product


@dataclass(frozen=True)
class CostEstimate:
    """The blocks of a product of Dask arrays and their estimated cost. Prints as text; :meth:`to_dict` for programs."""

    shape: tuple[int, ...]
    dtype: str
    accumulator: str
    blocking: Blocking
    cluster: Cluster
    whole_k: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        blocking, workers = self.blocking, self.cluster
        cut = ", ".join(f"{name} {_cut(chunks)}" for name, chunks in blocking.chunks.items())
        lines = [f"product {self.shape} {self.dtype}, summed in {self.accumulator}", f"blocks: {cut}"]
        chains = f", in {blocking.chains} independent chains a block" if blocking.chains > 1 else ""
        lines.append(f"tasks: {blocking.tasks}, {blocking.steps} for each block of the result{chains}")
        if self.whole_k:
            lines.append(f"k is not cut: {self.whole_k}")
        lines.extend(f"rechunks {text}" for text in blocking.rechunked)
        if not blocking.rechunked:
            lines.append("rechunks nothing")
        processes = f"{workers.workers} workers of {workers.threads_a_worker} threads"
        if workers.workers == 1:
            processes = f"1 process of {workers.threads} threads"
        lines.append(f"moves at most {format_bytes(blocking.moved)} between {processes}")
        limit = f" of {format_bytes(workers.memory)}" if workers.memory else ""
        lines.append(
            f"memory a worker: {format_bytes(blocking.working_set)}{limit} for running tasks, and "
            f"{format_bytes(blocking.resident)} where operands and result are kept"
        )
        chosen = f" ({blocking.backend!r} for a block here; each worker chooses for itself)" if blocking.backend else ""
        lines.append(f"estimate: {blocking.seconds:.3g} s{chosen}")
        return "\n".join(lines)


def _cut(chunks: tuple[int, ...]) -> str:
    if len(chunks) == 1:
        return f"{chunks[0]} whole"
    return f"{sum(chunks)} in {len(chunks)} of up to {max(chunks)}"


def estimate(call: Product, blocking: Blocking, workers: Cluster) -> CostEstimate:
    """The estimate for a product with this blocking."""
    blocking = estimated(call, blocking, workers)
    return CostEstimate(call.shape, str(call.out_dtype), str(call.accumulator), blocking, workers, call.whole_k)
