from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

from geometry import TreeGram, tree_gram
from geometry.tree import neurons, step
from tests.support.gradients import several_keys
from tests.support.jitted import jitted
from tests.support.numpy_programs import evaluated

fast_gram = jax.jit(tree_gram, static_argnums=1)


def numpy_gram(x, depth):
    """`tree_gram`, evaluated in NumPy, because each size and depth takes a second to compile."""
    return evaluated(lambda x: fast_gram(x, depth), x)


def brute_force(x, depth):
    """The Gram matrix and squared distances of 2ᵈᵉᵖᵗʰ neurons for each coordinate, in NumPy."""
    x = np.asarray(x, float).reshape(len(x), -1)
    for _ in range(depth):
        centred = x - x.mean(0)
        x = np.concatenate([np.maximum(centred, 0), np.maximum(-centred, 0)], axis=1)
    return x @ x.T, np.square(x[:, None] - x[None]).sum(-1)


def true_values(tree: TreeGram):
    scale = np.exp(2 * np.float64(tree.log_scale))
    return scale * np.asarray(tree.gram), scale * np.asarray(tree.squared_distances)


def assert_equals_brute_force(x, depth, tolerance=1e-13, gram: Any = fast_gram):
    found = true_values(gram(jnp.asarray(x), depth))
    for got, expected in zip(found, brute_force(x, depth), strict=True):
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=tolerance * max(expected.max(), 1e-300)
        )


@pytest.mark.parametrize(("n", "depth"), [(1, 3), (2, 5), (4, 1), (9, 10)])
def test_equals_brute_force(n, depth):
    rng = np.random.default_rng(n)
    assert_equals_brute_force(rng.normal(size=n), depth, gram=numpy_gram)
    shifted = 1e4 + rng.normal(size=n)
    # The tolerance is 1e-10, because the brute-force sums have rounding errors of this size.
    assert_equals_brute_force(shifted, depth, 1e-10, numpy_gram)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_repeated_values_and_ties_with_the_mean(values):
    assert_equals_brute_force(np.array(values, float), 7)


def test_coordinates_of_any_scale_add():
    x = np.random.default_rng(0).normal(size=(6, 4)) * np.array([1e-3, 1.0, 0.0, 30.0])
    assert_equals_brute_force(x, 8)
    scales = true_values(fast_gram(jnp.asarray(x * 1e100), 8))[0] / brute_force(x, 8)[0].max()
    np.testing.assert_allclose(scales.max(), 1e200, rtol=1e-13)


def test_rational_arithmetic_gives_the_same_at_depth_7():
    row = [Fraction(v, 7) for v in (3, -5, 11, 0, 2, 8)]
    rows = [row]
    for _ in range(7):
        centred = [[v - sum(r) / len(r) for v in r] for r in rows]
        rows = [[max(s * v, Fraction(0)) for v in r] for r in centred for s in (1, -1)]
    exact = [[float(sum(r[i] * r[j] for r in rows)) for j in range(6)] for i in range(6)]
    found, _ = true_values(fast_gram(jnp.asarray([float(v) for v in row]), 7))
    np.testing.assert_allclose(found, exact, rtol=1e-13)


def test_children_by_hand():
    x = jnp.array([0.0, 1.0, 5.0])
    assert step(x[:, None]).T.tolist() == [[0, 0, 3], [2, 1, 0]]
    layer = step(jnp.stack([x, -x], 1))
    assert layer.T.tolist() == [[0, 0, 3], [2, 1, 0], [2, 1, 0], [0, 0, 3]]


def test_the_tree_is_one_lipschitz_and_children_have_disjoint_supports(key):
    x, y = jax.random.normal(key, (2, 8, 5))
    below, above = (np.asarray(jitted(step)(v)) for v in (x, y))
    assert np.linalg.norm(below - above) <= np.linalg.norm(np.asarray(x) - np.asarray(y))
    positive, negative = np.split(below, 2, axis=1)
    assert (positive * negative == 0).all()


def test_clusters_beyond_two_are_conserved(key):
    n = 7

    @jax.jit
    def layers(x):
        return [x := step(x) for _ in range(7)]

    for x in layers(jax.random.normal(key, (n, 1))):
        clusters = np.array([len(np.unique(row)) for row in np.asarray(x).T])
        assert np.sum(clusters - 2) == n - 2


def test_shifts_scales_and_order_of_the_samples(key):
    x = jax.random.normal(key, (7,))
    g, _ = true_values(fast_gram(x, 30))
    np.testing.assert_allclose(
        true_values(fast_gram(x + 2, 30))[0], g, rtol=1e-11, atol=1e-13 * g.max()
    )
    np.testing.assert_allclose(true_values(fast_gram(4 * x, 30))[0], 16 * g, rtol=1e-13)
    np.testing.assert_allclose(true_values(fast_gram(-x, 30))[0], g, rtol=1e-12)
    order = np.random.default_rng(0).permutation(7)
    np.testing.assert_allclose(
        true_values(fast_gram(x[order], 30))[0], g[order][:, order], rtol=1e-13
    )


@pytest.mark.parametrize("n", [3, pytest.param(5, marks=pytest.mark.slow), 16])
def test_theorem_11_and_its_exact_limits(n):
    x = np.sort(np.random.default_rng(n).normal(size=n))
    tree = fast_gram(jnp.asarray(x), 4000)
    g, square = np.asarray(tree.gram), np.asarray(tree.squared_distances)
    assert g[0, -1] == 0  # item 1: the first and the last sample become orthogonal
    inner = slice(1, n - 1)
    largest = np.sqrt(np.maximum.outer(np.diagonal(g), np.diagonal(g)))
    assert (np.sqrt(square) / largest)[inner, inner].max() < 1e-6  # item 2: inner samples merge
    r, m = square[-1, 1] / square[0, 1], (n - 1) ** 2
    norms = np.sqrt(np.diagonal(g))
    ratio, cos = norms[inner, None] / norms[None, [0, -1]], g / norms[:, None] / norms[None]
    expected = [((1 + r) / (m + r)) ** 0.5, ((1 + r) / (1 + m * r)) ** 0.5]
    np.testing.assert_allclose(ratio, np.tile(expected, (n - 2, 1)), rtol=1e-9)
    ends = [r / ((1 + r) * (m + r)) ** 0.5, 1 / ((1 + r) * (1 + m * r)) ** 0.5]
    np.testing.assert_allclose(cos[inner][:, [0, -1]], np.tile(ends, (n - 2, 1)), rtol=1e-9)
    # Items 3 and 4 hold with these constants, which are attained for r = 1.
    assert min(expected) <= (2 / (m + 1)) ** 0.5 + 1e-9
    assert min(ends) <= 1 / (2 * (m + 1)) ** 0.5 + 1e-9


@pytest.mark.parametrize(
    ("n", "ratio", "angle"),
    [(3, 0.632, 71.57), pytest.param(5, 0.343, 80.13, marks=pytest.mark.slow)],
)
def test_symmetric_batches_attain_the_sharp_constants(n, ratio, angle):
    g = fast_gram(jnp.asarray(np.linspace(-1, 1, n) ** 3), 4000).gram
    norms = np.sqrt(np.diagonal(g))
    assert abs(norms[1] / norms[0] - ratio) < 5e-4
    assert abs(np.degrees(np.arccos(g[0, 1] / norms[0] / norms[1])) - angle) < 5e-3


def test_merging_decays_at_the_rate_of_its_split():
    x = jnp.asarray(np.sort(np.random.default_rng(0).normal(size=8)))
    early, late = (fast_gram(x, depth) for depth in (300, 301))

    def part(tree, i, j):
        return float(tree.squared_distances[i, j] / tree.gram[0, 0])

    for i, p in ((1, 2), (2, 3)):  # p samples lie below the gap from x[i] to x[i + 1]
        rate = (p**2 + (8 - p) ** 2) / 8**2 / ((1 + 7**2) / 8**2)
        np.testing.assert_allclose(part(late, i, i + 1) / part(early, i, i + 1), rate, rtol=1e-6)


def test_the_end_with_the_wider_gap_escapes_of_three_points():
    x = jnp.asarray(np.sort(np.random.default_rng(0).normal(size=(50, 3)), axis=1))
    g = jax.jit(jax.vmap(lambda x: tree_gram(x, 300).gram))(x)
    wider_on_top = x[:, 2] - x[:, 1] > x[:, 1] - x[:, 0]
    assert ((g[:, 2, 2] > g[:, 0, 0]) == wider_on_top).all()


def test_a_pair_extreme_in_every_coordinate_obeys_theorem_11():
    x = np.random.default_rng(0).normal(size=(6, 3))
    x[0], x[4] = 4, -4
    g = np.asarray(fast_gram(jnp.asarray(x), 300).gram)
    assert g[0, 4] == 0
    others = [1, 2, 3, 5]
    norms = np.sqrt(np.diagonal(g))
    np.testing.assert_allclose((g / np.outer(norms, norms))[np.ix_(others, others)], 1, atol=1e-12)


@pytest.mark.slow
def test_ten_thousand_layers_in_float32():
    x = np.random.default_rng(0).normal(size=24)
    wide, short = (fast_gram(jnp.asarray(x, dtype), 10_000) for dtype in ("float64", "float32"))
    assert {part.dtype for part in short} == {jnp.dtype("float32")}
    np.testing.assert_allclose(short.gram, wide.gram, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(short.log_scale, wide.log_scale, rtol=1e-6)
    assert 0.1 < wide.gram.max() < 10  # a sum over 2^10000 neurons, divided by its scale


def test_the_scale_of_a_tree_has_all_digits_of_float32():
    """A single sample is not 0; each layer multiplies its squared distance by ((n − 1)² + 1)/n²."""
    n, depth = 100, 20
    tree = numpy_gram(jnp.zeros(n, "float32").at[3].set(7.0), depth)
    expected = 49 * (((n - 1) ** 2 + 1) / n**2) ** depth
    np.testing.assert_allclose(true_values(tree)[1][3, 0], expected, rtol=3e-6)


def test_constant_samples_vanish():
    tree = numpy_gram(jnp.full(9, 3.0), 10)
    assert (tree.gram == 0).all()
    assert (tree.squared_distances == 0).all()
    assert tree.log_scale == 0


def test_depth_0_is_the_batch_itself():
    tree = tree_gram(jnp.array([1.0, 4.0]), 0)
    assert tree.gram.tolist() == [[1, 4], [4, 16]]
    assert tree.squared_distances.tolist() == [[0, 9], [9, 0]]
    assert tree.log_scale == 0


def test_bfloat16_is_promoted_to_float32():
    x = jnp.arange(4.0).astype(jnp.bfloat16)
    assert jax.eval_shape(lambda x: tree_gram(x, 3), x).gram.dtype == jnp.float32


def test_vmap_equals_one_at_a_time(key):
    x = jax.random.normal(key, (3, 5))
    many = jax.jit(jax.vmap(lambda x: tree_gram(x, 20)))(x)
    for i in range(3):
        one = fast_gram(x[i], 20)
        assert many.log_scale[i] == one.log_scale
        np.testing.assert_allclose(many.gram[i], one.gram, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(many.squared_distances[i], one.squared_distances, atol=1e-15)


def test_both_sums_over_slots_are_matrix_products():
    # For 1,400 samples in float32 on a CPU, the squared distances take 0.4 seconds as products of
    # vectors and matrices, and 8 seconds as sums along the first axis of matrices.
    program = str(jax.make_jaxpr(lambda x: tree_gram(x, 1))(jnp.arange(5.0)))
    assert program.count("dot_general") == 2


@several_keys
def test_gradients(key):
    x = jax.random.normal(key, (5,))

    def true_gram(x):
        tree = tree_gram(x, 4)
        return jnp.exp(2 * tree.log_scale) * tree.gram

    check_grads(jax.jit(true_gram), (x,), order=1, modes=["rev"])


def test_gradients_are_finite_at_ties():
    x = jnp.array([0.0, 1.0, 2.0, 2.0])
    assert np.isfinite(evaluated(jax.jacobian(lambda x: tree_gram(x, 4).gram), x)).all()


@pytest.mark.parametrize("values", [[0, 0, 0, 1, 3], [0, 1, 1, 2, 5, 5]])
def test_gradients_of_samples_that_coincide_have_the_right_sum(values):
    x = jnp.array(values, float)[::-1] + 0.1
    weight = np.random.default_rng(2).normal(size=(len(x), len(x)))

    def from_tree(x):
        tree = tree_gram(x, 2)
        return jnp.exp(2 * tree.log_scale) * jnp.sum(weight * tree.gram)

    def from_neurons(x):
        y = neurons(x, depth=2)
        return jnp.sum(weight * (y @ y.T))

    found, expected = (evaluated(jax.grad(f), x) for f in (from_tree, from_neurons))
    for value in set(values):
        same = np.asarray(values)[::-1] == value
        np.testing.assert_allclose(found[same].sum(), expected[same].sum(), atol=1e-13)


def test_negative_depths_are_refused():
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        tree_gram(jnp.zeros(3), -1)


@pytest.mark.parametrize(
    ("n", "depth"),
    [
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(3, 9), (2, 14), (5, 14)]),
        (16, 14),
    ],
)
def test_equals_brute_force_at_greater_depth(n, depth):
    assert_equals_brute_force(np.random.default_rng(n).normal(size=n), depth)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_the_tree_itself_has_the_gram_matrix(depth, key):
    x = jax.random.normal(key, (6, 2))
    expected, _ = brute_force(x, depth)
    wide = np.asarray(jitted(neurons)(x, depth=depth))
    assert wide.shape == (6, 2 * 2**depth)
    np.testing.assert_allclose(wide @ wide.T, expected, atol=1e-13)


@pytest.mark.slow
def test_a_batch_of_trees_is_one_call(key):
    x = jax.random.normal(key, (256, 6), jnp.float32)
    trees = jax.jit(jax.vmap(lambda x: tree_gram(x, 100)))(x)
    one = fast_gram(x[200], 100)
    np.testing.assert_allclose(trees.gram[200], one.gram, atol=1e-6)
    np.testing.assert_allclose(trees.log_scale[200], one.log_scale, rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("coordinates", "depth"), [(2**16, 14), (1, 30)])
def test_the_neurons_of_all_coordinates_are_limited_together(coordinates, depth):
    x = jax.ShapeDtypeStruct((2, coordinates), "float32")
    with pytest.raises(ValueError, match=f"x has {2 * coordinates} and depth is {depth}"):
        jax.eval_shape(partial(neurons, depth=depth), x)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("call", [neurons, tree_gram])
def test_what_is_no_batch_is_refused(call):
    with pytest.raises(ValueError, match=r"\(samples, features\); got \(2, 2, 2\)"):
        call(jnp.zeros((2, 2, 2)), depth=3)
    with pytest.raises(ValueError, match="must be finite; 1 of 3 elements are not"):
        call(jnp.array([0.0, jnp.nan, 1.0]), depth=3)
    with pytest.raises(ValueError, match="must not be negative; got -2"):
        call(jnp.zeros(3), depth=-2)


@pytest.mark.usefixtures("unchecked")
def test_too_deep_trees_are_refused_before_they_fill_the_memory():
    x = jnp.array([0.0, 1.0, 5.0])
    for depth in (29, 40, 10**6):
        with pytest.raises(ValueError, match=rf"at most 2\*\*30 .* depth is {depth}: .* tree_gram"):
            neurons(x, depth=depth)
    half: Any = 2.5
    for function in (partial(neurons, x), partial(tree_gram, x)):
        with pytest.raises(ValueError, match=r"^depth must be a whole number .*; got 2\.5$"):
            function(depth=half)
