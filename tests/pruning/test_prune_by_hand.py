"""Compares `prune`, for pairs of options, with calls of its documented steps one by one."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from pruning import prune
from pruning.channels import (
    coupled_channels,
    fold_constants,
    least_squares,
    remove_channels,
    resized,
    swap_channels,
)
from pruning.channels._removal.removal import producers, remaining_groups
from tests.support import prunable
from tests.support.all_pairs import all_pairs

FACTORS: dict[str, list[Any]] = {
    "ratios": [(0.5,), (0.2, 0.6)],
    "fold": [True, False],
    "repair": [False, True],
    "refine": [False, True],
    "resize": [False, True],
    "exclude": [(), ("0",)],
    "resumed": [False, True],
    "round_to": [1, 2],
}
FAST = ("vgg", "multiplier", "shuffle")


def scores_of(params, group):
    """The score of each channel: the mean norm of the filters that make the channel."""
    leaves = dict(zip(group.parameters.paths, jax.tree.leaves(params), strict=True))
    lengths = []
    for p in producers(group):
        filters = np.moveaxis(np.asarray(leaves[p.path]), p.axis, 0)
        norms = np.linalg.norm(filters.reshape(len(filters), -1), axis=1)
        lengths.append(norms[p.indices])
    return np.concatenate(lengths, 1).mean(1)


def by_hand(apply, params, batches, row):
    """The smaller parameters, the function that runs them, and the masks, computed step by step."""
    x = batches[0][0]
    found = coupled_channels(apply, params, x, resize=row["resize"])
    groups = [
        g for g in found if not any(p.path.split("/")[0] in row["exclude"] for p in producers(g))
    ]
    keep, run = [np.ones(g.size, bool) for g in groups], apply
    for ratio in row["ratios"]:
        current, some = remaining_groups(groups, keep), []
        for group, whole in zip(current, groups, strict=True):
            left = whole.size - int(np.floor(ratio * whole.size + 1e-9))
            left = min(-(-left // row["round_to"]) * row["round_to"], group.size)
            order = np.argsort(scores_of(params, group), kind="stable")
            mask = np.zeros(group.size, bool)
            mask[order[group.size - left :]] = True
            some.append(mask)
        if row["refine"]:
            some = [
                np.asarray(m) for m in swap_channels(run, params, current, some, batches=batches)
            ]
        if row["repair"]:
            params = least_squares(run, params, current, some, batches)
        elif row["fold"]:
            params = fold_constants(run, params, current, some, x)
        params = remove_channels(params, current, some)
        for mask, new in zip(keep, some, strict=True):
            mask[mask] = new
        run = resized(apply, groups, keep) if row["resize"] else apply
        params = jax.tree.map(lambda p: 1.25 * p, params)
    return params, run, keep


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
        for name in prunable.MODELS
    ],
)
def test_prune_does_its_steps_in_every_pair_of_options(name, tmp_path):
    apply, params, x = prunable.model(name)
    rng = np.random.default_rng(1)
    batches = [(np.asarray(x),), *((rng.normal(2, 1, np.shape(x)),) for _ in range(3))]
    plan = all_pairs(FACTORS)
    for i, row in enumerate(plan):
        if name != "vgg":
            row = {**row, "exclude": ()}  # an exclusion could leave no group
        if name in ("scan", "shared"):
            # In these models, some kernels are read more than once.
            row = {**row, "repair": False, "refine": False}
        last = len(row["ratios"]) - 1

        def tuned(tree, step, *_, stop=None):
            if step == stop:
                raise KeyboardInterrupt
            return jax.tree.map(lambda p: 1.25 * p, tree)

        options: dict[str, Any] = {k: row[k] for k in ("ratios", "fold", "resize", "exclude")}
        options["round_to"] = row["round_to"]
        if row["repair"]:
            options["repair"] = partial(least_squares, batches=batches)
        if row["refine"]:
            options["refine"] = partial(swap_channels, batches=batches)
        if row["resumed"]:
            options["checkpoint_dir"] = tmp_path / str(i)
            with pytest.raises(KeyboardInterrupt):
                prune(apply, params, x, **options, fine_tune=partial(tuned, stop=last))
        pruned = prune(apply, params, x, **options, fine_tune=tuned)
        small, run, keep = by_hand(apply, params, batches, row)
        for found, expected in zip(pruned.keep, keep, strict=True):
            np.testing.assert_array_equal(found, expected)
        for a, b in zip(jax.tree.leaves(pruned.params), jax.tree.leaves(small), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        y, expected = pruned.apply(pruned.params, x), run(small, x)
        np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)
