"""Groups that repeat in several blocks, and the number of channels that they all keep."""

import jax.numpy as jnp
import numpy as np
import pytest

from pruning import coupled_channels, prune
from pruning.channels import select_globally
from pruning.channels._selection.repeats import repeating, select_equally

RNG = np.random.default_rng(3)
NAMES = ("b9", "b10", "b11", "c9", "b12", "b13")
WIDTHS = (8, 8, 6, 8, 8, 8)


def blocks(params, x):
    """A network of several blocks. `b12` has a transposed kernel, and `b13` has a bias."""
    for name in NAMES:
        h = jnp.tanh(x @ params[name]["up"] + (params[name]["z"] if name == "b13" else 0.0))
        down = params[name]["down"]
        x = x + h @ (down.T if name == "b12" else down)
    return x @ params["head"]


def network():
    params = {
        name: {"up": RNG.normal(size=(3, n)) * k, "down": RNG.normal(size=(n, 3))}
        for k, (name, n) in enumerate(zip(NAMES, WIDTHS, strict=True), 1)
    }
    params["b12"]["down"] = params["b12"]["down"].T
    params["b13"]["z"] = RNG.normal(size=(1, 8))
    return params | {"head": RNG.normal(size=(3, 2))}, RNG.normal(size=(2, 3))


def test_groups_repeat_whose_names_differ_in_numbers_of_any_length_and_in_nothing_else():
    """A group that differs in size, name, axis or number of arrays does not repeat another."""
    params, x = network()
    groups = coupled_channels(blocks, params, x)
    made = [{p.path.split("/")[0] for p in group.positions} for group in groups]
    found = [sorted(set().union(*(made[i] for i in alike))) for alike in repeating(groups)]
    assert sorted(found) == [["b10", "b9"], ["b11"], ["b12"], ["b13"], ["c9"]]


@pytest.mark.parametrize("ratios", [[0.3], [0.2, 0.5]])
def test_only_groups_that_repeat_keep_as_many(ratios):
    params, x = network()
    options = {"ratios": ratios, "select": select_globally, "fold": False}
    small = prune(blocks, params, x, equal_repeats=True, **options).params
    assert small["b9"]["up"].shape == small["b10"]["up"].shape
    for name in NAMES:
        up, down = small[name]["up"], small[name]["down"]
        assert up.shape[1] == down.shape[1 if name == "b12" else 0]


def test_groups_that_repeat_lose_their_own_lowest_channels_and_none_twice():
    """The means of both groups' sorted scores are −∞, 2, 3, 6, so each group keeps two channels."""
    scores = [jnp.array([1.0, 5.0, -jnp.inf, 2.0]), jnp.array([-jnp.inf, 3.0, 7.0, 4.0])]
    masks = select_equally(select_globally, [[0, 1]], scores, ratio=0.5, normalize=False)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[1, 3], [2, 3]]


def test_groups_that_repeat_are_compared_from_their_lowest_channels_up():
    """The means of sorted scores are 0 and 9, so both repeated groups lose their lowest channel."""
    scores = [jnp.array([0.0, 9.0]), jnp.array([9.0, 0.0]), jnp.array([4.0, 4.5])]
    options = {"ratio": 0.25, "normalize": False}
    masks = select_equally(select_globally, [[0, 1], [2]], scores, **options)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[1], [0], [0, 1]]
