import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from geometry import mean_field_step
from geometry.odd_points import (
    cluster_growth,
    escape_ratio,
    escape_step,
    odd_state,
    recentred_angle,
)

step = jax.jit(mean_field_step)


def batch(n, norm_ratio, angle, spread):
    """The Gram matrix of an odd sample and n − 1 exchangeable samples of norm 1."""
    g = np.full((n, n), math.cos(spread))
    g[0, :] = g[:, 0] = norm_ratio * math.cos(angle)
    np.fill_diagonal(g, 1)
    g[0, 0] = norm_ratio**2
    return jnp.asarray(g)


@pytest.mark.parametrize(
    ("n", "ratio", "spread", "angle"),
    [
        (7, 3.85, 61.4, 86.2),
        (10, 7.41, 45.2, 88.7),
        (20, 18.08, 24.5, 89.8),
        (30, 28.35, 16.87, 89.94),
        (50, 48.6, 10.38, 89.99),
        (100, 98.8, 5.29, 90.00),
        (1000, 999.0, 0.539, 90.0),
    ],
)
def test_the_odd_state_has_the_reference_values_and_is_a_fixed_point(n, ratio, spread, angle):
    state = odd_state(n)
    assert abs(state.norm_ratio - ratio) < 0.051
    assert abs(math.degrees(state.spread) - spread) < 0.051
    assert abs(math.degrees(state.angle) - angle) < 0.051
    g = batch(n, *state)
    np.testing.assert_allclose((after := step(g)) / after[1, 1], g, rtol=1e-8, atol=1e-9)


def test_the_spread_tends_to_3_pi_over_n():
    assert abs(odd_state(10_000).spread * 10_000 / (3 * math.pi) - 1) < 1e-3


def test_symmetric_angles_are_the_reference_values():
    table = {3: 83.74, 5: 78.27, 10: 74.65, 20: 73.00, 100: 71.74, math.inf: 71.44}
    for n, degrees in table.items():
        assert abs(math.degrees(recentred_angle(n)) - degrees) < 5e-3
    assert recentred_angle(2) == math.pi / 2
    assert recentred_angle(math.inf) == math.acos(1 / math.pi)
    assert round(math.degrees(recentred_angle(9))) == 75  # the paper's 75° is right only for n = 9
    g = step(step(jnp.eye(10)))
    np.testing.assert_allclose(np.arccos(g[0, 1] / g[0, 0]), recentred_angle(10), rtol=1e-12)


@pytest.mark.parametrize(
    ("n", "ratio"),
    [(10, 1.220), (20, 1.076), (30, 1.0456), pytest.param(100, 1.0120, marks=pytest.mark.slow)],
)
def test_the_escape_ratio_has_the_reference_values_and_parts_two_fates(n, ratio):
    found = escape_ratio(n)
    assert abs(found - ratio) < 0.03 * (ratio - 1)
    layers = 400 * n
    near = 0.0012 if n == 10 else 0.05
    for factor, escapes in ((1 - near, False), (1 + near, True)):
        start = 1 + factor * (found - 1)
        angle = recentred_angle(n)

        def rescaled(_, g):
            g = mean_field_step(g)
            return g / g[1, 1]

        run = jax.jit(lambda g, f=rescaled: jax.lax.fori_loop(0, layers, f, g))
        last = float(run(batch(n, start, angle, angle))[0, 0]) ** 0.5
        assert (last > 2) == escapes


def test_the_law_of_escape_is_that_of_very_many_samples():
    n = 2000
    angle = recentred_angle(n)
    for ratio in (0.5, 1.5, 3.0):
        g = step(batch(n, ratio, angle, angle))
        np.testing.assert_allclose(float(g[0, 0] / g[1, 1]) ** 0.5, escape_step(ratio), rtol=5e-3)
    assert abs((escape_step(1e9) / 1e9) ** 2 - 1.467) < 5e-4


def test_growth_of_the_cluster():
    assert cluster_growth(2) == 2
    assert abs(cluster_growth(1000) - 1 - 2 / 1000) < 1e-5


def test_impossible_sizes():
    for call, n, message in (
        (recentred_angle, 1.99, "at least 2, because an angle needs two samples; got 1.99"),
        (recentred_angle, math.nan, "at least 2, because an angle needs two samples; got nan"),
        (cluster_growth, 1, "at least 2, one sample in the cluster .*; got 1"),
        (odd_state, 6, "at least 7, because smaller batches have no odd state; got 6"),
        (escape_ratio, 6, "at least 7, because smaller batches have no odd state; got 6"),
        (escape_step, -0.5, "norm_ratio must lie in .*; got -0.5"),
        (escape_step, math.inf, "norm_ratio must be finite; got inf"),
    ):
        with pytest.raises(ValueError, match=message):
            call(n)  # pyright: ignore[reportArgumentType]
    assert escape_step(0.0) == 1 / math.sqrt(math.pi - 1)


@pytest.mark.parametrize("n", [500, 1000])
def test_the_escape_ratio_of_many_samples_tends_to_one(n):
    """As the docstring says, the escape ratio minus 1 tends to 1.14/n."""
    assert abs((escape_ratio(n) - 1) * n - 1.14) < 6 / n + 0.005
