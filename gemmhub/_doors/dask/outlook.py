"""What explain returns for arrays of Dask: blocks, tasks, bytes that move, memory a worker and seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dask.utils import format_bytes

from gemmhub._doors.dask.blocking import Blocking, estimated
from gemmhub._doors.dask.cluster import Cluster
from gemmhub._doors.dask.operands import Product


@dataclass(frozen=True)
class Outlook:
    """How a product of arrays of Dask will be computed. Printable; :meth:`to_dict` for programs."""

    shape: tuple[int, ...]
    dtype: str
    accumulator: str
    blocking: Blocking
    cluster: Cluster
    whole_k: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        way, workers = self.blocking, self.cluster
        cut = ", ".join(f"{name} {_cut(chunks)}" for name, chunks in way.chunks.items())
        lines = [f"product {self.shape} {self.dtype}, summed in {self.accumulator}", f"blocks: {cut}"]
        chains = f", in {way.chains} independent chains a block" if way.chains > 1 else ""
        lines.append(f"tasks: {way.tasks}, {way.steps} for each block of the result{chains}")
        if self.whole_k:
            lines.append(f"k is not cut: {self.whole_k}")
        lines.extend(f"rechunks {text}" for text in way.rechunked)
        if not way.rechunked:
            lines.append("rechunks nothing")
        place = f"{workers.workers} workers of {workers.threads_a_worker} threads"
        if workers.workers == 1:
            place = f"1 process of {workers.threads} threads"
        lines.append(f"moves at most {format_bytes(way.moved)} between {place}")
        limit = f" of {format_bytes(workers.memory)}" if workers.memory else ""
        lines.append(
            f"memory a worker: {format_bytes(way.working_set)}{limit} for running tasks, and "
            f"{format_bytes(way.resident)} where operands and result are kept"
        )
        chosen = f" ({way.backend!r} for a block here; each worker chooses for itself)" if way.backend else ""
        lines.append(f"estimate: {way.seconds:.3g} s{chosen}")
        return "\n".join(lines)


def _cut(chunks: tuple[int, ...]) -> str:
    if len(chunks) == 1:
        return f"{chunks[0]} whole"
    return f"{sum(chunks)} in {len(chunks)} of up to {max(chunks)}"


def outlook(asked: Product, way: Blocking, workers: Cluster) -> Outlook:
    """The outlook for a product that is cut in one way."""
    way = estimated(asked, way, workers)
    return Outlook(asked.shape, str(asked.out_dtype), str(asked.accumulator), way, workers, asked.whole_k)
