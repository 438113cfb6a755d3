"""Every bound, compared with the exact distance of many pairs; counterexamples of false bounds."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import jaxnorm
from jaxnorm.shift import (
    clipped_power,
    emd,
    emd_1d,
    emd_lower_bound,
    emd_sliced,
    interpolated_upper_bound,
    interpolation_counterexample,
    mean_lower_bound,
    moment_lower_bound,
    moment_upper_bound,
    normalized_lower_bound,
    normalized_upper_bound,
    paired_upper_bound,
    sharp_moment_upper_bound,
    sharp_unitized_upper_bound,
    unitized_upper_bound,
)
from tests.support.numpy_layers import assert_rounded_once

DIMS, PAIRS, N = (1, 3, 16, 64), 250, 12
POWERS = [(p, radius) for p in (1, 2, 3, 4, 5) for radius in (0.5, 5.0)]
ALPHAS = {
    "0": lambda d: 0.0,
    "0.3": lambda d: 0.3,
    "1": lambda d: 1.0,
    "from 0 to 1": lambda d: np.linspace(0, 1, d),
    "from 0.2 to 1": lambda d: np.linspace(1, 0.2, d),
}


@cache
def pairs(dims):
    """`PAIRS` pairs of samples with their distances, from five kinds, at scales 0.01 to 100."""
    rng = np.random.default_rng(dims)
    shape = (N, dims)

    def draw(kind):
        scale, place = 10 ** rng.uniform(-2, 2), rng.normal(size=dims) * rng.choice([0, 1, 10])
        samples = {
            "gaussian": lambda: rng.normal(size=shape),
            "uniform": lambda: rng.uniform(-1, 1, shape),
            "heavy-tailed": lambda: rng.standard_t(1.5, shape),
            "discrete": lambda: rng.integers(-1, 2, shape).astype(float),
            "point masses": lambda: np.broadcast_to(rng.choice([0.0, 1.0], (1, dims)), shape),
        }[kind]()
        return scale * (samples + place * rng.integers(0, 2))

    kinds = ("gaussian", "uniform", "heavy-tailed", "discrete", "point masses")
    x, y = (np.stack([draw(rng.choice(kinds)) for _ in range(PAIRS)]) for _ in range(2))
    return x, y, exact(x, y)


def exact(x, y):
    costs = [cdist(a, b) for a, b in zip(x, y, strict=True)]
    return np.array([cost[linear_sum_assignment(cost)].mean() for cost in costs])


def below(lower, upper):
    """Assert that lower ≤ upper, up to rounding, in all cases."""
    lower, upper = np.asarray(lower), np.asarray(upper)
    assert np.isfinite(lower).all()
    excess = lower - upper * (1 + 1e-12)
    assert (excess <= 1e-12).all(), f"exceeded in {np.sum(excess > 1e-12)} cases"


@jax.jit
@jax.vmap
def from_samples(x, y):
    moments = x.mean(0), x.var(0), y.mean(0), y.var(0)
    sliced = emd_sliced(jax.random.key(0), x, y, projections=16)
    return {
        "lower": [
            mean_lower_bound(moments[0], moments[2]),
            emd_1d(x, y).max(),
            sliced.largest,
            *(moment_lower_bound(x, y, p=p, radius=radius) for p, radius in POWERS),
            normalized_lower_bound(
                moments[0],
                moments[1] - 1,
                moments[2],
                moments[3] - 1,
                radius=jnp.maximum(jnp.maximum(jnp.abs(x).max(), jnp.abs(y).max()), 1e-3),
            ),
        ],
        "upper": [
            paired_upper_bound(x, y),
            sharp_moment_upper_bound(*moments),
            moment_upper_bound(*moments),
            normalized_upper_bound(moments[0], moments[1] - 1, moments[2], moments[3] - 1),
        ],
    }


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.usefixtures("unchecked")
def test_bounds_from_samples_enclose_the_distance(dims):
    x, y, distance = pairs(dims)
    found = from_samples(x, y)
    for lower in found["lower"]:
        below(lower, distance)
    for upper in found["upper"]:
        below(distance, upper)
    below(found["upper"][1], found["upper"][2])


@jax.jit
def unitized(alpha, x, y):
    """The outputs of Equations 9 and 10 for both samples, and the bounds on their distances."""

    def bounds(x, y):
        stated = (unitized_upper_bound, sharp_unitized_upper_bound, interpolated_upper_bound)
        return [bound(alpha, x, y) for bound in stated]

    layers = (jaxnorm.unitize_bounded, partial(jaxnorm.unitize, eps=1e-5))
    return [[layer(part, alpha) for part in (x, y)] for layer in layers], jax.vmap(bounds)(x, y)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.usefixtures("unchecked")
def test_unitized_outputs_lie_within_their_bounds(dims, alpha):
    x, y, _ = pairs(dims)
    (bounded, free), (printed, sharp, upper) = unitized(jnp.asarray(ALPHAS[alpha](dims)), x, y)
    below(exact(*bounded), sharp)
    below(sharp, printed)
    below(exact(*free), upper)


def test_an_alpha_of_zero_for_one_feature_needs_the_two():
    # For alpha = (0, 1) and points (0, ±δ), the distance is 2 for every δ, but E‖X‖ + E‖Y‖ = 2δ.
    alpha, x = jnp.array([0.0, 1.0]), jnp.array([[0.0, 1e-3]])
    distance = emd(jaxnorm.unitize_bounded(x, alpha), jaxnorm.unitize_bounded(-x, alpha))
    np.testing.assert_allclose(distance, 2, rtol=1e-12)
    np.testing.assert_allclose(unitized_upper_bound(alpha, x, -x), 2.002, rtol=1e-12)


def test_theorem_3_1_is_attained_and_3_2_in_the_limit():
    x = jnp.array([[1e6, 0.0]])
    opposite = emd(jaxnorm.unit_vector(x), jaxnorm.unit_vector(-x))
    np.testing.assert_allclose(opposite, unitized_upper_bound(jnp.ones(())), rtol=1e-12)
    half = jnp.array(0.5)
    distance = emd(jaxnorm.unitize_bounded(x, half), jaxnorm.unitize_bounded(-x, half))
    np.testing.assert_allclose(distance, unitized_upper_bound(half), rtol=1e-5)


def test_the_bound_of_equation_10_is_the_sum_of_mean_norms_of_outputs():
    """For opposite points on one axis, the bound equals the distance, also for norms below 1."""
    x, alpha = jnp.array([[0.1, 0.0], [4.0, 0.0]]), 0.3
    expected = 2 * np.mean(0.3 + 0.7 * np.array([0.1, 4.0]))
    np.testing.assert_allclose(interpolated_upper_bound(alpha, x, -x), expected, rtol=1e-12)


def test_without_samples_alpha_zero_has_no_bound_and_outside_there_is_none():
    assert unitized_upper_bound(jnp.zeros(3)) == jnp.inf
    x = jnp.ones((1, 2))
    for alpha in (jnp.array(1.5), jnp.array([0.5, -0.1])):
        assert jnp.isnan(unitized_upper_bound(alpha, x, x))
        assert jnp.isnan(sharp_unitized_upper_bound(alpha, x, x))
        assert jnp.isnan(interpolated_upper_bound(alpha, x, x))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_equation_10_exceeds_the_bound_of_the_theorems(alpha):
    limit = (1 + alpha) / alpha
    for length in (1.01 * limit, 100 * limit):
        x, y, stated = interpolation_counterexample(alpha, length=length, dims=3)
        np.testing.assert_allclose(x, [[length, 0, 0]], rtol=1e-12)
        np.testing.assert_array_equal(y, -x)
        distance = emd(*(jaxnorm.unitize(part, alpha, eps=0.0) for part in (x, y)))
        np.testing.assert_allclose(distance, stated, rtol=1e-12)
        assert distance > unitized_upper_bound(jnp.array(alpha))


def test_batch_norm_before_equation_10_does_not_save_the_bound():
    # The samples ±(1, ..., 1) and ±(1, −1, 1, ...) have zero means, unit variances and distance
    # √(2d).
    x = jnp.stack([jnp.ones(64), -jnp.ones(64)])
    y = x * jnp.tile(jnp.array([1.0, -1.0]), 32)[None]
    np.testing.assert_allclose(emd(x, y), 128**0.5, rtol=1e-12)
    found = emd(*(jaxnorm.unitize(part, 0.5, eps=0.0) for part in (x, y)))
    np.testing.assert_allclose(found, 2**0.5 * (0.5 + 0.5 * 8), rtol=1e-12)
    assert found > unitized_upper_bound(jnp.array(0.5))
    zero = jnp.zeros(64)
    assert normalized_upper_bound(zero, zero, zero, zero) == 130


def test_equation_5_fails_where_outputs_exceed_its_radius():
    rng = np.random.default_rng(0)
    x, y = rng.standard_t(2.2, (500, 30, 1)), rng.normal(0, 0.1, (500, 30, 1))

    @jax.jit
    @jax.vmap
    def bound(x, y):
        return normalized_lower_bound(x.mean(0), x.var(0) - 1, y.mean(0), y.var(0) - 1, radius=1.0)

    stated = bound(x, y)
    assert np.mean(np.asarray(stated) > exact(x, y)) > 0.5


def test_bounds_from_moments_by_hand():
    """The variances sum to 1 + 2 = 3 and 3 + 4 = 7, and the means have the distance 5."""
    mean_x, var_x, mean_y, var_y = jnp.array([[3.0, 4.0], [1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    moments = mean_x, var_x, mean_y, var_y
    np.testing.assert_allclose(moment_upper_bound(*moments), 3 + 7 + 5 + 2)
    np.testing.assert_allclose(sharp_moment_upper_bound(*moments), (3 + 7 + 25) ** 0.5)
    np.testing.assert_allclose(normalized_upper_bound(*moments), 3 + 7 + 4 + 5 + 2)
    expected = abs(9 + 16 + 3 - 7) / (2 * 6 * 2**0.5)
    np.testing.assert_allclose(normalized_lower_bound(*moments, radius=6.0), expected)
    zero = jnp.zeros(2)
    unlike = normalized_lower_bound(
        jnp.array([3.0, 0.0]), zero, jnp.array([0.0, 5.0]), zero, radius=6.0
    )
    np.testing.assert_allclose(unlike, abs(9 - 25) / (2 * 6 * 2**0.5))
    np.testing.assert_allclose(mean_lower_bound(mean_x, mean_y), 5)
    # For p = 3, the bound uses the test function 5 Σ (x/5)³/(3√2).
    x = jnp.stack([mean_x, mean_y])
    np.testing.assert_allclose(
        moment_lower_bound(x, x[1:], radius=5.0, p=3), (0.6**3 + 0.8**3) * 5 / (6 * 2**0.5)
    )
    np.testing.assert_allclose(moment_lower_bound(x[1:], x, radius=5.0), 5 / (4 * 2**0.5))


@pytest.mark.parametrize("unit", [1e-30, 1e-18, 1e18, 1e30])
def test_bounds_of_two_points_in_any_unit_are_their_distance(unit):
    zero, mean = jnp.zeros(2, "float32"), jnp.array([3.0, -4.0], "float32") * unit
    for found in (
        mean_lower_bound(mean, zero),
        sharp_moment_upper_bound(mean, zero, zero, zero),
        paired_upper_bound(mean[None], zero[None]),
    ):
        np.testing.assert_allclose(found / np.float32(unit), 5, rtol=1e-5)
    found = clipped_power(mean, radius=4 * unit)  # by hand: (0.75² + 1) · 4 / (2√2)
    np.testing.assert_allclose(found / np.float32(unit), 1.5625 * 2**0.5, rtol=1e-5)


@pytest.mark.parametrize(("mean", "var"), [(1e-30, 5.0), (0.0, 2e38), (1e30, 5.0), (1e19, 2e38)])
def test_means_and_variances_of_unlike_units_overflow_no_bound(mean, var):
    """The sum of all variances, or the square of a mean or of a variance, overflows float32."""
    mean_x, var_x = jnp.full(3, mean, "float32"), jnp.full(3, var, "float32")
    found = sharp_moment_upper_bound(mean_x, var_x, 0 * mean_x, var_x / 2)
    np.testing.assert_allclose(found, (4.5 * var + 3 * mean**2) ** 0.5, rtol=1e-6)


@pytest.mark.parametrize("place", range(4))
def test_bounds_of_a_moment_that_is_nan_are_nan(place):
    moments = [jnp.array([3.0, 4.0])] * 4
    moments[place] = jnp.array([jnp.nan, 4.0])
    for bound in (
        moment_upper_bound,
        sharp_moment_upper_bound,
        normalized_upper_bound,
        partial(normalized_lower_bound, radius=6.0),
    ):
        assert jnp.isnan(bound(*moments))
    assert jnp.isnan(mean_lower_bound(*moments[::2])) == (place in (0, 2))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bounds_of_half_precision_inputs_are_those_of_float64(dtype):
    rng = np.random.default_rng(7)
    x = jnp.asarray(rng.normal(3, 2, (9, 4)), dtype)
    y = jnp.asarray(np.asarray(x, float) + rng.normal(0.1, 0.02, (9, 4)), dtype)
    mean_x, var_x, mean_y, var_y = (jnp.asarray(a, dtype) for a in rng.uniform(1, 4, (4, 4)))
    vectors = mean_x, var_x, mean_y, var_y
    a, b, m, v, n, w = (np.asarray(part, float) for part in (x, y, *vectors))
    r, s = (np.linalg.norm(part, axis=1) for part in (a, b))
    f, g = ((np.clip(part, -4, 4) ** 3).sum(1) / (3 * 16 * 2) for part in (a, b))
    apart = np.linalg.norm(m - n)
    pairs = [
        (mean_lower_bound(mean_x, mean_y), apart),
        (moment_upper_bound(*vectors), (v + w).sum() + apart + 2),
        (sharp_moment_upper_bound(*vectors), np.sqrt((v + w).sum() + apart**2)),
        (normalized_upper_bound(*vectors), (2 + v + w).sum() + apart + 2),
        (normalized_lower_bound(*vectors, radius=5.0), abs((m**2 + v - n**2 - w).sum()) / 20),
        (paired_upper_bound(x, y), np.linalg.norm(a - b, axis=1).mean()),
        (moment_lower_bound(x, y, p=3, radius=4.0), abs(f.mean() - g.mean())),
        (unitized_upper_bound(jnp.zeros((), dtype), x, y), (r + s).mean()),
        (sharp_unitized_upper_bound(0.25, x, y), sum((t / (t / 4 + 0.75)).mean() for t in (r, s))),
        (interpolated_upper_bound(0.25, x, y), 0.5 + 0.75 * (r + s).mean()),
    ]
    for found, expected in pairs:
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, expected, rtol=3e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("p", "radius"), [(3, 3.3), (5, 7.7)])
def test_powers_of_half_precision_are_rounded_once(dtype, p, radius):
    x = jnp.asarray(np.random.default_rng(8).normal(3, 2, (40, 16)), dtype)
    powers = (np.clip(np.asarray(x, float), -radius, radius) ** p).sum(1)
    exact = powers / (p * radius ** (p - 1) * 16**0.5)
    assert_rounded_once(clipped_power(x, p=p, radius=radius), exact, dtype, tolerance=1e-6)


def test_bounds_of_unitized_outputs_by_hand():
    """Samples of x have norms 0.5 and 4, the sample of y has norm 2; alpha is 0.5 and 0.25."""
    alpha = jnp.array([0.5, 0.25])
    x, y = jnp.array([[0.3, 0.4], [0.0, -4.0]]), jnp.array([[2.0, 0.0]])
    stated = (unitized_upper_bound, sharp_unitized_upper_bound, interpolated_upper_bound)
    found = jax.jit(lambda alpha: [bound(alpha, x, y) for bound in stated])
    sharp = (0.5 / (0.5 * 0.5 + 0.5) + 4 / (0.25 * 4 + 0.75)) / 2 + 2 / (0.25 * 2 + 0.75)
    upper = (0.5 + 0.5 * 0.5 + 0.25 + 0.75 * 4) / 2 + 0.25 + 0.75 * 2
    np.testing.assert_allclose(found(alpha), [2 / 0.25, sharp, upper])
    norms = (0.5 + 4) / 2 + 2
    np.testing.assert_allclose(found(0.0), norms)
    np.testing.assert_allclose(found(0 * alpha), [norms + 2, norms, norms])
    x, y = x[:, 1:], y[:, :1]  # with one feature, the norms are 0.4 and 4 in x, and 2 in y
    one = jax.jit(lambda alpha: unitized_upper_bound(alpha, x, y))
    np.testing.assert_allclose([one(jnp.zeros(1)), one(0.0)], [(0.4 + 4) / 2 + 4, 4.2])
    a, b, distance = interpolation_counterexample(0.25, length=7.0)
    assert (a.tolist(), b.tolist(), distance) == ([[7.0]], [[-7.0]], 2 * (0.25 + 0.75 * 7))


def test_the_sharp_moment_bound_is_attained():
    # All four distances between points ±0.3 e₁ and points 2 e₃ ± 0.4 e₂ are √(0.3² + 0.4² + 2²).
    x = jnp.array([[0.3, 0, 0], [-0.3, 0, 0]])
    y = jnp.array([[0, 0.4, 2], [0, -0.4, 2]])
    bound = sharp_moment_upper_bound(x.mean(0), x.var(0), y.mean(0), y.var(0))
    np.testing.assert_allclose(emd(x, y), bound, rtol=1e-12)
    np.testing.assert_allclose(bound, 2.0615528128, rtol=1e-10)


@pytest.mark.parametrize("p", range(1, 8))
@pytest.mark.parametrize("radius", [0.5, 2.0])
def test_clipped_powers_have_slope_one_and_no_more(p, radius, key):
    v, w = np.asarray(jax.random.normal(key, (2, 5000, 3))) * 2 * radius
    w = np.concatenate([w, v + 1e-3 * w])
    v = np.concatenate([v, v])
    corner = np.full((1, 3), radius)  # the slope is largest at this corner

    @jax.jit
    def values(x, corners):
        f = partial(clipped_power, p=p, radius=radius)
        return f(x), jax.jacobian(f)(0.999999 * corner), [f(c) for c in corners]

    edges = ((1 + 1e-9) * corner, (1 - 1e-9) * corner)
    found, slope, (outside, inside) = values(np.concatenate([v, w]), edges)
    at_v, at_w = np.split(np.asarray(found), 2)
    assert (abs(at_v - at_w) / np.linalg.norm(v - w, axis=1)).max() <= 1 + 1e-9
    np.testing.assert_allclose(np.linalg.norm(slope), 1, rtol=1e-4)
    assert abs(np.asarray(outside) - np.asarray(inside)).max() < 1e-8


@pytest.mark.parametrize(("p", "times"), [(2, 1), (3, 2), (4, 1)])
def test_the_ceiling_of_theorem_2(p, times):
    far = jnp.full((1, 4), 100.0)
    found = moment_lower_bound(far, -far if p % 2 else 0 * far, p=p, radius=5.0)
    np.testing.assert_allclose(found, times * 2 * 5 / p, rtol=1e-12)


def test_moments_of_the_unbounded_example_exceed_what_the_paper_needs():
    # The distance between uniform samples on [C/2, C] and on [0, C/4] is 5/8 C for every C.
    u = (np.arange(1000) + 0.5) / 1000
    for c in (1.0, 1e3):
        x, y = jnp.asarray(c * (1 + u) / 2), jnp.asarray(c * u / 4)
        np.testing.assert_allclose(emd_1d(x, y), 0.625 * c, rtol=1e-9)
        assert moment_lower_bound(x[:, None], y[:, None], p=2, radius=c) > 3 / 16 * c / 2


def critics(dims, count, steps):
    x, y, distance = (part[:count] for part in pairs(dims))
    keys = jax.random.split(jax.random.key(dims), count)
    bound = partial(emd_lower_bound, steps=steps, batch_size=8)
    return jax.jit(jax.vmap(bound))(keys, x, y, x, y), distance


@pytest.mark.parametrize(
    "dims", [pytest.param(d, marks=[pytest.mark.slow] if d < 64 else []) for d in DIMS]
)
@pytest.mark.usefixtures("unchecked")
def test_no_critic_exceeds_the_distance(dims):
    below(*critics(dims, 25, steps=3))


@pytest.mark.slow
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.usefixtures("unchecked")
def test_no_trained_critic_exceeds_the_distance(dims):
    below(*critics(dims, PAIRS, steps=60))


def test_gradients_are_finite_where_nothing_moved(key):
    x, zero = jax.random.normal(key, (5, 3)), jnp.zeros(3)
    alpha = jnp.array([0.0, 0.5, 1.0])
    for bound, arguments in (
        (paired_upper_bound, (x, x)),
        (mean_lower_bound, (zero, zero)),
        (sharp_moment_upper_bound, (zero, zero, zero, zero)),
        (partial(sharp_unitized_upper_bound, alpha), (0 * x, x)),
        (partial(interpolated_upper_bound, alpha), (0 * x, x)),
        (partial(moment_lower_bound, radius=1.0), (0 * x, x)),
    ):
        for part in jax.jit(jax.grad(bound, tuple(range(len(arguments)))))(*arguments):
            assert np.isfinite(part).all()


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_refused():
    x = jnp.ones((2, 3))
    with pytest.raises(
        ValueError, match=r"alpha must be a scalar or have shape \(3,\); got \(1,\)"
    ):
        interpolated_upper_bound(jnp.full(1, 0.5), x, x)
    with pytest.raises(ValueError, match=r"one feature; got shape \(4, 0\)"):
        paired_upper_bound(jnp.ones((4, 0)), jnp.ones((4, 0)))
    with pytest.raises(ValueError, match="radius must be positive; got 0"):
        moment_lower_bound(x, x, radius=0.0)
    with pytest.raises(ValueError, match="radius must be positive; got -1"):
        normalized_lower_bound(x[0], x[0], x[0], x[0], radius=-1.0)
    with pytest.raises(ValueError, match="p must be at least 1; got 0"):
        clipped_power(x, p=0, radius=1.0)
    with pytest.raises(ValueError, match=r"features on its last axis; got shape \(2, 0\)"):
        clipped_power(jnp.ones((2, 0)), radius=1.0)
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\); got 1"):
        interpolation_counterexample(1.0, length=1.0)
    with pytest.raises(ValueError, match="length must be positive and dims must be at least 1"):
        interpolation_counterexample(0.5, length=1.0, dims=0)
    with pytest.raises(ValueError, match=r"equally many samples, .*; got 2 and 1"):
        paired_upper_bound(x, x[:1])
