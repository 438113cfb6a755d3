"""Keeps the same number of channels in layers that repeat, such as the blocks of a transformer."""

import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pruning.channels._coupling.groups import ChannelGroup
from pruning.channels._program.calls import Apply
from pruning.channels._selection.choice import Masks, Scores, Select, keep_largest

Repeats = Sequence[Sequence[int]]
"""Sets of repeated groups, as lists of the groups' indices. Every group is in one set."""


def repeating(groups: Sequence[ChannelGroup]) -> list[list[int]]:
    """Lists of the indices of repeated groups.

    Groups are repeated if their sizes are equal, their channels are on the same axes, and the paths
    of their arrays differ only in digits.
    """
    alike: dict[Any, list[int]] = {}
    for i, group in enumerate(groups):
        positions = sorted(
            (re.sub(r"\d+", "#", p.path), p.axis, p.incoming, p.indices.shape[1])
            for p in group.positions
        )
        alike.setdefault((group.size, tuple(positions)), []).append(i)
    return list(alike.values())


def select_equally(select: Select, repeats: Repeats, scores: Scores, **options: Any) -> Masks:
    """Masks of kept channels; all repeated groups keep the same number of channels.

    `select` gets each set of repeated groups as one group. The scores of this one group are the
    mean of the sorted scores of the repeated groups. The options `cost` and `price` still get the
    widths of all groups.
    """
    ascending = [np.sort(np.asarray(vector)) for vector in scores]
    together = [jnp.asarray(np.mean([ascending[i] for i in alike], 0)) for alike in repeats]

    def of_all(function: Apply) -> Apply:
        return lambda widths: function(_spread(repeats, widths))

    functions = {name: of_all(f) for name, f in options.items() if name in ("cost", "price")}
    masks = select(together, **(options | functions))
    counts = _spread(repeats, [int(mask.sum()) for mask in masks])
    return [
        keep_largest(jnp.asarray(vector), count)
        for vector, count in zip(scores, counts, strict=True)
    ]


def _spread(repeats: Repeats, widths: Sequence[int]) -> list[int]:
    """The width of each group, given one width for each set of repeated groups."""
    of_group = {i: n for alike, n in zip(repeats, widths, strict=True) for i in alike}
    return [of_group[i] for i in range(len(of_group))]
