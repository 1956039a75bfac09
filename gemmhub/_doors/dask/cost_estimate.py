"""The decision of explain for Dask arrays: that for a block here, with the blocks, tasks, bytes moved and memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dask.utils import format_bytes

from gemmhub._base import units
from gemmhub._doors.dask.blocking import Blocking, estimated
from gemmhub._doors.dask.cluster import Cluster
from gemmhub._doors.dask.operands import Product
from gemmhub.verdict import Decision, Partition


@dataclass(frozen=True)
class Blocks(Partition):
    """The blocks of a product of Dask arrays and their estimated cost."""

    shape: tuple[int, ...]
    dtype: str
    accumulator: str
    blocking: Blocking
    cluster: Cluster
    whole_k: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        blocking, workers = self.blocking, self.cluster
        cut = ", ".join(f"{name} {_cut(chunks)}" for name, chunks in blocking.chunks.items())
        chains = f", in {blocking.chains} independent chains a block" if blocking.chains > 1 else ""
        processes = f"{workers.workers} workers of {workers.threads_a_worker} threads"
        if workers.workers == 1:
            processes = f"1 process of {workers.threads} threads"
        limit = f" of {format_bytes(workers.memory)}" if workers.memory else ""
        rows = [
            ("product", f"{self.shape} {self.dtype}, summed in {self.accumulator}"),
            ("blocks", cut),
            ("tasks", f"{blocking.tasks}, {blocking.steps} for each block of the result{chains}"),
        ]
        rows += [("k", f"is not cut: {self.whole_k}")] if self.whole_k else []
        rows += [("rechunks", text) for text in blocking.rechunked or ("nothing",)]
        return [
            *rows,
            ("moves", f"at most {format_bytes(blocking.moved)} between {processes}"),
            (
                "memory", f"{format_bytes(blocking.working_set)}{limit} a worker for running tasks, and "
                f"{format_bytes(blocking.resident)} where operands and result are kept",
            ),
            ("estimate", f"{units.duration(blocking.seconds)}; each worker chooses its backend; a block here:"),
        ]  # fmt: skip


def _cut(chunks: tuple[int, ...]) -> str:
    if len(chunks) == 1:
        return f"{chunks[0]} whole"
    return f"{sum(chunks)} in {len(chunks)} of up to {max(chunks)}"


def estimate(call: Product, blocking: Blocking, workers: Cluster) -> Decision:
    """The decision for a block here, with the estimate of the product with this blocking."""
    blocking, decision = estimated(call, blocking, workers)
    blocks = Blocks(call.shape, str(call.out_dtype), str(call.accumulator), blocking, workers, call.whole_k)
    return replace(decision, partition=blocks)
