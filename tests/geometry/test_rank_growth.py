import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import geometry
from geometry import monte_carlo, rank_tail_bound
from geometry.ranks import full_rank_reachable, mean_rows_bound, rank_tail
from jaxnorm import recenter
from tests.support.jitted import jitted

reachable = jax.jit(full_rank_reachable)
cell_volumes_2d, gamma_2d, full_rank_probability, rows_needed = map(
    jitted,
    (
        *(geometry.cell_volumes_2d, geometry.gamma_2d),
        *(geometry.ranks.full_rank_probability, geometry.ranks.rows_needed),
    ),
)


def circle(n):
    turn = 2 * np.pi * np.arange(n) / n + 0.1
    return jnp.asarray(np.stack([np.cos(turn), np.sin(turn)], 1))


@partial(jax.jit, static_argnames="samples")
def estimate(key, x, samples):
    return monte_carlo(lambda key: rows_needed(key, x, max_rows=400)[0], key, samples)


def mean_rows(key, x, samples=2000):
    found = estimate(key, x, samples)
    return float(found.mean), float(found.stderr)


@pytest.mark.parametrize("theta", [np.pi / 2, 1.0])
def test_mean_rows_of_two_samples_are_exact(theta, key):
    q, s = (np.pi - theta) / (2 * np.pi), theta / (2 * np.pi)
    exact = 1 / (1 - q) + q / (1 - q) ** 2 + 4 * s / (1 - q)
    mean, stderr = mean_rows(key, jnp.array([[1.0, 0.0], [np.cos(theta), np.sin(theta)]]), 4000)
    assert abs(mean - exact) < 5 * stderr
    if theta == np.pi / 2:
        np.testing.assert_allclose(exact, 28 / 9)


@pytest.mark.parametrize(
    ("n", "reference"), [(3, 3.68), pytest.param(5, 5.42, marks=pytest.mark.slow), (9, 9.50)]
)
def test_theorem_3_equally_spaced_points(n, reference, key):
    x = circle(n)
    mean, stderr = mean_rows(key, x)
    assert abs(mean - reference) < 5 * stderr + 0.005
    bound = mean_rows_bound(n, float(gamma_2d(x)))
    # Here γ is 1/(2n), so the paper's bound n/γ would be 2n².
    np.testing.assert_allclose(bound, n**2, rtol=1e-10)
    assert mean < bound


def test_the_first_row_counts_with_probability_one_half(key):
    mean, stderr = mean_rows(key, jnp.ones((1, 3)))
    assert abs(mean - mean_rows_bound(1, 0.5)) < 5 * stderr


def test_rows_needed_is_the_first_number_of_full_rank(key):
    x = jax.random.normal(key, (6, 3))
    rows, rank = rows_needed(jax.random.key(1), x)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), jnp.arange(rows))
    w = np.stack([jax.random.normal(k, (3,)) for k in keys])
    assert int(rank) == np.linalg.matrix_rank(np.maximum(np.asarray(x) @ w.T, 0)) == 6
    assert np.linalg.matrix_rank(np.maximum(np.asarray(x) @ w[:-1].T, 0)) == 5


@pytest.mark.parametrize("max_rows", [1, 7])
def test_no_more_than_max_rows_are_drawn(max_rows, key):
    """Two of the three samples are equal, so no number of neurons gives rank 3."""
    rows, rank = rows_needed(
        key, jnp.array([[1.0, 2.0], [1.0, 2.0], [3.0, 0.5]]), max_rows=max_rows
    )
    assert int(rows) == max_rows
    assert int(rank) < 3


@pytest.mark.parametrize("n", [pytest.param(6, marks=pytest.mark.slow), 8])
def test_rows_of_nearly_parallel_samples_in_float32_count_as_in_float64(n, key):
    x = jnp.ones((n, n), "float32") + 1e-4 * jax.random.normal(jax.random.key(0), (n, n), "float32")
    unit = np.asarray(x, float) / np.linalg.norm(np.asarray(x, float), axis=1, keepdims=True)
    basis, drawn = np.zeros((0, n)), 0
    while len(basis) < n:
        w = jax.random.normal(jax.random.fold_in(key, drawn), (n,), "float32")
        y = np.maximum(unit @ np.asarray(w, float), 0)
        rest = y - basis.T @ np.linalg.lstsq(basis.T, y)[0] if len(basis) else y
        if np.linalg.norm(rest) > 64 * n * np.finfo("float32").eps * np.linalg.norm(y):
            basis = np.vstack([basis, rest / np.linalg.norm(rest)])
        drawn += 1
    rows, rank = rows_needed(key, x)
    assert (rows, rank) == (drawn, n)


def test_lemma_2_holds_with_twice_gamma_and_is_the_frequency_of_random_rows(key):
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(30):
        x, rows = rng.normal(size=(4, 2)), rng.normal(size=(3, 2))
        y = np.maximum(x @ rows.T, 0)
        if np.linalg.matrix_rank(y[:-1]) == np.linalg.matrix_rank(y) == 3:
            cases.append((x, y, float(full_rank_probability(jnp.asarray(x), jnp.asarray(rows)))))
    assert len(cases) > 3
    for x, _, found in cases:
        assert found >= 2 * gamma_2d(jnp.asarray(x)) - 1e-9
    turn = 2 * np.pi * (np.arange(5000) + 0.5) / 5000
    for x, y, found in cases:
        relation = np.linalg.svd(y.T)[2][-1]  # linear relation of the outputs: y.T @ relation is 0
        sums = relation @ np.maximum(x @ [np.cos(turn), np.sin(turn)], 0)
        assert abs(np.mean(np.abs(sums) > 1e-12) - found) <= 2 * len(x) / 5000


def test_under_jit_samples_with_nan_have_no_probability():
    probability = jax.jit(geometry.ranks.full_rank_probability)
    neurons = jnp.array([[1.0, 1.0], [0.5, 1.0]])
    for bad in (jnp.nan, jnp.inf):
        assert jnp.isnan(probability(jnp.array([[1.0, 0.0], [0.0, 1.0], [bad, 1.0]]), neurons))


def test_more_neurons_with_the_same_relation_change_no_probability():
    x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    for neurons in ([[1.0, 1.0]], [[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]]):
        found = geometry.ranks.full_rank_probability(x, jnp.array(neurons))
        np.testing.assert_allclose(found, 0.75, rtol=1e-6)


def test_neurons_must_be_finite():
    x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="neurons must be finite"):
        geometry.ranks.full_rank_probability(x, jnp.array([[1.0, jnp.inf]]))


def test_neurons_that_are_nearly_parallel_determine_the_relation_less_exactly():
    """The probability is s/π, where s = 1.2 is the largest angle between two samples.

    The two given neurons are active for all samples. A third neuron raises the rank only if it is
    active for some samples and not for the others.
    """
    samples, given = np.array([-0.5, 0.1, 0.7]), np.array([0.0, 1e-6])
    x, neurons = (jnp.stack([jnp.cos(a), jnp.sin(a)], 1) for a in (samples, given))
    np.testing.assert_allclose(full_rank_probability(x, neurons), 1.2 / np.pi, rtol=1e-12)


def test_corollary_4_needs_its_hypothesis_on_the_recentred_batch(key):
    line = jnp.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    u, v = np.array([1, 0.3]), np.array([-0.2, 1])
    pairs = np.array([3, 5]) + np.array([u, -u, v, -v, u + v, -u - v])
    for x, rank in ((line, 2), (jnp.asarray(pairs), 5)):
        assert reachable(x)
        assert not reachable(recenter(x))
        rows, found = rows_needed(key, recenter(x), max_rows=5000)
        assert (rows, found) == (5000, rank)


def test_two_recentred_samples_are_opposite_and_need_three_rows(key):
    x = recenter(jax.random.normal(key, (2, 3)))
    assert reachable(x)
    mean, stderr = mean_rows(jax.random.key(1), x, 4000)
    assert abs(mean - 3) < 5 * stderr


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.eye(3), True),
        ([[1, 2], [2, 4]], False),
        ([[1, 0], [0, 0]], False),
        ([[0, 1], [0, 0]], False),
        ([[1, 0], [-1, 0], [0, 2e-20], [0, -2e-20]], True),
        ([[1, 0], [-1, 0], [0, 2], [0, -2], [1, 1], [-1, -1]], False),
        ([[1, 0], [-1, 0], [0, 2], [0, -2], [1, 1]], True),
    ],
)
def test_when_full_rank_can_be_reached(x, expected, key):
    x = jnp.asarray(x, float)
    assert reachable(x) == expected
    _, rank = rows_needed(key, x, max_rows=300)
    assert (rank == len(x)) == expected


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_resolves_angles_as_single_precision(dtype):
    assert reachable(jnp.array([[1.0, 0.0], [1.0, 2.0**-9]], dtype))


def test_7a_is_below_the_exact_tail_and_above_7b():
    for n in (1, 3, 8):
        for gamma in (1e-9, 0.01, 0.1, 0.25):
            for alpha in (1.01, 1.5, 2.5, 4.0):
                a, b = rank_tail_bound(n, alpha, gamma), rank_tail_bound(n, alpha, 0.0)
                assert b - 1e-12 <= a <= 1
                # Chernoff's exponent is `rows` times the relative entropy of γ/α to γ.
                p, rows = gamma / alpha, alpha * n / gamma
                entropy = -p * np.log(alpha) + (1 - p) * (np.log1p(-p) - np.log1p(-gamma))
                np.testing.assert_allclose(1 - a, np.exp(-rows * entropy), rtol=1e-5)
                if gamma > 1e-3:
                    exact = rank_tail(n, gamma, int(rows))
                    assert a <= exact
                    np.testing.assert_allclose(exact, 1 - binom.cdf(n - 1, int(rows), gamma))
                    assert exact <= rank_tail(n, 2 * gamma, int(rows))


def test_theorem_3_the_tail_holds_of_random_rows(key):
    x = circle(3)
    rows = jax.jit(jax.vmap(lambda k: rows_needed(k, x)[0]))(jax.random.split(key, 2000))
    for count in (4, 6, 10):
        assert np.mean(rows <= count) >= rank_tail(3, 2 / 6, count) - 5 * 0.5 / 2000**0.5


def test_opposite_cells_break_one_relation_alike():
    # The two samples have the output 1, so the outputs have the linear relation y₁ − y₂ = 0. A new
    # random neuron breaks the relation unless the neuron is active for no sample.
    x = jnp.eye(2)
    found = full_rank_probability(x, jnp.ones((1, 2)))
    np.testing.assert_allclose(found, 1 - cell_volumes_2d(x)[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(rank_tail_bound, 3, 1.0, 0.1), "alpha must be above 1 and finite; got 1.0"),
        (partial(rank_tail_bound, 3, math.inf, 0.1), "alpha must be above 1 and finite; got inf"),
        (partial(rank_tail_bound, 3, 2.0, -0.1), r"gamma must lie in \[0, 0\.5\]; got -0.1"),
        (partial(mean_rows_bound, 0, 0.1), "n must be at least 1; got 0"),
        (partial(mean_rows_bound, 3, 0.7), r"gamma must lie in \[0, 0\.5\]; got 0.7"),
        (partial(rank_tail, 0, 0.1, 5), "n must be at least 1; got 0"),
        (partial(rank_tail, 3, 1.1, 5), r"gamma must lie in \[0, 1\.0\]; got 1.1"),
        (partial(rank_tail_bound, 0, 2.0, 0.1), "n must be at least 1; got 0"),
        (partial(rank_tail_bound, 3, 2.0, 0.7), r"gamma must lie in \[0, 0\.5\]; got 0.7"),
        (partial(mean_rows_bound, 3, 0.0), "gamma must be positive; got 0"),
        (partial(rank_tail, 3, 0.1, 0), "rows must be at least 1; got 0"),
        (partial(full_rank_probability, jnp.ones((1, 2)), jnp.ones((1, 2))), "at least 2 samples"),
    ],
)
def test_impossible_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_limits_of_gamma_are_allowed():
    """At γ = 0.7: P(2 or 3 of 3 trials succeed); at γ = ½ and α = 2: Equation 7a by hand."""
    np.testing.assert_allclose(rank_tail(2, 0.7, 3), 3 * 0.7**2 * 0.3 + 0.7**3, rtol=1e-12)
    assert rank_tail(3, 1.0, 3) == 1
    assert rank_tail(3, 0.9, 2) == 0
    assert mean_rows_bound(4, 0.5) == 4
    found = rank_tail_bound(3, 2.0, 0.5)
    np.testing.assert_allclose(found, 1 - np.exp(-3 * (3 * np.log(3) - 4 * np.log(2))), rtol=1e-12)


@pytest.mark.parametrize(("angle", "expected"), [(1e-13, True), (4e-15, False)])
def test_an_angle_below_64_roundings_counts_as_zero(angle, expected):
    """The angle is between two samples, or between a sample and the negative of another sample."""
    assert reachable(jnp.array([[2.0, 0.0], [3.0, 3 * angle]])) == expected
    near = jnp.array([[2.0, 0.0, 0.0], [-3.0, 3 * angle, 0.0], [0, 1, 0], [0, -1, 0], [1, 1, 0]])
    three = jnp.concatenate([near, -near[-1:]])
    assert reachable(three) == expected


def test_no_rows_are_refused(key):
    with pytest.raises(ValueError, match=r"max_rows must be below 2\*\*31"):
        rows_needed(key, jnp.eye(2), max_rows=2**31)
    with pytest.raises(ValueError, match="max_rows must be at least 1; got 0"):
        rows_needed(key, jnp.eye(2), max_rows=0)


@pytest.mark.parametrize("unit", [1e-30, 1e-20, 1e-15, 1e20, 1e30])
def test_the_probability_of_full_rank_has_no_unit(unit):
    x = jnp.array([[1.1, 0.9], [0.4, 1.3], [1.7, -0.2]], "float32")
    w = jnp.array([[1.0, 0.3], [0.2, 1.0]], "float32")
    expected = full_rank_probability(x, w)
    np.testing.assert_allclose(full_rank_probability(x * unit, w), expected, rtol=1e-4)
