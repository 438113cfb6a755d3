"""The cost is at most the budget, in any unit, and the loss is near the optimum of the knapsack."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pruning
from jaxnorm.models import CifarResNet
from pruning import prune
from pruning.channels import (
    cost_at,
    merge_channels,
    reconstruction_scores,
    remove_channels,
    resized,
    select_globally,
    select_layerwise,
    select_within,
    sensitivity,
    swap_channels,
    taylor_scores,
    wanda_scores,
)
from pruning.channels._selection.repeats import select_equally
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


def test_products_in_loops_inside_loops_are_counted_for_every_step():
    """Five steps of three steps of a product of 4 × 5 and 5 × 4 numbers: 15 · 2 · 20 products."""

    def apply(params, x):
        def inner(h, _):
            return jax.nn.relu(h @ params["a"]) @ params["b"], None

        def outer(h, _):
            return jax.lax.scan(inner, h, length=3)

        return jax.lax.scan(outer, x, length=5)[0]

    params, x = {"a": jnp.ones((4, 5)), "b": jnp.ones((5, 4))}, jnp.ones((1, 4))
    groups = pruning.coupled_channels(apply, params, x)
    at = cost_at(apply, params, groups, x)
    assert [at((width,)).macs for width in (5, 2)] == [600, 240]


@pytest.mark.parametrize("resize", [False, True])
def test_a_product_with_a_first_state_of_zeros_is_counted(resize):
    """Two steps with 3 · 4 and 4 · 4 products, and 4 · 2 products; at width 1: 3, 1 and 2."""

    def apply(params, x):
        h = jnp.zeros((1, params["w"].shape[0]))
        for _ in range(2):
            h = jnp.tanh(x @ params["a"] + h @ params["w"])
        return h @ params["b"]

    params, x = (
        {"a": jnp.ones((3, 4)), "w": jnp.ones((4, 4)), "b": jnp.ones((4, 2))},
        jnp.ones((1, 3)),
    )
    groups = pruning.coupled_channels(apply, params, x, resize=resize)
    at, keep = cost_at(apply, params, groups, x), [np.array([True, False, False, False])]
    assert [at((width,)).macs for width in (4, 1)] == [64, 10]
    small = remove_channels(params, groups, keep)
    assert pruning.cost(resized(apply, groups, keep), small, x).macs == 10
    assert pruning.cost(apply, small, x).macs == 10


def test_products_of_halves_of_the_queries_are_counted():
    """Differential attention multiplies queries by keys for each half of their features."""

    def apply(p, x):
        halves = (jnp.split(x @ p[name], 2, -1) for name in "qk")
        a, b = (q @ k.T for q, k in zip(*halves, strict=True))
        return jax.nn.softmax(a) - jax.nn.softmax(b)

    params, x = {name: jnp.ones((4, 8)) for name in "qk"}, jnp.ones((3, 4))
    groups = pruning.coupled_channels(apply, params, x)
    at = cost_at(apply, params, groups, x)
    assert [group.size for group in groups] == [8]
    # The network has two products with kernels. It also has two products q kᵀ with 3 × 3 results,
    # and each of these products sums over half of the width.
    for width in (8, 5):
        assert at([width]).macs == 2 * 3 * 4 * width + 3 * 3 * width


def test_the_smaller_network_is_timed():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    (timing,) = cost_at(apply, params, groups, x, batch_sizes=(2,))([3]).timings.values()
    assert timing.milliseconds > 0


def additive(prices):
    return lambda widths: sum(p * n for p, n in zip(prices, widths, strict=True))


def bilinear(widths):
    """The cost of four layers in a row: from 3 inputs through the three `widths` to 2 outputs."""
    a, b, c = widths
    return 3 * a + a * b + b * c + 2 * c


def lost_and_least(seed, cost, normalize, size=16):
    """The loss of `select_within` at half of the cost, the minimal loss, and the largest step."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=(3, size)) * rng.uniform(0.5, 2, (3, 1))
    budget = cost([size] * 3) / 2
    select = partial(select_within, list(jnp.asarray(scores)), budget=budget, cost=cost)
    chosen = [int(mask.sum()) for mask in select(normalize=normalize)]
    assert cost(chosen) <= budget
    widths = np.array(list(itertools.product(range(1, size + 1), repeat=3))).T
    # best[i, n - 1] is the sum of the n largest scores of group i
    best = np.cumsum(np.sort(scores)[:, ::-1], 1)
    losses = -np.log(best / best[:, -1:]) if normalize else best[:, -1:] - best
    every = np.sum([own[n - 1] for own, n in zip(losses, widths, strict=True)], 0)
    lost = sum(own[n - 1] for own, n in zip(losses, chosen, strict=True))
    return lost, every[cost(widths) <= budget].min(), -np.diff(losses).min()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_of_a_sum_over_groups_no_more_than_one_step_is_lost_needlessly(seed, normalize):
    lost, least, largest = lost_and_least(seed, additive([5, 2, 3]), normalize)
    assert least - 1e-9 <= lost <= least + largest


@pytest.mark.parametrize("seed", range(8))
def test_the_least_is_lost_where_channels_of_one_group_have_one_price(seed):
    """With one group, exactly the lowest scores are removed, until the budget is met."""
    rng = np.random.default_rng(seed)
    scores = [jnp.asarray(rng.exponential(size=9) ** 3)]
    budget = int(rng.integers(3, 25))
    (mask,) = select_within(scores, budget=budget, cost=lambda widths: 3 * widths[0])
    assert mask.tolist() == (scores[0] >= jnp.sort(scores[0])[-(min(budget, 27) // 3)]).tolist()


def test_the_score_of_the_next_channel_is_not_counted():
    """The channel with score 1 is removed first, before the next channel of its group, with 100."""
    scores = [jnp.array([1.0, 100.0, 100.0]), jnp.array([2.0, 2.5, 3.0])]
    masks = select_within(scores, budget=5, cost=sum, normalize=False)
    assert [m.tolist() for m in masks] == [[False, True, True], [True, True, True]]


@pytest.mark.parametrize("normalize", [True, False])
def test_of_layers_between_groups_little_is_lost_needlessly(normalize):
    found = [lost_and_least(seed, bilinear, normalize)[:2] for seed in range(20)]
    excess = [lost / least - 1 for lost, least in found]
    assert min(excess) > -1e-9
    assert np.mean(excess) < 0.05


@pytest.mark.parametrize("seed", range(8))
def test_each_step_is_the_cheapest_of_all_at_the_present_widths(seed):
    """The widths equal those of a greedy loop that computes all prices anew in each step."""
    scores = np.random.default_rng(seed).exponential(size=(3, 9)) ** 2
    lowest, widths, budget = np.sort(scores), [9, 9, 9], bilinear([9, 9, 9]) / 3
    while bilinear(widths) > budget:
        steps = []
        for i in range(3):
            narrower = [n - (i == j) for j, n in enumerate(widths)]
            if narrower[i]:
                saved = bilinear(widths) - bilinear(narrower)
                steps.append((lowest[i, 9 - widths[i]] / saved, narrower))
        _, widths = min(steps)
    options = {"budget": budget, "cost": bilinear, "price": bilinear, "normalize": False}
    masks = select_within(list(jnp.asarray(scores)), **options)
    assert [int(mask.sum()) for mask in masks] == widths


def test_channels_removed_before_have_no_part_in_the_mean_of_a_layer():
    """The lowest finite scores, 1 and 2.2, are divided by the means 2 and 3 of their groups."""
    scores = [jnp.array([-jnp.inf, 1.0, -jnp.inf, 3.0]), jnp.array([2.2, 3.8])]
    keep = select_globally(scores, ratio=0.5)
    assert [mask.tolist() for mask in keep] == [[False, False, False, True], [True, True]]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("round_to", [1, 4])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_budget_is_met_from_below_within_one_step(seed, round_to, normalize):
    """If any group that lost channels were one step wider, the cost would exceed the budget."""
    rng = np.random.default_rng(seed)
    sizes, prices = rng.integers(5, 30, 4), rng.uniform(0.1, 3, (2, 4))
    scores = [jnp.asarray(rng.exponential(size=n)) for n in sizes]
    cost = lambda w: float(np.dot(prices[0], w) + np.dot(prices[1] * w, np.roll(w, 1)))  # noqa: E731
    budget = rng.uniform(0.4, 0.9) * cost(sizes)
    masks = select_within(scores, budget=budget, cost=cost, round_to=round_to, normalize=normalize)
    widths = np.array([mask.sum() for mask in masks])
    assert all(w % round_to == 0 or w == n for w, n in zip(widths, sizes, strict=True))
    assert cost(widths) <= budget
    for i in np.flatnonzero(widths < sizes):
        wider = widths.copy()
        wider[i] = min(sizes[i], (widths[i] // round_to + 1) * round_to)
        assert cost(wider) > budget


def test_half_of_a_residual_network_is_half_and_no_stage_is_cut_to_the_bone():
    """With one more channel, the cost exceeds the budget; each group keeps over 30 % of its own."""
    model = CifarResNet(8, classes=10, rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.view(model, use_running_average=True))
    apply = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
    x = jnp.ones((1, 16, 16, 3), "float32")
    found = prune(apply, state, x, budget=0.5, fold=False)
    at, sizes = cost_at(apply, state, found.groups, x), [g.size for g in found.groups]
    whole, widths = at(sizes).macs, [int(mask.sum()) for mask in found.keep]
    channel = whole - at([*sizes[:-1], sizes[-1] - 1]).macs
    assert sizes[-1] == max(sizes)
    assert 0.5 * whole - channel < at(widths).macs <= 0.5 * whole
    assert min(n / size for n, size in zip(widths, sizes, strict=True)) > 0.3


def test_what_was_cut_for_the_last_step_is_taken_back_where_it_fits():
    scores = [jnp.array([1.0, 1.1]), jnp.array([9.0, 9.0, 30.0])]
    # The whole network costs 2 · 1 + 3 · 10 = 32. Scores divided by costs are 1 and 1.1 in the
    # first group, and 0.9, 0.9 and 3 in the second group.
    cost = additive([1, 10])
    for budget, widths in ((13, [2, 1]), (12, [2, 1]), (11, [1, 1])):
        masks = select_within(scores, budget=budget, cost=cost, normalize=False)
        assert [m.sum() for m in masks] == widths


def test_shares_of_a_layer_have_no_sign():
    with pytest.raises(ValueError, match=r"scores must not be negative, .*: pass normalize=False"):
        select_within([jnp.array([-1.0, 2.0])], budget=1, cost=sum)
    masks = select_within([jnp.array([-1.0, 2.0])], budget=1, cost=sum, normalize=False)
    assert masks[0].tolist() == [False, True]
    assert select_within([jnp.zeros(4)], budget=2, cost=sum)[0].sum() == 2


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
    both = sizes(budget=60, widths=[[8, 12, 16, 20], [12, 16, 20]], round_to=8)
    assert all(n in (8, 16, 64) for n in both)
    assert min(sizes(budget=60, min_channels=24)) >= 24
    with pytest.raises(
        ValueError, match=r"budget must be at least 48, the cost of .* with the fewest"
    ):
        select(budget=40, min_channels=24)
    with pytest.raises(ValueError, match=r"budget must be at least 2, .*; got nan"):
        select(budget=np.nan)
    with pytest.raises(ValueError, match="widths must hold 2 lists, one per group; got 1"):
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


def test_a_share_is_of_the_cost_that_select_has_of_its_own():
    apply, params, x = prunable.model("vgg")
    select = partial(select_within, cost=lambda widths: sum(widths))
    pruned = prune(apply, params, x, budget=0.5, select=select, score=by_number, fold=False)
    assert sum(int(mask.sum()) for mask in pruned.keep) == sum(g.size for g in pruned.groups) // 2


def test_groups_that_repeat_are_priced_with_the_widths_of_all():
    """Groups 1 and 3 repeat each other, so `cost` and `price` always get equal widths for them."""
    asked: dict[str, set[tuple[int, ...]]] = {"cost": set(), "price": set()}

    def total(name):
        return lambda widths: asked[name].add(tuple(widths)) or sum(widths)

    scores = [jnp.arange(1.0, 5.0), jnp.arange(1.0, 7.0), jnp.arange(2.0, 6.0)]
    options = {"budget": 8, "cost": total("cost"), "price": total("price")}
    masks = select_equally(select_within, [[0, 2], [1]], scores, **options)
    widths = [int(mask.sum()) for mask in masks]
    assert widths[0] == widths[2]
    assert sum(widths) <= 8
    for seen in asked.values():
        assert {len(of_all) for of_all in seen} == {3}
        assert all(of_all[0] == of_all[2] for of_all in seen)


def test_groups_that_repeat_lose_the_channels_with_the_lowest_scores_on_average():
    """The means of the sorted scores of groups 0 and 2 are at least 4.5, so only group 1 is cut."""
    scores = [jnp.array([0.0, 9.0, 0.0, 0.0]), jnp.full(4, 2.0), jnp.full(4, 9.0)]
    options = {"ratio": 0.25, "normalize": False}
    masks = select_equally(select_globally, [[0, 2], [1]], scores, **options)
    assert [int(mask.sum()) for mask in masks] == [4, 2, 4]


def by_number(params, groups):
    return [jnp.arange(1.0, group.size + 1) for group in groups]


@pytest.mark.parametrize(
    "cost", [lambda cost: cost.macs, lambda cost: cost.parameters, lambda cost: cost.size]
)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_network_is_pruned_to_a_budget_step_by_step(cost, absolute):
    apply, params, x = prunable.model("vgg")
    whole, seen = cost(pruning.cost(apply, params, x)), []

    def log(step, pruned):
        seen.append((step, cost(pruning.cost(apply, pruned.params, x))))

    shares = [0.7, 0.5]
    budget = [whole * share for share in shares] if absolute else shares
    prune(apply, params, x, budget=budget, cost=cost, score=by_number, fold=False, callback=log)
    for (step, found), (i, share) in zip(seen, enumerate(shares), strict=True):
        assert step == i
        assert (share - 0.15) * whole < found <= share * whole


def test_channels_that_a_budget_removed_do_not_count_as_channels_to_keep():
    """After the first budget, six of eight channels are removed; the second removes one more."""

    def apply(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    params = {"a": jnp.ones((4, 8)), "b": jnp.ones((8, 4))}
    small = prune(apply, params, jnp.ones((1, 4)), budget=[0.25, 0.125]).params
    assert small["a"].shape == (4, 1)


def test_a_budget_may_be_of_measured_time():
    """Multiply-accumulates choose the steps, so the network is timed only a few times."""
    apply, params, x = prunable.model("mlp")
    read = []

    def milliseconds(cost):
        read.append(cost.macs)
        # The time is simulated; the term with the factor 0 only reads a measured time.
        return cost.macs * 1e-3 + 0 * cost.timings[2].milliseconds

    found = prune(apply, params, x, budget=0.5, cost=milliseconds, batch_sizes=[2], fold=False)
    whole = pruning.cost(apply, params, x).macs
    assert pruning.cost(apply, found.params, x).macs <= 0.5 * whole
    assert 2 <= len(read) <= 6


def test_a_selection_of_one_s_own_is_told_the_cost_and_keeps_what_it_has():
    apply, params, x = prunable.model("vgg")
    options = []

    def select(scores, **given):
        options.append(given)
        return select_within(scores, **given)

    found = prune(apply, params, x, budget=0.5, select=partial(select, round_to=2), fold=False)
    (given,) = options
    sizes = [group.size for group in found.groups]
    whole = pruning.cost(apply, params, x).macs
    assert (given["cost"](sizes), given["budget"], given["round_to"]) == (whole, whole / 2, 2)
    own = partial(select, cost=sum)
    prune(apply, params, x, budget=0.5, select=own, fold=False)
    assert (options[-1]["cost"], options[-1]["budget"]) == (sum, sum(sizes) / 2)


def test_scores_are_one_number_a_channel():
    apply, params, x = prunable.model("mlp")
    with pytest.raises(
        ValueError, match=r"score must return one number for each of the 6 .*\(5,\)"
    ):
        prune(apply, params, x, ratios=[0.5], score=lambda params, groups: [jnp.ones(5)])


def sum_of_arrays(params, x):
    return jnp.sum(jnp.stack([leaf.sum() for leaf in jax.tree.leaves(params)]))


def test_groups_of_another_network_are_refused():
    apply, params, x = prunable.model("mlp")
    groups = pruning.coupled_channels(apply, params, x)
    params, x = jax.tree.map(lambda a: np.ones([2 * n for n in a.shape]), (params, x))
    keep = [np.arange(group.size) > 0 for group in groups]
    calls: tuple[Callable[[], Any], ...] = (
        lambda: cost_at(apply, params, groups, x),
        lambda: merge_channels(apply, params, groups, keep, inputs=(x,)),
        lambda: reconstruction_scores(params, groups, apply=apply, batches=[(x,)]),
        lambda: swap_channels(apply, params, groups, keep, batches=[(x,)]),
        lambda: wanda_scores(params, groups, apply=apply, inputs=[x]),
        lambda: taylor_scores(params, groups, loss=sum_of_arrays, batches=[x]),
        lambda: sensitivity(params, groups, measure=lambda params: 1.0, ratios=[0.5]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="params must have the paths and shapes of the param"):
            call()


@pytest.mark.parametrize("quantity", ["parameters", "size"])
def test_a_budget_may_be_of_parameters_or_of_bytes(quantity):
    apply, params, x = prunable.model("vgg")
    groups = pruning.coupled_channels(apply, params, x)
    at = cost_at(apply, params, groups, x)
    budget = getattr(pruning.cost(apply, params, x), quantity) // 2
    keep = select_within(
        by_number(params, groups), budget=budget, cost=lambda widths: getattr(at(widths), quantity)
    )
    small = remove_channels(params, groups, keep)
    assert 0.7 * budget < getattr(pruning.cost(apply, small, x), quantity) <= budget


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": [1.0, 2.0]}, "budget must be a positive number or a list of desc"),
        ({"budget": [0.5, 0.5]}, "budget must be a positive number or a list of desc"),
        ({"budget": 0.0}, "budget must be a positive number"),
        ({"budget": 0.5, "ratios": [0.5]}, "ratios must be empty if a budget is given"),
        ({"budget": 0.5, "select": select_layerwise}, "select must take a budget, as select_wit"),
        ({"budget": 0.5, "select": partial(select_globally)}, "select must take a budget, as sel"),
        ({"budget": 1}, "budget must be .*, the cost of .* with the fewest channels; got 1"),
        ({"budget": 0.5, "round_to": {"pear": 2}}, "round_to must match .*'pear' matches none"),
        ({}, r"ratios, such as \[0.5\], or a budget must be given; got neither"),
    ],
)
def test_budgets_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prune(*prunable.model("mlp"), **options)


@pytest.mark.parametrize(
    ("widths", "message"), [([3, 3], "one per group; got 2"), ([0], "in 1..6"), ([7], "in 1..6")]
)
def test_a_width_is_one_of_its_group(widths, message):
    apply, params, x = prunable.model("mlp")
    at = cost_at(apply, params, pruning.coupled_channels(apply, params, x), x)
    with pytest.raises(ValueError, match=message):
        at(widths)
