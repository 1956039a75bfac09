"""Checks for plugins that ship networks: their arrays fit together and to the features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from gemmhub.kit.corrections import Origin, find
from gemmhub.kit.net import Net


def check_net(net: Net, features: int) -> None:
    """Raise AssertionError unless ``net`` is a network for rows of so many features."""
    ranges = net.min, net.max, net.mean, net.scale
    assert [x.shape for x in ranges] == [(features,)] * 4
    assert (net.min <= net.max).all()
    assert net.layers[0][0].shape[0] == features
    assert net.layers[-1][0].shape[1] == 1
    assert all(biases.shape == weights.shape[1:] for weights, biases in net.layers)
    assert all(before.shape[1] == after.shape[0] for (before, _), (after, _) in pairwise(net.layers))
    assert all(np.isfinite(x).all() for x in (*ranges, *(x for layer in net.layers for x in layer)))


def shipped(data: Path, widths: Mapping[str, int]) -> Iterator[tuple[Origin, str]]:
    """Check the corrections in a plugin's folder ``data``; yield the origin and the name of each.

    ``widths`` has the number of features by name. Raises AssertionError for a card's folder that is large, or has
    a file of another name, and for a network that is missing, large, or does not fit its features.
    """
    for folder in sorted(x for x in data.iterdir() if x.is_dir()) if data.is_dir() else ():
        origin = Origin(**json.loads((folder / "card.json").read_text(encoding="utf-8")))
        assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
        for path in sorted(folder.glob("*.npz")):
            assert path.stem in widths
            correction = find(data, path.stem, origin.card, origin.sms, origin.bandwidth, origin.library)
            assert correction is not None
            check_net(correction.net, widths[path.stem])
            assert all(weights.shape[1] <= 64 for weights, _ in correction.net.layers)
            assert len(correction.net.layers) <= 3
            yield origin, path.stem
