"""Candidates for grouped products: the number of work tiles is on the device, and the host knows a bound of it."""

from __future__ import annotations

from functools import cached_property

from gemmhub.capability import Refusal
from gemmhub.problem import GemmProblem
from gemmhub_hopper.candidates.candidate import Choice, Occupancy, best_group, named
from gemmhub_hopper.lowering import groups


class GroupedChoice(Choice):
    """A candidate for a grouped product."""

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Cluster tiles along the divided dimension, of all groups at most, and across it.

        Where groups divide K, the cluster tiles of one matrix.
        """
        if self.lowering.form.divided == "k":
            return super().tiles
        size, (height, width) = self._extent, self._tile
        along = size // height + min(self.lowering.groups, size)  # a group may have one that it does not fill
        across = self.lowering.n if self.lowering.form.divided == "m" else self.lowering.m
        return max(1, along), -(-across // width)

    def group(self, card: Occupancy) -> int:
        """Return the rows of cluster tiles, along the divided dimension, that are scheduled together."""
        if self.lowering.form.divided == "k":
            return super().group(card)
        height, width = self._tile
        at_once = card.max_active_clusters(self.shape.cluster_size)
        return best_group(-(-self._extent // height), height, width, at_once)

    @property
    def _extent(self) -> int:
        """Elements of the divided dimension."""
        return self.lowering.m if self.lowering.form.divided == "m" else self.lowering.n

    @property
    def _tile(self) -> tuple[int, int]:
        """Elements of a cluster tile along the divided dimension and across."""
        shape = self.shape
        sides = shape.m * shape.cluster_m, shape.n * shape.cluster_n
        return sides if self.lowering.form.divided == "m" else (sides[1], sides[0])


def of_name(problem: GemmProblem, name: str) -> Choice | Refusal:
    """Return the candidate of that name for a grouped problem, or why there is none."""
    lowerings = groups.lowerings(problem)
    if isinstance(lowerings, Refusal):
        return lowerings
    choice = named(lowerings, name)
    if choice is None or choice.splits > 1:
        return Refusal(f"there is no kernel called {name} for this problem", "name another candidate")
    return GroupedChoice(choice.lowering, choice.shape, 1)
