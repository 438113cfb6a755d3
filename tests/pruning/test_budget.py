"""A budget in any unit is met, by as few lost scores as a knapsack needs."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pruning
from pruning import prune
from pruning.channels import (
    cost_at,
    merge_channels,
    reconstruction_scores,
    remove_channels,
    resized,
    select_within,
)
from tests.support import prunable

FAST = ("resnext", "scan")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in prunable.MODELS],
)
def test_counts_at_other_widths_are_those_of_the_smaller_network(name):
    apply, params, x = prunable.model(name)
    groups = pruning.coupled_channels(apply, params, x)
    widths = np.random.default_rng(0).integers(1, [g.size + 1 for g in groups]).tolist()
    keep = [np.arange(g.size) < n for g, n in zip(groups, widths, strict=True)]
    small = remove_channels(params, groups, keep)
    expected = pruning.cost(resized(apply, groups, keep), small, x)
    assert cost_at(apply, params, groups, x)(widths) == expected


def test_of_a_branching_the_dearest_is_counted():
    def apply(params, x):
        h = jax.nn.relu(x @ params["a"])
        return jax.lax.cond(x.sum() > 0, lambda h: h @ params["b"], lambda h: h[:, :3] * 2, h)

    params = {"a": jnp.ones((4, 5)), "b": jnp.ones((5, 3))}
    at = cost_at(apply, params, (), jnp.ones((2, 4)))
    assert at(()) == pruning.cost(apply, params, jnp.ones((2, 4)))


def test_the_smaller_network_is_timed():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    (timing,) = cost_at(apply, params, groups, x, batch_sizes=(2,))([3]).timings.values()
    assert timing.milliseconds > 0


def additive(prices):
    return lambda widths: sum(p * n for p, n in zip(prices, widths, strict=True))


def bilinear(widths):
    """Two layers between three groups, one before and one after."""
    a, b, c = widths
    return 3 * a + a * b + b * c + 2 * c


def lost_and_least(seed, cost, size=16):
    """The scores lost to half the cost, and the fewest of all choices; and the largest score."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=(3, size)) * rng.uniform(0.5, 2, (3, 1))
    budget = cost([size] * 3) / 2
    masks = select_within(list(jnp.asarray(scores)), budget=budget, cost=cost)
    assert cost([mask.sum() for mask in masks]) <= budget
    widths = np.array(list(itertools.product(range(1, size + 1), repeat=3))).T
    below = np.cumsum(np.pad(np.sort(scores), ((0, 0), (1, 0))), 1)[:, ::-1]  # by the width
    every = np.sum([b[n] for b, n in zip(below, widths, strict=True)], 0)
    least = every[cost(widths) <= budget].min()
    return sum(v[~m].sum() for v, m in zip(scores, masks, strict=True)), least, scores.max()


@pytest.mark.parametrize("seed", range(5))
def test_of_a_sum_over_groups_no_more_than_one_step_is_lost_needlessly(seed):
    lost, least, largest = lost_and_least(seed, additive([5, 2, 3]))
    assert least - 1e-9 <= lost <= least + largest


@pytest.mark.parametrize("seed", range(8))
def test_the_least_is_lost_where_channels_of_one_group_have_one_price(seed):
    """One group, unlike scores: exactly as many lowest as the budget needs; of two, by hand."""
    rng = np.random.default_rng(seed)
    scores = [jnp.asarray(rng.exponential(size=9) ** 3)]
    budget = int(rng.integers(3, 25))
    (mask,) = select_within(scores, budget=budget, cost=lambda widths: 3 * widths[0])
    assert mask.tolist() == (scores[0] >= jnp.sort(scores[0])[-(min(budget, 27) // 3)]).tolist()


def test_the_score_of_the_next_channel_is_not_counted():
    """Losing 1 beats losing 2, whatever the scores that stay are."""
    scores = [jnp.array([1.0, 100.0, 100.0]), jnp.array([2.0, 2.5, 3.0])]
    masks = select_within(scores, budget=5, cost=sum)
    assert [m.tolist() for m in masks] == [[False, True, True], [True, True, True]]


def test_of_layers_between_groups_little_is_lost_needlessly():
    found = [lost_and_least(seed, bilinear)[:2] for seed in range(20)]
    excess = [lost / least - 1 for lost, least in found]
    assert min(excess) > -1e-9
    assert np.mean(excess) < 0.05


def test_what_was_cut_for_the_last_step_is_taken_back_where_it_fits():
    scores = [jnp.array([1.0, 1.1]), jnp.array([9.0, 9.0, 30.0])]
    cost = additive([1, 10])  # 32; by rate first 9 / 10 twice, and 1 for 1
    assert [m.sum() for m in select_within(scores, budget=13, cost=cost)] == [2, 1]
    assert [m.sum() for m in select_within(scores, budget=12, cost=cost)] == [2, 1]
    assert [m.sum() for m in select_within(scores, budget=11, cost=cost)] == [1, 1]


def test_the_whole_network_is_left_where_it_is_within_the_budget():
    masks = select_within([jnp.arange(3.0)], budget=3, cost=additive([1]))
    assert masks[0].all()


def test_widths_are_those_that_are_allowed():
    scores, cost = [jnp.arange(64.0), jnp.arange(64.0)], additive([1, 1])
    select = partial(select_within, scores, cost=cost)

    def sizes(**options):
        return [int(mask.sum()) for mask in select(**options)]

    assert all(n in (8, 16, 64) for n in sizes(budget=60, widths=[[8, 16], [8, 16]]))
    assert all(n % 16 == 0 for n in sizes(budget=60, round_to=16))
    assert min(sizes(budget=60, min_channels=24)) >= 24
    with pytest.raises(ValueError, match="budget must be at least 48, the cost at the fewest"):
        select(budget=40, min_channels=24)
    with pytest.raises(ValueError, match=r"budget must be at least 2, .*; got nan"):
        select(budget=np.nan)
    with pytest.raises(ValueError, match="widths must hold 2 lists, one a group; got 1"):
        select(budget=40, widths=[[8]])
    with pytest.raises(ValueError, match="round_to must be at least 1; got 0"):
        select(budget=40, round_to=0)


def test_with_a_price_the_cost_is_asked_for_a_few_times():
    asked = []

    def measured(widths):
        asked.append(widths)
        return sum(widths)

    scores = list(jnp.asarray(np.random.default_rng(0).uniform(size=(2, 100))))
    masks = select_within(scores, budget=120, cost=measured, price=additive([1, 1]))
    assert sum(mask.sum() for mask in masks) == 120
    assert len(asked) <= 10


def by_number(params, groups):
    return [jnp.arange(1.0, group.size + 1) for group in groups]


def test_a_network_is_pruned_to_a_budget_step_by_step():
    apply, params, x = prunable.model("vgg")
    at = cost_at(apply, params, pruning.coupled_channels(apply, params, x), x)
    whole, seen = pruning.cost(apply, params, x), []

    def tuned(params, step):
        seen.append(pruning.cost(apply, params, x).macs)
        return params

    select = partial(select_within, cost=lambda widths: at(widths).macs)
    budgets = [0.7 * whole.macs, 0.5 * whole.macs]
    options: Any = {"select": select, "fine_tune": tuned, "fold": False}
    prune(apply, params, x, budgets=budgets, score=by_number, **options)
    for macs, budget in zip(seen, budgets, strict=True):
        assert budget - 0.15 * whole.macs < macs <= budget


def test_scores_are_one_number_a_channel():
    apply, params, x = prunable.model("mlp")
    with pytest.raises(ValueError, match=r"score must give one number for each of the 6 .*\(5,\)"):
        prune(apply, params, x, ratios=[0.5], score=lambda params, groups: [jnp.ones(5)])


def test_groups_of_another_network_are_refused():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    params, x = jax.tree.map(lambda a: np.ones([2 * n for n in a.shape]), (params, x))
    keep = [np.arange(group.size) > 0 for group in groups]
    calls: tuple[Callable[[], Any], ...] = (
        lambda: cost_at(apply, params, groups, x),
        lambda: merge_channels(apply, params, groups, keep, inputs=(x,)),
        lambda: reconstruction_scores(params, groups, apply=apply, batches=[(x,)]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="params must have the paths and shapes that the grou"):
            call()


@pytest.mark.parametrize("quantity", ["parameters", "size"])
def test_a_budget_may_be_of_parameters_or_of_bytes(quantity):
    apply, params, x = prunable.model("vgg")
    groups = pruning.coupled_channels(apply, params, x)
    at = cost_at(apply, params, groups, x)
    budget = getattr(pruning.cost(apply, params, x), quantity) // 2
    keep = select_within(
        by_number(params, groups),
        budget=budget,
        cost=lambda widths: getattr(at(widths), quantity),
    )
    small = remove_channels(params, groups, keep)
    assert 0.7 * budget < getattr(pruning.cost(apply, small, x), quantity) <= budget


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": [1.0, 2.0]}, "budgets must fall and be positive"),
        ({"budgets": [0.0]}, "budgets must fall and be positive"),
        ({"budgets": [1.0], "ratios": [0.5]}, "ratios must be empty beside budgets"),
        ({"budgets": [1.0]}, "select must take a budget, as partial"),
        ({}, "ratios must rise"),
    ],
)
def test_budgets_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prune(*prunable.model("mlp"), **options)


@pytest.mark.parametrize(
    ("widths", "message"), [([3, 3], "one a group; got 2"), ([0], "in 1..6"), ([7], "in 1..6")]
)
def test_a_width_is_one_of_its_group(widths, message):
    apply, params, x = prunable.model("mlp")
    at = cost_at(apply, params, pruning.coupled_channels(apply, params, x), x)
    with pytest.raises(ValueError, match=message):
        at(widths)
