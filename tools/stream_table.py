"""The table of residual streams in docs/programs.md, with each network's removable channels.

`python -m tools.tables --computed` writes the table.
"""

from typing import Any

import jax
import numpy as np

from pruning import coupled_channels, mask_channels
from tests.support.architectures import Architecture
from tests.support.architectures.streams import STREAMS
from tools.architecture_table import cut, size, stays

HEADER = (
    "| network | removable, without the stream | removable, with the stream | parameters at 50 % "
    "| error | why channels cannot be removed |\n| --- | --- | --- | --- | --- | --- |\n"
)


def rows() -> list[str]:
    with jax.numpy_dtype_promotion("standard"):
        return [_row(name) for name in STREAMS]


def _row(name: str) -> str:
    model = STREAMS[name](np.float64)
    cuts = [cut(model, ratio, resize=True) for ratio in (0.3, 0.5)]
    shares = [f"{_share(model, resize):.0%}".replace("%", " %") for resize in (False, True)]
    parameters = f"{size(model.params):,} → {size(cuts[1].params):,}"
    error = f"{max(found.error for found in cuts):.0e}".replace("0e+00", "0")
    cells = [name, *shares, parameters, error, stays(model, resize=True)]
    return f"| {' | '.join(cells)} |"


def _share(model: Architecture, resize: bool) -> float:
    """The share of the parameters that belong to removable channels."""
    apply, params, inputs, _ = model
    groups = coupled_channels(apply, params, *inputs, resize=resize)
    ones = jax.tree.map(lambda leaf: np.ones(np.shape(leaf)), params)
    left: Any = mask_channels(ones, groups, [np.zeros(group.size, bool) for group in groups])
    return 1 - sum(leaf.sum() for leaf in jax.tree.leaves(left)) / size(params)
