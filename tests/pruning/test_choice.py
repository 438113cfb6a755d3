"""Scores and choices of channels, compared with results by hand.

Groups have different sizes, several layers make one group, and scores may be negative.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pruning import coupled_channels, prune
from pruning.channels import (
    channel_scores,
    cost_at,
    mask_channels,
    remove_channels,
    resized,
    select_globally,
    select_layerwise,
    select_within,
)

RNG = np.random.default_rng(4)


def lists(masks):
    return [np.flatnonzero(mask).tolist() for mask in masks]


def vectors(*rows):
    return [jnp.array(row, "float64") for row in rows]


def partly_fixed(params, x):
    """The first two channels of `x @ a` are outputs; `b` reads all others in reversed order."""
    h = x @ params["a"]
    return h[:, :2], jax.nn.relu(h[:, :1:-1]) @ params["b"]


def test_filters_are_scored_beside_those_of_their_layer_that_stay():
    params = {"a": 3 + RNG.normal(size=(4, 7)), "b": RNG.normal(size=(5, 2))}
    (group,) = coupled_channels(partly_fixed, params, RNG.normal(size=(3, 4)))
    of_a, of_b = (next(p for p in group.positions if p.path == path) for path in "ab")
    np.testing.assert_array_equal(of_a.indices + of_b.indices, np.full((5, 1), 6))
    criterion = lambda filters: jnp.linalg.norm(filters, axis=1) - filters.mean()  # noqa: E731
    (found,) = channel_scores(params, [group], criterion=criterion)
    expected = np.linalg.norm(params["a"], axis=0) - params["a"].mean()
    np.testing.assert_allclose(found, expected[of_a.indices[:, 0]], rtol=1e-12)


# In the first network, all arrays are vectors. In the second, a product sums over the channels of
# both arrays.
ALL_ALIKE = {
    "vectors": (
        lambda p, x: jnp.tanh(x[:, :1] * p["a"][None]) @ p["b"],
        {"a": (6,), "b": (6,)},
        lambda p: abs(p["a"]),
    ),
    "factors": (
        lambda p, x: x @ (p["a"] @ p["b"]),
        {"a": (4, 6), "b": (6, 3)},
        lambda p: (np.linalg.norm(p["a"], axis=0) + np.linalg.norm(p["b"], axis=1)) / 2,
    ),
}


@pytest.mark.parametrize("name", ALL_ALIKE)
def test_channels_whose_arrays_are_all_alike_have_scores(name):
    apply, shapes, expected = ALL_ALIKE[name]
    params = {key: RNG.normal(size=shape) for key, shape in shapes.items()}
    groups = coupled_channels(apply, params, RNG.normal(size=(3, 4)))
    (scores,) = channel_scores(params, groups)
    np.testing.assert_allclose(scores, expected(params), rtol=1e-12)


def gated(params, x):
    """A network of two blocks, each with two groups: one of `in` and `gate`, and one of `up`."""
    for block in (params["0"], params["1"]):
        x = x + (jnp.tanh(x @ block["in"]) * (x @ block["gate"])) @ block["out"]
        x = x + jnp.sin(x @ block["up"]) @ block["down"]
    return x @ params["head"]


def gated_params():
    shapes = {"in": (4, 12), "gate": (4, 12), "out": (12, 4), "up": (4, 16), "down": (16, 4)}
    blocks = {i: {k: RNG.normal(size=s) for k, s in shapes.items()} for i in "01"}
    return blocks | {"head": RNG.normal(size=(4, 2))}, RNG.normal(size=(3, 4))


def widths(params):
    return [params[i][name].shape[1] for i in "01" for name in ("in", "gate", "up")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Without options, groups of 12 channels keep 12 − 4, and groups of 16 channels keep 16 − 5.
        ({}, [8, 8, 11, 8, 8, 11]),
        ({"round_to": {"in": 2, "gate": 3}}, [12, 12, 11, 12, 12, 11]),
        ({"round_to": {"0/gate": 3, "1/up": 4}}, [9, 9, 11, 8, 8, 12]),
        ({"exclude": ["0/gate"]}, [12, 12, 11, 8, 8, 11]),
        ({"exclude": ["in"]}, [12, 12, 11, 12, 12, 11]),
        ({"exclude": ["1/in", "0/up"]}, [8, 8, 16, 12, 12, 11]),
        ({"round_to": 3, "select": partial(select_layerwise, round_to=5)}, [10, 10, 15] * 2),
        ({"round_to": 3, "select": partial(select_layerwise, min_channels=10)}, [12, 12, 12] * 2),
    ],
)
def test_names_concern_all_layers_that_make_a_group_and_a_partial_wins(options, expected):
    params, x = gated_params()
    pruned = prune(gated, params, x, ratios=[0.35], fold=False, **options)
    assert widths(pruned.params) == expected


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [[5], [0, 1, 2], [0, 1]]),
        ({"min_channels": 2}, [[4, 5], [0, 1, 2], [0, 1]]),
        ({"min_channels": 3}, [[3, 4, 5], [0, 1, 2], [0, 1]]),
        ({"round_to": [4, 1, 1]}, [[2, 3, 4, 5], [0, 1, 2], [0, 1]]),
        ({"round_to": [1, 4, 1]}, [[5], [0, 1, 2], [0, 1]]),
    ],
)
def test_the_lowest_of_all_go_but_for_what_each_group_must_keep(options, left):
    """The first group has the six lowest of the eleven scores."""
    scores = vectors(range(6), [20, 30, 25], [40, 35])
    assert lists(select_globally(scores, ratio=0.56, normalize=False, **options)) == left


def test_layers_have_multiples_of_their_own():
    scores = vectors(range(9), range(12), range(10))
    found = select_layerwise(scores, ratio=0.6, round_to=[2, 4, 7])
    # Without `round_to`, 4, 5 and 4 channels would be kept.
    assert [mask.sum() for mask in found] == [4, 8, 7]
    found = select_layerwise(scores, ratio=0.5, round_to=[2, 4, 7], min_channels=8)
    assert [mask.sum() for mask in found] == [8, 8, 10]


def test_negative_scores_are_divided_by_their_mean_size():
    """The normalized scores of the two groups are (−2/3, −4/3) and (−1/2, −3/2)."""
    scores = vectors([-10, -20], [-1, -3])
    assert lists(select_globally(scores, ratio=0.25)) == [[0, 1], [0]]
    assert lists(select_globally(scores, ratio=0.5)) == [[0], [0]]


def test_scores_of_zero_are_the_lowest_of_all():
    assert lists(select_globally(vectors([0, 0, 0], [1, 2, 3]), ratio=0.5)) == [[2], [0, 1, 2]]


def test_widths_multiples_and_least_numbers_are_those_of_each_group():
    """Each of the two groups has its own entry in `widths` and `round_to`. Each channel costs 1."""
    scores = vectors(range(1, 10), range(1, 13))
    sizes = lambda **o: [int(m.sum()) for m in select_within(scores, cost=sum, **o)]  # noqa: E731
    assert sizes(budget=8, widths=[[3], [5]]) == [3, 5]
    assert sizes(budget=8, widths=[[5], [3]]) == [5, 3]
    assert sizes(budget=7, round_to=[3, 4]) == [3, 4]
    assert sizes(budget=7, round_to=[4, 3]) == [4, 3]
    few = vectors([9, 1], range(1, 10))
    masks = select_within(few, budget=6, cost=sum, min_channels=4)
    assert lists(masks) == [[0, 1], [5, 6, 7, 8]]


@pytest.mark.parametrize("normalize", [True, False])
def test_channels_of_score_infinity_are_kept(normalize):
    """The two groups' means of finite scores are 3 and 6.05, and 4.1/6.05 is less than 4/3."""
    scores = vectors([np.inf, 2, 4, np.inf], [4.1, 8], [np.inf, np.inf])
    some = partial(select_globally, scores, normalize=normalize)
    two = [[0, 2, 3], [1], [0, 1]] if normalize else [[0, 3], [0, 1], [0, 1]]
    assert lists(some(ratio=0.25)) == two
    within = partial(select_within, scores, cost=sum, normalize=normalize)
    for fewest in (some(ratio=0.9), within(budget=5), select_layerwise(scores, ratio=0.9)):
        assert lists(fewest) == [[0, 3], [1], [0, 1]]
    with pytest.raises(ValueError, match="budget must be at least 5"):
        within(budget=4)


def test_a_group_without_channels_keeps_none():
    scores = vectors([-np.inf, -np.inf], [1, 3, 2])
    assert lists(select_within(scores, budget=2, cost=sum)) == [[], [1, 2]]


def test_of_the_steps_that_fit_again_the_largest_is_undone():
    """Without `price`, greedy steps end at cost 18; within the budget 22, one channel returns.

    The readmitted channel is the one with score 1.5, not the one with score 1.
    """
    scores = vectors([1, 50], [1.5, 50], [9, 60])
    cost = lambda widths: 4 * widths[0] + 4 * widths[1] + 10 * widths[2]  # noqa: E731
    options = {"budget": 22, "cost": cost, "normalize": False}
    assert lists(select_within(scores, **options)) == [[1], [0, 1], [1]]
    assert lists(select_within(scores, price=cost, **options)) == [[1], [1], [1]]


def test_prune_undoes_steps_that_fit_again():
    """The three layers have 4, 4 and 10 multiply-accumulates for each channel, as above."""

    def apply(params, x):
        h = [jax.nn.relu(x[:, : len(params[a])] @ params[a]) for a in "abc"]
        return sum(y @ params[w] for y, w in zip(h, "def", strict=True))

    params = {name: np.ones((n, 2)) for name, n in zip("abc", (3, 3, 9), strict=True)}
    params |= {name: np.ones((2, 1)) for name in "def"}
    score = lambda params, groups: vectors([1, 50], [1.5, 50], [9, 60])  # noqa: E731
    select = partial(select_within, normalize=False)
    pruned = prune(apply, params, np.ones((1, 9)), budget=22, score=score, select=select)
    assert lists(pruned.keep) == [[1], [0, 1], [1]]


def test_a_group_may_lose_all_channels_where_they_are_set_to_zero():
    """Without the channels of `a`, whether masked or removed, the output is sin(x c) d + e."""

    def apply(params, x):
        h = jax.nn.relu(x @ params["a"]) @ params["b"] + jnp.sin(x @ params["c"]) @ params["d"]
        return h + params["e"][None]

    shapes = {"a": (3, 6), "b": (6, 2), "c": (3, 5), "d": (5, 2), "e": (2,)}
    params = {name: RNG.normal(3, 1, size=shape) for name, shape in shapes.items()}
    x = RNG.normal(3, 5, size=(4, 3))
    groups = coupled_channels(apply, params, x)
    keep = [np.full(group.size, group.size == 5) for group in groups]
    masked = mask_channels(params, groups, keep)
    expected = np.sin(x @ params["c"]) @ params["d"] + params["e"]
    np.testing.assert_allclose(apply(masked, x), expected, rtol=1e-12)
    small = params | {"a": params["a"][:, :0], "b": params["b"][:0]}
    np.testing.assert_allclose(resized(apply, groups, keep)(small, x), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="keep must hold at least one channel of a; got none"):
        remove_channels(params, groups, keep)


def test_multiples_are_one_or_one_for_each_group():
    select = partial(select_layerwise, vectors([1, 2, 3], [4, 5, 6]), ratio=0.5)
    assert lists(select(round_to=[1, 3])) == [[1, 2], [0, 1, 2]]
    with pytest.raises(ValueError, match=r"^round_to must hold 2 numbers, one per group; got 3$"):
        select(round_to=[1, 2, 3])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("groups", "got"), [([1.0], "a list of float"), ({"a": 1}, "dict")])
def test_groups_are_those_of_coupled_channels(groups, got):
    with pytest.raises(TypeError, match=f"^groups must be a result of .*; got {got}$"):
        channel_scores({"a": np.ones((2, 3))}, groups)


def test_every_group_must_be_of_the_tree():
    """Groups of another network raise an error, even if the first group is from this network."""

    def apply(p, x):
        return jax.nn.relu(x @ p["a"]) @ p["b"]

    wide, narrow = ({"a": np.ones((2, n)), "b": np.ones((n, 3))} for n in (6, 4))
    x = np.ones((1, 2))
    groups = (*coupled_channels(apply, wide, x), *coupled_channels(apply, narrow, x))
    for use in (
        lambda: cost_at(apply, wide, groups, x)((3, 2)),
        lambda: channel_scores(wide, groups),
    ):
        with pytest.raises(ValueError, match=r"groups were read; they differ in a \(2, 4\)"):
            use()
