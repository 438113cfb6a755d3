"""Pruned random networks of hundreds of kinds equal the masked networks, or raise an error."""

import re

import jax
import numpy as np
import pytest

from pruning import channels
from tests.support import random_networks
from tests.support.numpy_programs import evaluated
from tests.support.random_blocks.steps import RANDOM
from tests.support.random_networks import (
    WRONG,
    difference,
    drawn_keep,
    outcome,
    random_network,
    random_transformer,
)


def assert_cut_rightly(seed):
    found = outcome(random_network(seed), seed)
    assert found.kind not in WRONG, found


@pytest.mark.parametrize("seed", range(10))
def test_removed_is_masked(seed):
    assert_cut_rightly(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 210))
def test_removed_is_masked_in_many(seed):
    assert_cut_rightly(seed)


def test_many_kinds_of_block_are_drawn():
    drawn = {kind for seed in range(60) for kind in random_network(seed).kinds}
    assert len(drawn) > 100


@pytest.mark.parametrize("seed", [0, 9])
def test_numpy_evaluates_what_jax_compiles(seed):
    apply, params, x, _ = random_network(seed)
    assert difference(evaluated(apply, params, x), jax.jit(apply)(params, x)) < 1e-13


@pytest.mark.parametrize("order", [None, (0, 1, 2), (2, 0, 1)])
def test_numpy_reshapes_in_the_order_that_gradients_of_convolutions_ask_for(order):
    x = np.arange(24.0).reshape(2, 3, 4)
    reshape = lambda x: jax.lax.reshape(x, (4, 6), order)  # noqa: E731
    np.testing.assert_array_equal(evaluated(reshape, x), reshape(x))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_numpy_evaluates_what_jax_compiles_in_many(seed):
    apply, params, x, _ = random_network(seed)
    assert difference(evaluated(apply, params, x), jax.jit(apply)(params, x)) < 1e-11


def test_wrong_cuts_and_crashes_are_noticed(monkeypatch):
    seed = next(s for s in range(99) if outcome(random_network(s), s).kind == "equal")
    network = random_network(seed)
    monkeypatch.setattr(random_networks, "mask_channels", lambda params, groups, keep: params)
    assert outcome(network, seed).kind == "wrong"
    monkeypatch.setattr(random_networks, "mask_channels", lambda params, groups, keep: None)
    assert outcome(network, seed).kind == "crash"


def test_an_error_that_rounding_explains_is_no_wrong_cut(monkeypatch):
    monkeypatch.setattr(random_networks, "TOLERANCE", 0.0)
    found = [outcome(random_network(seed), seed) for seed in range(12)]
    inexact = [o for o in found if o.error > 0]
    assert inexact
    assert {o.kind for o in inexact} == {"rounding"}
    assert random_networks.rounding_error(random_network(0)) < 1e-14


@pytest.mark.slow
def test_rounding_is_that_of_the_masked_network():
    """This network's rounding errors are judged by the sensitivity of the masked network.

    The masked network has outputs of size 1 and gradients of size 400,000. Rounding changes the
    gradients, relatively, almost six times as much as in the whole network.
    """
    assert outcome(random_network(20264857), 20264857).kind == "rounding"


def test_errors_are_relative_and_never_nan():
    assert difference({"a": np.array([3.0, 2.0])}, {"a": np.array([2.0, 2.0])}) == 0.5
    assert difference(np.array([np.nan]), np.array([1.0])) == np.inf


def batches(x):
    return [(x,), (x[::-1],)]


REPAIRS = {
    "fold_constants": channels.fold_constants,
    "least_squares": lambda a, p, g, k, x: channels.least_squares(a, p, g, k, batches(x)),
    "merge_channels": lambda a, p, g, k, x: channels.merge_channels(a, p, g, k, inputs=[x]),
    "rescale": lambda a, p, g, k, x: channels.rescale(a, p, g, k, batches(x)),
}
drawn = pytest.mark.parametrize("draw", [random_network, random_transformer])


def or_refusal(repair, *arguments):
    """The result of `repair`, or None if it raises an error about kernels or constants."""
    try:
        return repair(*arguments)
    except ValueError as error:
        if not re.search(r"kernel|^constants must not vary", str(error)):
            raise
    return None


def cut(apply, params, groups, keep, x):
    small = channels.remove_channels(params, groups, keep)
    return evaluated(channels.resized(apply, groups, keep), small, x)


@pytest.mark.slow
@drawn
@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("seed", range(300, 320))
def test_repaired_networks_are_cut_rightly_or_refused(repair, draw, seed):
    apply, params, x, _ = draw(seed)
    groups = channels.coupled_channels(apply, params, x, resize=True)
    keep = drawn_keep(groups, seed)
    repaired = or_refusal(REPAIRS[repair], apply, params, groups, keep, x)
    if repaired is None:
        return
    assert types(repaired) == types(params)
    masked = evaluated(apply, channels.mask_channels(repaired, groups, keep), x)
    assert difference(cut(apply, repaired, groups, keep, x), masked) < 1e-9


def types(params):
    return [(np.shape(x), jax.typeof(x).dtype) for x in jax.tree.leaves(params)]


@pytest.mark.slow
@drawn
@pytest.mark.parametrize("seed", range(320, 350))
def test_equal_channels_of_random_networks_are_merged_without_loss(draw, seed):
    apply, params, x, kinds = draw(seed)
    rng = np.random.default_rng(seed)
    groups = channels.coupled_channels(apply, params, x, resize=True)
    several = [group for group in groups if group.size > 1 and not group.normed]
    if not RANDOM.keys().isdisjoint(kinds) or not several:
        pytest.skip("channels with equal filters differ, because of random bits or constants")
    group = several[rng.integers(len(several))]
    removed, kept = rng.choice(group.size, 2, replace=False)
    leaves, structure = jax.tree.flatten(params)
    leaves = [np.array(leaf) for leaf in leaves]
    for p in (p for p in group.positions if not p.incoming):
        rows = np.moveaxis(leaves[group.parameters.paths.index(p.path)], p.axis, 0)
        rows[p.indices[removed]] = rows[p.indices[kept]]
    equal = jax.tree.unflatten(structure, leaves)
    keep = [np.arange(group.size) != removed]
    merged = or_refusal(REPAIRS["merge_channels"], apply, equal, [group], keep, x)
    if merged is None:
        return
    found = cut(apply, merged, [group], keep, x)
    assert difference(found, evaluated(apply, equal, x)) < 1e-8


@pytest.mark.slow
@drawn
@pytest.mark.parametrize("seed", range(350, 370))
def test_pruned_random_networks_run_and_are_read_again(draw, seed, tmp_path):
    apply, params, x, _ = draw(seed)
    if not channels.coupled_channels(apply, params, x, resize=True):
        pytest.skip("there is nothing to prune")
    pruned = channels.prune(apply, params, x, ratios=[0.2, 0.5], resize=True, fold=False)
    masked = evaluated(apply, channels.mask_channels(params, pruned.groups, pruned.keep), x)
    assert difference(evaluated(pruned.apply, pruned.params, x), masked) < 1e-10
    channels.save_pruned(tmp_path, pruned)
    read = channels.load_pruned(tmp_path, apply)
    assert difference(evaluated(read.apply, read.params, x), masked) < 1e-10
