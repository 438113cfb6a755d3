"""Random networks of two hundred kinds of block: removed is masked, or it is refused."""

import jax
import numpy as np
import pytest

from tests.support import random_networks
from tests.support.numpy_programs import evaluated
from tests.support.random_networks import WRONG, difference, outcome, random_network


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


def test_errors_are_relative_and_never_nan():
    assert difference({"a": np.array([3.0, 2.0])}, {"a": np.array([2.0, 2.0])}) == 0.5
    assert difference(np.array([np.nan]), np.array([1.0])) == np.inf
