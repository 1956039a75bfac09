"""For tests of plugins that ship a neural network: whether its parts fit together and to what it is told."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gemmhub.net import Net


def check_net(net: Net, features: int) -> None:
    """Raises AssertionError unless ``net`` is one for rows of so many features."""
    ranges = net.least, net.most, net.mean, net.scale
    assert [x.shape for x in ranges] == [(features,)] * 4
    assert (net.least <= net.most).all()
    assert net.layers[0][0].shape[0] == features
    assert net.layers[-1][0].shape[1] == 1
    assert all(biases.shape == weights.shape[1:] for weights, biases in net.layers)
    assert all(before.shape[1] == after.shape[0] for (before, _), (after, _) in pairwise(net.layers))
    assert all(np.isfinite(x).all() for x in (*ranges, *(x for layer in net.layers for x in layer)))
