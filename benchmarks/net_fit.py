"""Fits the networks that correct gemmhub-cublas's and gemmhub-hopper's estimates for 16 bits, both at once.

    python benchmarks/net_fit.py [--held FILE...] [--epochs 20] [--write] --files FILE...

Needs gemmhub-cublas, gemmhub-hopper, jax and optax, no card. FILEs are what candidates.py wrote on an H200, compressed
by xz or not; one that is named several times counts as often. Both networks see the same product in one step, and what
counts is how each candidate compares with the others of its product, of either backend, more than how long all of them
take: for the choice needs no more, and what a card does to all of them at that moment is no matter of theirs.
Candidates count the more, the nearer they are to the fastest. With ``--held`` prints what estimates and choices are
worth on files that were not fitted to. ``--write`` writes the networks beside the plugins.
"""

from __future__ import annotations

import argparse
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cublas_model_fit import GPU
from gemmhub_cublas import choice, facts, forms, model
from gemmhub_cublas import corrections as cublas_corrections
from gemmhub_cublas.corrections import Chosen
from gemmhub_hopper import backend, cost_model, gemv, gemv_model
from gemmhub_hopper import corrections as hopper_corrections
from gemmhub_hopper.fitted import CONSTANTS
from gemmhub_hopper.forms import lowered
from hopper_fit import H200, candidates, contents, microseconds, problem

from gemmhub.net import Net

_WIDTH, _LAYERS = 256, 3
"""Of a network, and its layers but for the last."""
_BATCH, _RATE, _DECAY, _WARM_UP = 128, 2e-3, 1e-2, 300
"""Products of a step; of Adam with decoupled weight decay, whose rate rises for some steps and falls as a cosine."""
_NEAR, _LEAST = 5.0, 0.01
"""How fast a candidate's weight falls with its distance from the fastest of its product, and what it is at least."""
_COMMON = 0.1
"""What an error counts that all candidates of a product have in common."""
_FAR = 0.6
"""Logarithms of measured over modelled time beyond this count as this."""
_SAME = 0.1
"""The logarithm of what two times of one algorithm may differ by. (Where gemmhub takes no first choice that is wrong,
torch does; that is rare.)
"""
_RARE = 1e-3
"""Of a feature's values this share may lie beyond the range that the network is told of, on either side."""
_HOPPER_NET = Path(hopper_corrections.__file__).parent / "data" / hopper_corrections.NET
_CUBLAS_NET = Path(cublas_corrections.__file__).parent / "data" / cublas_corrections.NET


class Candidates(NamedTuple):
    """Of one backend, for one product. Seconds."""

    names: list[str]
    measured: Any
    modelled: Any
    features: Any
    """A row for each; nan where nothing is known."""
    older: Any
    """Whether the kernels were not those of today."""


class Product(NamedTuple):
    operations: float
    torch: float
    cublas: Candidates
    """The library's first choice first."""
    hopper: Candidates
    vectors: Candidates
    """gemmhub-hopper's kernels for few vectors, whose estimates stand."""


def read(file: Path) -> list[Product]:
    record = json.loads(contents(file))
    return [product(record, row) for row in record["rows"]]


def product(record: dict[str, Any], row: dict[str, Any]) -> Product:
    dtype = record["dtype"]
    asked = problem(row["m"], row["n"], row["k"], row["order"], dtype)
    ways, form = lowered(asked), forms.lowered(asked)
    assert isinstance(ways, tuple)
    assert isinstance(form, forms.Lowered)
    vectors = {x.name: seconds for seconds, x in gemv_model.timed(gemv.choices(ways), H200)}
    few = {name: us * 1e-6 for name, us in microseconds(row).items() if name in vectors}
    algorithms = {name: us * 1e-6 for name, us in row["cublas"].items()}
    if algorithms:  # torch.matmul runs the library's first choice: that has been timed twice
        first, both = next(iter(algorithms)), math.sqrt(next(iter(algorithms.values())) * row["torch_us"] * 1e-6)
        if abs(math.log(both / algorithms[first])) < _SAME:
            algorithms[first] = both
    return Product(
        2.0 * row["m"] * row["n"] * row["k"], row["torch_us"] * 1e-6,
        _algorithms(asked, choice.size_of(form.forms[0]), algorithms),
        _shapes(record, row),
        Candidates(
            [*few], np.array([*few.values()]), np.array([vectors[name] for name in few]), np.empty((0, 0)), np.empty(0)
        ),
    )  # fmt: skip


def _algorithms(asked: Any, size: Any, timed: dict[str, float]) -> Candidates:
    tables, base, modelled = facts.tables(), model.features(asked, GPU), model.modelled(asked, GPU)
    assert tables is not None
    assert base is not None
    rows = [
        base + cublas_corrections.of_chosen(Chosen(size, name), tables, modelled) if tables.knows(name) else None
        for name in timed
    ]
    width = max((len(row) for row in rows if row), default=0)
    return Candidates(
        [*timed], np.array([*timed.values()]), np.full(len(timed), modelled),
        np.array([row or [math.nan] * width for row in rows], np.float32).reshape(len(rows), width),
        np.zeros(len(timed), np.float32),
    )  # fmt: skip


def _shapes(record: dict[str, Any], row: dict[str, Any]) -> Candidates:
    timed = candidates(record, row, 0)
    if not timed:
        return Candidates([], *(np.empty(0),) * 4)
    work = cost_model.together([x.work for x in timed])
    modelled = cost_model.seconds_of(work, H200, CONSTANTS[record["dtype"]]).tolist()
    rows = [hopper_corrections.features(x.choice, x.work, seconds) for x, seconds in zip(timed, modelled)]
    return Candidates(
        [x.name for x in timed], np.array([x.seconds for x in timed]), np.array(modelled), np.array(rows, np.float32),
        np.array([x.older for x in timed], np.float32),
    )  # fmt: skip


class Padded(NamedTuple):
    """The candidates of one backend for all products, as many for each; those that there are not weigh nothing."""

    features: Any
    logs: Any
    """Of measured over modelled time."""
    weights: Any
    older: Any


def padded(products: list[Product], backend: str) -> Padded:
    own = [getattr(x, backend) for x in products]
    most, width = max(len(x.names) for x in own), max(x.features.shape[-1] for x in own)
    features = np.zeros((len(own), most, width), np.float32)
    logs, weights, older = (np.zeros((len(own), most), np.float32) for _ in range(3))
    for i, (x, whole) in enumerate(zip(own, products)):
        count = len(x.names)
        if count:
            known = ~np.isnan(x.features[:, 0])
            features[i, :count] = np.where(known[:, None], x.features, 0)
            logs[i, :count] = np.clip(np.log(x.measured / x.modelled), -_FAR, _FAR)
            weights[i, :count] = known * (nearness(whole, x.measured) + _LEAST)
            older[i, :count] = x.older
    return Padded(features, logs, weights, older)


def fastest(x: Product) -> float:
    return min(float(own.measured.min()) for own in (x.cublas, x.hopper, x.vectors) if own.names)


def nearness(x: Product, measured: Any) -> Any:
    """1 of the fastest, and less the slower they are."""
    return np.exp(-_NEAR * (measured / fastest(x) - 1))


class Range(NamedTuple):
    """What Net holds features within, and what it tells of them."""

    least: Any
    most: Any
    mean: Any
    scale: Any

    @classmethod
    def of(cls, data: Padded) -> Range:
        rows = data.features[data.weights > 0]
        least, most = (np.quantile(rows, q, axis=0).astype(np.float32) for q in (_RARE, 1 - _RARE))
        held = np.clip(rows, least, most)
        spread = held.std(axis=0)
        return cls(least, most, held.mean(axis=0), np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 0))

    def told(self, features: Any) -> Any:
        return ((np.clip(features, self.least, self.most) - self.mean) * self.scale).astype(np.float32)


def started(rng: Any, inputs: int) -> list[tuple[Any, Any]]:
    sizes = [inputs, *[_WIDTH] * _LAYERS, 1]
    return [
        (jnp.asarray(rng.normal(0, math.sqrt(2 / x) * (1 if y > 1 else 0.1), (x, y)), jnp.float32), jnp.zeros(y))
        for x, y in pairwise(sizes)
    ]


def answer(layers: Any, told: Any) -> Any:
    """As Net.predict."""
    for i, (weights, biases) in enumerate(layers[:-1]):
        found = jax.nn.silu(told @ weights + biases)
        told = found if i == 0 else told + found
    weights, biases = layers[-1]
    return (told @ weights + biases)[..., 0]


def loss(nets: Any, batch: Any) -> Any:
    errors = jnp.concatenate([answer(layers, x.features) - x.logs for layers, x in zip(nets, batch)], axis=1)
    weights = jnp.concatenate([x.weights for x in batch], axis=1)
    common = (weights * errors).sum(axis=1) / (weights.sum(axis=1) + 1e-6)
    own = (weights * (errors - common[:, None]) ** 2).sum(axis=1)
    return (own / 3 + _COMMON * common**2).mean()  # on the average candidates of a product weigh about three


def fit(products: list[Product], epochs: int, seed: int = 0) -> list[dict[str, Any]]:
    """The networks of (cublas, hopper) as arrays for Net.of."""
    measured = [padded(products, name) for name in ("cublas", "hopper")]
    ranges = [Range.of(x) for x in measured]
    told = [y.told(x.features) for x, y in zip(measured, ranges)]
    # What of_now() makes of times of older kernels is a guess. So the network is told which they are, by a feature that
    # is 0 for those of today: they need not be told.
    told[1] = np.concatenate([told[1], measured[1].older[:, :, None]], axis=2)
    data = [jax.tree.map(jnp.asarray, x._replace(features=y)) for x, y in zip(measured, told)]
    rng = np.random.default_rng(seed)
    nets = [started(rng, x.features.shape[-1]) for x in data]
    steps = len(products) // _BATCH
    rate = optax.warmup_cosine_decay_schedule(0.0, _RATE, _WARM_UP, epochs * steps)
    optimizer = optax.adamw(rate, b2=0.99, weight_decay=_DECAY)
    state = optimizer.init(nets)

    @jax.jit
    def pass_over(nets: Any, state: Any, data: Any, order: Any) -> Any:
        def step(carried: Any, some: Any) -> Any:
            nets, state = carried
            value, slopes = jax.value_and_grad(loss)(nets, jax.tree.map(lambda x: x[some], data))
            changes, state = optimizer.update(slopes, state, nets)
            return (optax.apply_updates(nets, changes), state), value

        return jax.lax.scan(step, (nets, state), order)

    for epoch in range(epochs):
        order = rng.permutation(len(products))[: steps * _BATCH].reshape(steps, _BATCH)
        (nets, state), values = pass_over(nets, state, data, order)
        if epoch % 10 == 9:
            print(f"    epoch {epoch + 1}: {float(values.mean()):.6f}", flush=True)
    found = []
    for held, layers in zip(ranges, nets):
        arrays = {name: np.asarray(x, np.float32) for name, x in held._asdict().items()}
        for i, (weights, biases) in enumerate(layers):
            if i == 0:
                weights = weights[: held.mean.size]
            arrays |= {f"weights{i}": np.asarray(weights, np.float16), f"biases{i}": np.asarray(biases, np.float32)}
        found.append(arrays)
    return found


def estimated(x: Candidates, net: Net, limit: float) -> Any:
    """Seconds; nan where nothing is known."""
    if not x.names:
        return np.empty(0)
    return x.modelled * np.exp(np.clip(net.predict(x.features), -limit, limit))


def report(products: list[Product], nets: tuple[Net, Net]) -> None:
    """How far estimates are off within a product, and what is chosen by them. The library's first choice is what torch
    runs: where it is chosen nothing is gained or lost.
    """
    errors, weights, ratios, large, best = [], [], [], [], []
    for x in products:
        algorithms = estimated(x.cublas, nets[0], cublas_corrections.LIMIT)
        shapes = estimated(x.hopper, nets[1], hopper_corrections.MOST)
        logs = np.log(np.concatenate([algorithms / x.cublas.measured, shapes / x.hopper.measured]))
        weight = nearness(x, np.concatenate([x.cublas.measured, x.hopper.measured]))
        known = ~np.isnan(logs)
        errors.append(logs[known] - np.average(logs[known], weights=weight[known]))
        weights.append(weight[known])
        reference = float(x.cublas.measured[0]) if x.cublas.names else x.torch
        ratios.append(reference / taken(x, algorithms, shapes, reference))
        best.append(reference / fastest(x))
        large.append(x.operations >= 1e10)
    every, weight = np.concatenate(errors), np.concatenate(weights)
    off = math.sqrt((weight * every**2).sum() / weight.sum())
    gained, most, big = np.array(ratios), np.array(best), np.array(large)
    means = [np.exp(np.log(x[y]).mean()) for x in (gained, most) for y in (big, ~big)]
    print(
        f"{len(products)} products: estimates off by {off:.2%} beside each other; what is chosen is "
        f"{means[0]:.4f} / {means[1]:.4f} times as fast as torch (the fastest {means[2]:.4f} / {means[3]:.4f}), "
        f"{np.mean(gained < 0.98):.2%} below 0.98, {np.mean(gained < 0.97):.2%} below 0.97, least {gained.min():.3f}",
        flush=True,
    )


def taken(x: Product, algorithms: Any, shapes: Any, reference: float) -> float:
    """Seconds of what the hub would take."""
    least, few = backend.cautious(shapes, "bfloat16"), backend.cautious(x.vectors.modelled, "vectors")
    own = [*zip(least, x.hopper.measured), *zip(few, x.vectors.measured)]
    found = [(backend.MARGIN * seconds, measured) for seconds, measured in own]
    if len(algorithms):
        first = algorithms[0]
        i = 0 if np.isnan(first) else int(np.nanargmin(algorithms))
        if i and algorithms[i] < (1 - choice.MARGIN) * first:
            found.append((algorithms[i], x.cublas.measured[i]))
        else:
            found.append((x.cublas.modelled[0] if np.isnan(first) else first, reference))
    return float(min(found)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", nargs="+", type=Path, required=True)
    parser.add_argument("--held", nargs="*", type=Path, default=[])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"{_CUBLAS_NET.name} and {_HOPPER_NET.name}")
    options = parser.parse_args()
    held = [x for file in options.held for x in read(file)]
    fitted = fit([x for file in options.files for x in read(file)], options.epochs)
    if held:
        report(held, (Net.of(fitted[0]), Net.of(fitted[1])))
    if options.write:
        for target, arrays in zip((_CUBLAS_NET, _HOPPER_NET), fitted):
            np.savez(target, **arrays)
            print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
