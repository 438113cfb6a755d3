"""The table of architectures in docs/programs.md: removable channels, fixed channels and errors.

`python -m tools.tables --computed` writes the table.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pruning import coupled_channels, mask_channels, remove_channels
from pruning.channels import check_program, resized
from tests.support.architectures import ARCHITECTURES, Architecture
from tests.support.architectures.torch_pruning import TORCH_PRUNING
from tests.support.numpy_programs import evaluated
from tests.support.random_networks import difference
from tests.support.reasons import pinning

PAGE = Path(__file__).parents[1] / "docs/programs.md"
HEADER = (
    "| architecture | removable channels | parameters at 50 % | error | runs "
    "| why channels cannot be removed | Torch-Pruning |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
WHY = {
    "argmax": "the index of the largest channel",
    "argmin": "the index of the smallest channel",
    "dynamic_update_slice": "positions of a cache",
    "conv_general_dilated": "an axis over which a convolution sums",
    "gather": "words of an embedding",
    "mul": "constants that vary along channels",
    "ragged_dot_general": "the groups of a product",
    "reduce_max": "the maximum over channels",
    "reduce_sum": "a sum over channels",
    "top_k": "the largest channels",
}


class Cut(NamedTuple):
    """A pruned architecture: its error, its parameters, and whether it only runs by `resized`."""

    error: float
    resizes: bool
    params: Any


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """The results of `function`, compiled by XLA instead of evaluated in NumPy."""
    return jax.jit(function)(*arguments)


def cut(
    model: Architecture, ratio: float, run: Callable[..., Any] = evaluated, *, resize: bool = False
) -> Cut:
    """Remove a random share `ratio` of every group of channels; compare with the masked network."""
    apply, params, inputs, _ = model
    groups = coupled_channels(apply, params, *inputs, resize=resize)
    rng = np.random.default_rng(0)
    sizes = [group.size for group in groups]
    keep = [rng.permutation(n) >= min(n - 1, round(ratio * n)) for n in sizes]
    small, masked = (f(params, groups, keep) for f in (remove_channels, mask_channels))
    try:
        check_program(apply, small, groups, keep, *inputs)
        function, resizes = apply, False
    except ValueError:
        function, resizes = resized(apply, groups, keep), True
    error = difference(run(function, small, *inputs), run(apply, masked, *inputs))
    return Cut(error, resizes, small)


def rows() -> list[str]:
    with jax.numpy_dtype_promotion("standard"):
        return [_row(name) for name in ARCHITECTURES]


def _row(name: str) -> str:
    model = ARCHITECTURES[name](np.float64)
    cuts = [cut(model, ratio) for ratio in (0.3, 0.5)]
    channels, total = _channels(model)
    parameters = f"{size(model.params):,} → {size(cuts[1].params):,}"
    error = f"{max(found.error for found in cuts):.0e}".replace("0e+00", "0")
    how = "resized" if any(found.resizes for found in cuts) else "unchanged"
    cells = [name, f"{channels} of {total}", parameters, error, how, stays(model)]
    return f"| {' | '.join([*cells, TORCH_PRUNING.get(name, '')])} |"


def size(tree: Any) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


def _channels(model: Architecture) -> tuple[int, int]:
    """In parameters with two or more axes, the numbers of removable and of all output channels."""
    groups = coupled_channels(model.apply, model.params, *model.inputs)
    leaves = [np.shape(leaf) for leaf in jax.tree.leaves(model.params)]
    total = sum(shape[model.outputs] for shape in leaves if len(shape) > 1)
    found: set[tuple[str, int]] = set()
    for group in groups:
        shapes = dict(zip(group.parameters.paths, group.parameters.shapes, strict=True))
        for p in group.positions:
            shape = shapes[p.path]
            if len(shape) > 1 and p.axis == model.outputs % len(shape):
                found |= {(p.path, int(index)) for index in p.indices.ravel()}
    return len(found), total


# These primitives are not reported as reasons for fixed channels. They only couple channels with
# other channels, which are fixed for another reason, such as the zeros of a shortcut.
BESIDE = ("add", "dot_general")


def stays(model: Architecture, *, resize: bool = False) -> str:
    """The reasons why channels cannot be removed, with the JAX primitives and their code lines."""
    places: dict[str, dict[str, None]] = {}
    for report in pinning(model.apply, model.params, *model.inputs, resize=resize):
        if report.primitive in BESIDE:
            continue
        reason = f"{WHY[report.primitive]}: `{report.primitive}` at "
        places.setdefault(reason, {})[_place(report.line)] = None
    return "; ".join(reason + ", ".join(found) for reason, found in places.items())


def _place(line: str) -> str:
    """The file and line of a text such as `/path/to/flax/linen/linear.py:84:4 (Embed.__call__)`."""
    path, number = re.match(r"(.*?):(\d+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
    parts = Path(path).parts
    start = parts.index("site-packages") + 1 if "site-packages" in parts else -1
    return f"{'/'.join(parts[start:])}:{number}"
