import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
from geometry.odd_points import (
    OddState,
    _stability,
    cluster_growth,
    cluster_spread,
    odd_stability,
    odd_state,
    spread_distribution,
    symmetric_stability,
)

RELU = (jax.nn.relu, (0.0,))


def gram_of(n, state):
    g = np.full((n, n), math.cos(state.spread))
    g[0, :] = g[:, 0] = state.norm_ratio * math.cos(state.angle)
    np.fill_diagonal(g, 1)
    g[0, 0] = state.norm_ratio**2
    return g


def growths_of_the_whole_batch(layer, g):
    """The absolute eigenvalues of the derivative of `layer` at the Gram matrix `g`."""
    n = len(g)
    rows, columns = np.triu_indices(n)

    def of_entries(entries):
        gram = jnp.zeros((n, n)).at[rows, columns].set(entries).at[columns, rows].set(entries)
        return layer(gram)[rows, columns]

    jacobian = jax.jit(jax.jacfwd(of_entries))(jnp.asarray(g[rows, columns]))
    return np.sort(np.abs(np.linalg.eigvals(np.asarray(jacobian))))


def growths_of_relu(g):
    """The growths for ReLU at `g` scaled to trace 1, because ReLU layers keep the batch's scale."""

    def layer(gram):
        after = geometry.mean_field_step(gram)
        return after / jnp.trace(after)

    return growths_of_the_whole_batch(layer, g / np.trace(g))


def growths_of(found, n):
    """The growth in a layer of each deviation of the Gram matrix of n samples, in ascending order.

    If only the scale of the batch changes, the growth is 0.
    """
    pairs = [found.pairs] * ((n - 1) * (n - 4) // 2)
    return np.sort([*found.family, 0, *found.single * (n - 2), *pairs])


def test_the_odd_state_of_relu_and_its_radius_are_those_of_the_whole_batch():
    found = odd_stability(8, *RELU)
    assert found is not None
    np.testing.assert_allclose(found.state, odd_state(8), rtol=1e-10)
    whole = growths_of_relu(gram_of(8, odd_state(8)))
    np.testing.assert_allclose(growths_of(found, 8), whole, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found.radius, whole[-1], rtol=1e-8)
    assert found.radius < 1  # a radius below 1 means that the odd state is stable


def test_the_symmetric_batch_of_relu_is_stable():
    found = symmetric_stability(8, *RELU)
    whole = growths_of_relu(gram_of(8, found.state))
    np.testing.assert_allclose(growths_of(found, 8), whole, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found.radius, whole[-1], rtol=1e-7)
    assert found.radius < 1
    assert found.state.norm_ratio == pytest.approx(1)


def polynomial(x):
    return x**2 + x


def kernel_of_polynomial(g, **_):
    """The covariances after the activation `polynomial`, vᵢvⱼ + 2gᵢⱼ² + gᵢⱼ with vᵢ = gᵢᵢ."""
    return jnp.outer(jnp.diagonal(g), jnp.diagonal(g)) + 2 * g**2 + g


def layer_of_polynomial(std, gram):
    h = gram - gram.mean(0)[None] - gram.mean(1)[:, None] + gram.mean()
    return kernel_of_polynomial(std**2 * len(h) / jnp.trace(h) * h)


@pytest.mark.parametrize(
    ("std", "state"), [(0.7, OddState(3.0, 1.4, 0.5)), (1.5, OddState(1.2, 1.75, 1.7))]
)
def test_growths_of_unequal_norms_are_those_of_the_whole_batch(std, state, monkeypatch):
    """For the larger of both `std`, the kernel has a negative slope at the cluster."""
    monkeypatch.setattr(_stability, "activation_kernel", kernel_of_polynomial)
    n, layer, g = 6, partial(layer_of_polynomial, std), gram_of(6, state)
    entries = jnp.asarray([g[0, 0], g[0, 1], 1.0, g[1, 2]])
    # `_programs` stores programs by activation, so the activation must be a new function.
    programs = _stability._programs(lambda x: polynomial(x), ())
    found = _stability._stability(entries, float(n), std, programs)
    np.testing.assert_allclose(found.state, state, rtol=1e-12)
    whole = growths_of_the_whole_batch(layer, g)
    np.testing.assert_allclose(growths_of(found, n), whole, rtol=1e-9, atol=1e-9)
    symmetric = symmetric_stability(n, lambda x: polynomial(x), std=std).state
    after = layer(jnp.eye(n))
    cosines = after / after[0, 0]
    np.testing.assert_allclose(gram_of(n, symmetric), cosines, rtol=1e-12)


@pytest.mark.parametrize("std", [0.7, 0.03])
def test_layers_of_the_whole_batch_do_not_change_the_odd_state(std, monkeypatch):
    """At the smaller `std`, layers reach the odd state too slowly without Newton's method."""
    monkeypatch.setattr(_stability, "activation_kernel", kernel_of_polynomial)
    monkeypatch.setattr(_stability, "cluster_spread", lambda *_, **__: None)
    n, layer = 6, partial(layer_of_polynomial, std)
    found = odd_stability(n, lambda x: polynomial(x), std=std)
    assert found is not None
    g = gram_of(n, found.state)
    after = np.asarray(layer(g))
    np.testing.assert_allclose(after / after[1, 1], g, rtol=1e-9)
    np.testing.assert_allclose(
        found.radius, growths_of_the_whole_batch(layer, after)[-1], rtol=1e-9
    )


def test_relu_has_an_odd_state_from_seven_samples_on():
    assert odd_stability(6, *RELU) is None
    assert odd_stability(7, *RELU) is not None
    # For leaky ReLU, Newton's method does not converge, so no odd state is found.
    assert odd_stability(6, jax.nn.leaky_relu, (0.0,)) is None


def test_the_spread_of_the_cluster_is_that_of_the_expansion():
    for n, error in ((100, 0.015), (1000, 0.0015)):
        found = cluster_spread(n, *RELU)
        assert found is not None
        np.testing.assert_allclose(found, odd_state(n).spread, rtol=error)
    assert cluster_spread(10, jnp.tanh) is None  # only a kink limits the spread; tanh has none
    assert cluster_spread(10, jax.nn.gelu) == 0


@pytest.mark.slow
def test_gelu_collapses_its_cluster_and_tanh_has_no_odd_state():
    found = odd_stability(10, jax.nn.gelu)
    assert found is not None
    assert found.state.spread < 1e-6
    assert found.radius < 1  # The collapsed cluster is stable.
    assert symmetric_stability(10, jax.nn.gelu).radius > 1  # The symmetric state is unstable.
    assert odd_stability(10, jnp.tanh) is None


def test_a_slope_below_zero_changes_the_growth_as_by_hand():
    """Leaky ReLU of slope s has the growth n² (1 + s²)/((1 + s²)((n − 1)² + 1) + 4 s (n − 1))."""
    n, s = 10, 0.1
    growth = n**2 * (1 + s**2) / ((1 + s**2) * ((n - 1) ** 2 + 1) + 4 * s * (n - 1))
    cubic = (1 - s) ** 2 / (1 + s**2) / (3 * np.pi)
    found = cluster_spread(n, lambda x: jax.nn.leaky_relu(x, s), (0.0,))
    assert found is not None
    np.testing.assert_allclose(found, (1 - 1 / growth) / (2 * cubic), rtol=1e-9)
    relu = spread_distribution(n, 10**6, *RELU)
    assert relu is not None
    np.testing.assert_allclose(relu.drift, np.log(cluster_growth(n)) / 2, rtol=1e-4)


def test_the_spread_of_relu_at_finite_width_by_hand():
    """The odd sample's preactivation is −r = −(n − 1) times that of each other sample."""
    n, r, width = 10, 9, 400
    spread = 2 * (1 + 2 / (n - 2)) - 1  # relative variance that one neuron contributes
    distance = 6 * (r**4 + 1) / (r**2 + 1) ** 2 - 1
    both = 2 / (r**2 + 1) - 1
    found, infinite = spread_distribution(n, width, *RELU), np.log(cluster_growth(n)) / 2
    drift = infinite + (distance - spread) / (4 * width)
    noise = (spread + distance - 2 * both) / (4 * width)
    assert found is not None
    np.testing.assert_allclose(found[1:], [2 * drift / noise, drift, noise], rtol=1e-6)
    narrow = cluster_spread(n, *RELU)
    assert narrow is not None
    np.testing.assert_allclose(found.mean, narrow * drift / infinite, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "error"), [(300, 0.25), (1000, 0.12), (3000, 0.06)])
def test_the_spread_at_finite_width_is_the_stationary_random_walk(width, error):
    """Errors are of second order in n/width.

    Simulated ReLU layers have the noise, mean and deviation that `spread_distribution` states.
    """
    n, layers, rng = 30, 4000, np.random.default_rng(0)
    gram, spreads = gram_of(n, odd_state(n)), []
    for _ in range(layers):
        h = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
        values, vectors = np.linalg.eigh(h / np.trace(h) * n)
        root = vectors * np.sqrt(np.maximum(values, 0))
        h = np.maximum(root @ rng.standard_normal((n, width)), 0)
        gram = h @ h.T
        others = gram[1:, 1:]
        mean, inside = np.trace(others) / (n - 1), others.mean()
        squares = 2 * (mean - inside) * (n - 1) / (n - 2)
        distance = gram[0, 0] - 2 * gram[0, 1:].mean() + inside
        spreads.append(n * (squares / distance) ** 0.5)
    expected = spread_distribution(n, width, *RELU)
    assert expected is not None
    found, deviation = np.array(spreads[200:]), expected.mean / expected.shape**0.5
    np.testing.assert_allclose(np.diff(np.log(found)).var(), expected.noise, rtol=error)
    # Two spreads count as independent if 2 n layers lie between them.
    stderr = deviation * (2 * n / layers) ** 0.5
    assert abs(found.mean() - expected.mean) < 4 * stderr + error * expected.mean / 4
    np.testing.assert_allclose(found.std(), deviation, rtol=0.2 + error)


def test_a_cluster_that_collapses_or_grows_has_no_distribution():
    def far_too_wide(x):  # for this function, the expansion gives 198 radians
        return jnp.tanh(x) + 0.2 * jax.nn.relu(x)

    cases: list[tuple[Any, float | None]] = [
        ((jax.nn.gelu,), 0.0),
        ((jnp.tanh,), None),
        ((far_too_wide, (0.0,)), None),
    ]
    for arguments, spread in cases:
        assert cluster_spread(10, *arguments) == spread
        assert spread_distribution(10, 50, *arguments) is None


WITH_ACTIVATION = {
    "odd": partial(odd_stability, 7),
    "symmetric": partial(symmetric_stability, 7),
    "spread": partial(cluster_spread, 7),
    "distribution": partial(spread_distribution, 7, 50),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", WITH_ACTIVATION)
def test_an_activation_maps_each_number_by_itself(function):
    wrong = {
        r"must return an array of shape \(2,\); got \(\)": jnp.sum,
        r"must return an array of shape \(2,\); got NoneType": lambda x: None,
        "must be a function of JAX, such as jnp.tanh": np.tanh,
        "must map each number by itself": jax.nn.softmax,
    }
    for message, activation in wrong.items():
        with pytest.raises((TypeError, ValueError), match=f"^activation {message}"):
            WITH_ACTIVATION[function](activation)


@pytest.mark.usefixtures("unchecked")
def test_impossible_arguments():
    with pytest.raises(ValueError, match=r"n must be at least 5, .*; got 4"):
        odd_stability(4, *RELU)
    with pytest.raises(ValueError, match=r"^std must be positive"):
        odd_stability(8, *RELU, std=-1.0)
    with pytest.raises(ValueError, match="width must be at least 1; got 0"):
        spread_distribution(10, 0, *RELU)
    for width in (2.5, math.nan):
        with pytest.raises(ValueError, match=f"width must be a whole number .*; got {width}"):
            spread_distribution(10, width, *RELU)  # pyright: ignore[reportArgumentType]


def bent(x):
    """A ReLU with a second kink, so that the scale of the preactivations matters."""
    return jax.nn.relu(x) - 0.3 * jax.nn.relu(x - 0.4)


def bent_twice_as_wide(x):
    return bent(2 * x)


@pytest.mark.parametrize(
    "function",
    [
        lambda *of, **o: symmetric_stability(8, *of, **o),
        lambda *of, **o: cluster_spread(40, *of, **o),
        lambda *of, **o: spread_distribution(40, 500, *of, **o),
    ],
    ids=["symmetric", "spread", "distribution"],
)
def test_a_standard_deviation_of_two_is_one_of_an_activation_of_twice_its_input(function):
    found, expected, other = (
        np.array(jax.tree.leaves(part))
        for part in (
            function(bent, (0.0, 0.4), std=2.0),
            function(bent_twice_as_wide, (0.0, 0.2)),
            function(bent, (0.0, 0.4), std=0.3),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert np.abs(found - other).max() > 1e-3


def test_deviations_of_pairs_grow_by_the_slope_of_the_kernel():
    """For any `std`, pairs grow by κ′(ρ)/((1 − 1/n)(1 − κ(ρ))) at ρ = −1/(n − 1)."""
    n, std = 8, 1.7
    kernel = geometry.mean_field.kernel_map(jnp.tanh, std=std)
    rho = -1 / (n - 1)
    found = symmetric_stability(n, jnp.tanh, std=std)
    expected = jax.grad(kernel)(rho) / ((1 - 1 / n) * (1 - kernel(rho)))
    np.testing.assert_allclose(found.pairs, expected, rtol=1e-9)
    np.testing.assert_allclose(math.cos(found.state.spread), kernel(rho), rtol=1e-9)
    for growths in (found.family, found.single):
        assert len(growths) == 3
        assert list(growths) == sorted(growths, reverse=True)
    assert found.radius == max(*found.family, *found.single, found.pairs)
    assert found.family[0] < found.radius


def test_the_spread_is_that_of_the_kinks_as_the_cluster_meets_them():
    """The spread is E f′² (1 − 1/g)/(2 k Σ J² φ(t/σ)), σ = std/√(n − 1), k = √(2π)/(6π).

    Here, g is the growth of the squared spread, J the jump of f′ at the kink t, and φ the normal
    density.
    """
    n, std = 40, 2.0
    x = np.linspace(-9, 9, 2_000_001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    sigma = std / (n - 1) ** 0.5

    def f(x):
        return np.maximum(x, 0) - 0.3 * np.maximum(x - 0.4, 0)

    slope = (sigma * x > 0) - 0.3 * (sigma * x > 0.4)
    squared = (density * slope**2).sum()
    distance = (density * (f(-std * x * (n - 1) ** 0.5) - f(sigma * x)) ** 2).sum()
    growth = n**2 * sigma**2 * squared / distance
    kinks = (1 + 0.3**2 * np.exp(-((0.4 / sigma) ** 2) / 2)) / (6 * np.pi)
    expected = squared * (1 - 1 / growth) / (2 * kinks)
    found = cluster_spread(n, bent, (0.0, 0.4), std=std)
    wide = spread_distribution(n, 10**9, bent, (0.0, 0.4), std=std)
    assert found is not None
    assert wide is not None
    np.testing.assert_allclose([found, wide.mean], expected, rtol=1e-5)
