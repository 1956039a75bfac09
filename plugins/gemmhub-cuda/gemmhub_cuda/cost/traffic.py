"""The memory traffic of the kernels, by the size of the L2 cache.

The CTAs that run at once walk along K together, so that they read what they share from memory once. What later waves
read again comes from L2 as far as that holds it.
"""

from __future__ import annotations

from gemmhub_cuda.candidate import Choice
from gemmhub_cuda.variants.card import Card

_FITTED = (9, 0)
"""The compute capability of the cards that fitted.py and the learned corrections are fitted to."""


def nbytes(choice: Choice, card: Card) -> float:
    """Return the bytes that a launch moves between the memory and the card: at least ``choice.moved_bytes``.

    - Where L2 holds both operands of a matrix, or its size is unknown, each is read once; on compute capability 9.0
      always, as the constants of the model and the learned corrections were fitted so.
    - Where it holds what the CTAs of a wave read, the rows of a group of tiles are read once, and b for each group.
    - Else every wave reads its own.
    """
    lowering, shape = choice.lowering, choice.shape
    row = lowering.k * lowering.form.input_bytes
    a, b = lowering.m * row, lowering.n * row
    if card.capability == _FITTED or not card.l2_bytes or a + b <= card.l2_bytes:
        return choice.moved_bytes
    at_once = choice.ctas_per_sm(card) * card.sms
    group = choice.group(at_once)
    tiles = max(1, min(at_once * shape.cta_tiles // choice.splits, choice.tiles[0] * choice.tiles[1]))
    columns = min(-(-tiles // group), choice.tiles[1])
    rows = min(group * -(-tiles // (group * columns)), choice.tiles[0])
    of_wave = min(a, rows * shape.m * row) + min(b, columns * shape.n * row)
    groups, waves = -(-choice.tiles[0] // rows), choice.tiles[0] * choice.tiles[1] / tiles
    read = a + b * groups if of_wave <= card.l2_bytes else max(a + b, waves * of_wave)
    return choice.moved_bytes + (read - a - b) * lowering.batch.count
