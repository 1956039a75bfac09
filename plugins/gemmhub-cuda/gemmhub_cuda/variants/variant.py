"""The common side of the kernels for the rest of the plugin: the bases of their tile shapes and their variants.

A variant, one compilation of a kernel, has a :class:`Shape`, which the cost model chooses, and a
:class:`~gemmhub_cuda.variants.form.Form`, which the problem requires. sgemm.py, mma.py and batch.py derive those of
each kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from gemmhub_cuda.variants.form import Form
from gemmhub_cuda.variants.limits import Sm

_CTAS = 2**31
"""Fewer CTAs than this are in a launch: gridDim.x."""
_REGISTERS = 65536
"""Registers of an SM, which are allocated in units of eight for each thread."""
_MAX_REGISTERS = 255
"""Largest number of registers of a thread."""
_OTHER_REGISTERS = 72
"""Registers of a thread besides those for accumulators and fragments."""


class Shape(ABC):
    """The tiling of a product by one of the kernels, and what follows from it for launches."""

    m: int
    """Rows of a tile."""
    n: int
    """Columns of a tile."""
    k: int
    """Elements of a step along K."""
    stages: int
    """Stages of the ring in shared memory."""
    has_split_k = True
    """Whether the kernel has split-K."""
    grouped = True
    """Whether tiles are walked in groups of rows (tile.cuh); else row by row."""
    cta_tiles = 1
    """Tiles that a CTA computes at once."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the shape, the only one in the plugin."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @property
    def description(self) -> str:
        """Words that distinguish the kernel in remarks; empty for the kernel without tensor cores."""
        return ""

    @property
    def order(self) -> str | None:
        """The order in which the kernel adds the products of an element without split-K; None where it has no name.

        "r" with a number: the last step along K, of that many elements or fewer, is added first, then the others in the
        order of K.
        """
        return None

    @property
    def partial_bytes(self) -> int:
        """Bytes of workspace for the partial sums of one tile of one split."""
        return 4 * self.m * self.n

    @abstractmethod
    def variant(self, form: Form, split_k: bool) -> Variant:
        """Return the kernel of this shape for ``form``, with split-K where the kernel has it and ``split_k`` is set."""

    def max_matrices(self, tiles: int) -> int | None:
        """Return the largest batch of one launch, of ``tiles`` tiles a matrix; None for that of ``lower.MAX_BATCH``."""
        return None

    def grid(self, tiles: int, splits: int, count: int, at_once: int) -> tuple[int, int, int]:
        """Return the grid of a launch for ``count`` matrices of ``tiles`` tiles; ``at_once`` as in ``Choice.grid``."""
        return tiles * splits, 1, count

    def grid_refusal(self, tiles: int, splits: int) -> str | None:
        """Return why there is no grid for a matrix of ``tiles`` tiles; None where there is one."""
        ctas = tiles * splits
        return f"{ctas} CTAs: a launch has fewer than {_CTAS}" if ctas >= _CTAS else None


@dataclass(frozen=True)
class Variant(ABC):
    """One compilation of a kernel."""

    shape: Shape
    form: Form

    main: ClassVar[str]
    """The kernel's file."""

    @property
    def name(self) -> str:
        """The name of the kernel: that of the shape."""
        return self.shape.name

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.shape.threads

    @property
    @abstractmethod
    def ctas_by_registers(self) -> int:
        """CTAs for which an SM has registers."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA."""

    def ctas_per_sm(self, sm: Sm) -> int:
        """Return how many CTAs an SM of these resources runs at once; 0 where it has no room for one."""
        return min(self.ctas_by_registers, sm.ctas_at_once(self.threads, self.shared_bytes))

    def refusal(self, shared_limit: int) -> str | None:
        """Return why there is no such kernel on a card; None where it can be compiled.

        A CTA has at most ``shared_limit`` bytes of shared memory: 163 KiB on compute capability 8.0, 99 KiB on 8.6 and
        8.9, 227 KiB on 9.0.
        """
        refusal = self._form_refusal()
        if refusal is None and self.shared_bytes > shared_limit:
            return f"{self.shared_bytes} bytes of shared memory: a CTA has at most {shared_limit}"
        return refusal

    @abstractmethod
    def _form_refusal(self) -> str | None:
        """Return why the shape has no kernel for the form on any card; None where it has one."""

    @property
    def macros(self) -> dict[str, int]:
        """The macros of params.cuh and of the kernel's file, without BLOCKS, which depends on the card."""
        shape = self.shape
        return {
            **self.form.macros,
            "TILE_M": shape.m, "TILE_N": shape.n, "TILE_K": shape.k, **self._own_macros, "THREADS": shape.threads,
            "SHARED_BYTES": self.shared_bytes,
        }  # fmt: skip

    @property
    @abstractmethod
    def _own_macros(self) -> dict[str, int]:
        """The macros that not every kernel has, or defines by itself."""


class TensorShape(Shape):
    """The tiling of a product by a kernel on tensor cores."""

    @property
    def description(self) -> str:
        """The unit and the depth of the ring."""
        return f"tensor cores, {self.stages} stages"

    @property
    @abstractmethod
    def accumulators(self) -> int:
        """Accumulators of a thread."""

    @property
    @abstractmethod
    def fragments(self) -> int:
        """Registers of a thread for fragments of the operands."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA."""

    @property
    def registers(self) -> int:
        """Registers of a thread, at most 255."""
        return min(_MAX_REGISTERS, self.accumulators + self.fragments + _OTHER_REGISTERS)


@dataclass(frozen=True)
class TensorVariant(Variant):
    """One compilation of a kernel on tensor cores, whose resources follow from its shape."""

    shape: TensorShape

    @property
    def ctas_by_registers(self) -> int:
        """CTAs for which an SM has registers."""
        return max(1, _REGISTERS // (-(-self.shape.registers // 8) * 8 * self.threads))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA."""
        return self.shape.shared_bytes
