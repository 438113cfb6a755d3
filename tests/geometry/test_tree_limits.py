import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
from claims.bn_decomposed.tree_angles import POINTS, deep_trees
from geometry import tree_gram
from geometry.tree import depth_bound, end_bounds

fast_gram = jax.jit(tree_gram, static_argnums=1)
limit_ratio = jax.jit(geometry.tree.limit_ratio, static_argnames="depth")


def stable_depth(x):
    """The smallest depth at which each neuron has at most three different values."""
    rows, depth = [np.sort(x)], 0
    while rows:
        children = [np.maximum(s * (row - row.mean()), 0) for row in rows for s in (1, -1)]
        depth, rows = depth + 1, [row for row in children if len(np.unique(row)) > 3]
    return depth


DRAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "uniform": lambda rng, n: rng.uniform(size=n),
    "geometric": lambda _, n: 0.5 ** np.arange(n),
    "gaps": lambda rng, n: np.cumsum(10 ** rng.uniform(-6, 0, n)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_theorem_10_all_neurons_are_stable_by_the_bound(draw):
    rng = np.random.default_rng(0)
    for n in (4, 5, 8, 16):
        for _ in range(5):
            x = draw(rng, n)
            assert stable_depth(x) <= depth_bound(jnp.asarray(x))


def test_no_depth_suffices_for_all_batches_of_a_size():
    close = [np.array([0, 1, 1 + gap, 5]) for gap in (1e-2, 1e-4, 1e-8, 1e-12)]
    assert [stable_depth(x) for x in close] == [6, 9, 19, 29]
    assert depth_bound(jnp.array([0.0, 1.0, 1.0, 5.0])) == np.inf


def test_a_depth_bound_by_hand():
    # For these four samples, the range is 3, and the smallest inner gap is 1.
    expected = 3 + 2 * np.log(1.5) / np.log(4)
    np.testing.assert_allclose(depth_bound(jnp.array([2.0, 0.0, 3.0, 1.0])), expected)


def test_the_two_outer_gaps_do_not_enter_the_depth_bound():
    # The range is 1.3, and the smallest inner gap is 1. The outer gaps are 0.1 and 0.2.
    expected = 3 + 2 * max(0, np.log(0.65)) / np.log(4)
    np.testing.assert_allclose(depth_bound(jnp.array([0.0, 0.1, 1.1, 1.3])), expected)
    expected = 2 * (3 + 2 * np.log(2.3 * 2 / 2) / np.log(5 / 2))
    np.testing.assert_allclose(depth_bound(jnp.array([0.0, 0.1, 1.1, 2.1, 2.3])), expected)


@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.slow) for n in (4, 9)), 32])
def test_the_limits_are_those_of_a_deep_tree(n):
    x = np.random.default_rng(n).normal(size=n)
    g = fast_gram(jnp.sort(jnp.asarray(x)), 3000).gram
    limits = geometry.tree.limits(n, limit_ratio(jnp.asarray(x), depth=3000))
    norms = np.sqrt(np.diagonal(g))
    inner, ends = norms[n // 2], norms[[0, -1]]
    np.testing.assert_allclose(limits.norm_ratios, inner / ends, rtol=1e-9)
    cosines = g[n // 2, jnp.array([0, n - 1])] / (inner * ends)
    np.testing.assert_allclose(np.cos(limits.angles), cosines, rtol=1e-9)
    bounds = end_bounds(n)
    assert limits.norm_ratios.min() <= bounds.norm_ratio + 1e-9
    assert limits.angles.max() >= bounds.angle - 1e-9


@pytest.mark.parametrize(
    ("n", "ratio", "angle"),
    [(3, 0.632, 71.57), (4, 0.447, 77.08), (5, 0.343, 80.13), (6, 0.277, 82.03), (8, 0.2, 84.26)],
)
def test_sharp_constants_are_those_of_symmetric_batches(n, ratio, angle):
    sharp = end_bounds(n)
    assert abs(sharp.norm_ratio - ratio) < 5e-4
    assert abs(np.degrees(sharp.angle) - angle) < 5e-3
    symmetric = geometry.tree.limits(n, jnp.ones(()))
    np.testing.assert_allclose(symmetric.norm_ratios, sharp.norm_ratio, rtol=1e-14)
    np.testing.assert_allclose(symmetric.angles, sharp.angle, rtol=1e-14)


def test_r_decides_which_end_is_longest():
    x = np.sort(np.random.default_rng(0).normal(size=(20, 8)), axis=1)
    r = jax.jit(jax.vmap(lambda x: geometry.tree.limit_ratio(x, depth=500)))(jnp.asarray(x))
    for row, ratio in zip(x, r, strict=True):
        norms = np.diagonal(fast_gram(jnp.asarray(row), 500).gram)
        assert (norms[-1] > norms[0]) == (ratio > 1)


def test_impossible_sizes():
    with pytest.raises(ValueError, match=r"at least 4 .*; got 3"):
        depth_bound(jnp.arange(3.0))
    for call in (end_bounds, lambda n: geometry.tree.limits(n, jnp.ones(()))):
        with pytest.raises(ValueError, match=r"at least 3.*; got 2"):
            call(2)
    with pytest.raises(ValueError, match=r"at least 3.*; got 2"):
        geometry.tree.limit_ratio(jnp.arange(2.0))
    with pytest.raises(ValueError, match="depth must be at least 1; got 0"):
        geometry.tree.limit_ratio(jnp.arange(3.0), depth=0)


def test_a_sample_at_the_mean_ends_no_neuron():
    """The samples are symmetric about their mean; rounding there must not remove a neuron."""
    samples = np.sort(np.random.default_rng(0).normal(size=(200, 30, POINTS)), axis=2)
    for batch in samples - samples[:, :, ::-1]:
        norms = deep_trees(batch).norms
        np.testing.assert_allclose(norms, norms[:, ::-1], rtol=1e-9)


def test_norms_and_gaps_of_deep_trees_have_one_unit():
    """A squared gap follows from two norms and a cosine, except for gaps near rounding errors."""
    tree = deep_trees(np.sort(np.random.default_rng(0).normal(size=(30, POINTS)), axis=1))
    first, second = tree.norms[:, :-1], tree.norms[:, 1:]
    cosines = np.diagonal(tree.cosines, 1, 1, 2)
    squared = first**2 + second**2 - 2 * cosines * first * second
    np.testing.assert_allclose(tree.squared_gaps, squared, rtol=1e-9, atol=1e-12)
    assert (tree.squared_gaps.max(1) > 0.1).all()


def test_no_cosine_of_deep_trees_is_beyond_one():
    """A cosine above 1, even by rounding, would have an angle that is NaN."""
    samples = np.sort(np.random.default_rng(0).normal(size=(3000, POINTS)), axis=1)
    tree = deep_trees(samples - samples[:, ::-1])
    assert np.abs(tree.cosines).max() <= 1


@pytest.mark.parametrize("x", [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0, 5.0]])
def test_equal_samples_have_no_depth_bound(x):
    assert depth_bound(jnp.array(x)) == np.inf


@pytest.mark.parametrize(
    ("x", "ratio"),
    [([0, 0, 3, 3], 1), ([5, 5, 5, 5, 5], 1), ([0, 0, 1, 3], np.inf), ([0, 1, 3, 3], 0)],
)
def test_ratios_of_samples_that_coincide_at_an_end(x, ratio):
    assert limit_ratio(jnp.array(x, float), depth=3) == ratio


@pytest.mark.parametrize(("n", "transform"), [(3, lambda f: f), (4, jax.jit), (9, jax.jit)])
def test_the_ratio_of_equal_samples_is_that_of_a_symmetric_batch(n, transform):
    both = transform(jax.value_and_grad(geometry.tree.limit_ratio))
    with jax.debug_nans(True):
        found = [both(jnp.full(n, value)) for value in (0.0, 1.0, -3e4)]
        tied, of_tied = both(jnp.maximum(jnp.arange(1.0 * n) - 1, 0))
    for ratio, gradient in found:
        assert ratio == 1
        assert not gradient.any()
    assert tied in (1, jnp.inf)
    assert not of_tied.any()
    assert jnp.isnan(both(jnp.full(n, 1.0).at[1].set(jnp.nan))[0])


@pytest.mark.parametrize("r", [-1e-6, -0.5, -1.5, -20.0])
def test_limits_of_a_negative_ratio_are_nan(r):
    ends = jax.jit(lambda r: geometry.tree.limits(5, r))(jnp.asarray(r))
    assert np.isnan(ends.norm_ratios).all()
    assert np.isnan(ends.angles).all()


@pytest.mark.parametrize("n", [3, 8])
def test_a_large_or_infinite_ratio_has_the_limits_of_its_inverse_with_the_ends_exchanged(n):
    """If r = ∞, the norm ratio to the smallest sample is 1, and to the largest 1/(n − 1)."""
    infinite = geometry.tree.limits(n, jnp.inf)
    np.testing.assert_allclose(infinite.norm_ratios, [1, 1 / (n - 1)], rtol=1e-6)
    np.testing.assert_allclose(infinite.angles, [0, np.pi / 2], atol=1e-6)
    r = jnp.float32(1e20)  # the square of r exceeds the largest float32
    for large, expected in zip(geometry.tree.limits(n, r), infinite, strict=True):
        np.testing.assert_allclose(large, expected, atol=1e-6)
    for found, inverse in zip(
        geometry.tree.limits(n, 2.5), geometry.tree.limits(n, 0.4), strict=True
    ):
        np.testing.assert_allclose(found, inverse[::-1], rtol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_ratio_does_not_depend_on_the_order_of_samples(depth):
    x = np.array([-3.0, -1.5, 0.25, 2.0, 7.0])
    sorted_ratio = limit_ratio(jnp.asarray(x), depth=depth)
    for order in ([4, 0, 2, 1, 3], [2, 4, 3, 0, 1]):
        np.testing.assert_allclose(limit_ratio(jnp.asarray(x[order]), depth=depth), sorted_ratio)
