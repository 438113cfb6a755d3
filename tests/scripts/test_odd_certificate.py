"""Certificates of odd states, compared with results in double precision by independent code."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from experiments.measures.activation_states import ACTIVATIONS
from experiments.measures.odd_certificate import (
    DIGITS,
    certificate,
    opposite_or_equal,
    piecewise_linear,
    smooth_functions,
)
from geometry.odd_points import OddState, odd_stability


@pytest.mark.parametrize(
    ("name", "n"),
    [("ReLU", 7), ("ReLU", 30), ("leaky ReLU, slope 0.1", 12), ("absolute value", 10)]
    + [pytest.param(name, 8, marks=pytest.mark.slow) for name in ("GELU", "SiLU", "softplus")],
)
def test_a_radius_in_many_digits_is_that_of_double_precision(name, n):
    found = odd_stability(n, *ACTIVATIONS[name])
    assert found is not None
    exact = certificate(name, n, found.state)
    assert exact is not None
    np.testing.assert_allclose(found.radius, float(exact.radius), rtol=1e-12)
    assert exact.residual < 1e-48
    assert len(exact.radius) > 38


def test_activations_and_clusters_of_another_kind_have_no_certificate():
    spread = OddState(3.0, 1.5, 0.5)
    assert certificate("tanh", 10, spread) is None
    assert certificate("GELU", 10, spread) is None


def test_moments_of_a_leaky_function_are_those_of_draws():
    draws = np.random.default_rng(0).standard_normal((2, 2_000_000))
    u, v = 1.5 * draws[0], 0.7 * (0.6 * draws[0] - 0.8 * draws[1])
    products = np.where(u > 0, u, 0.3 * u) * np.where(v > 0, v, 0.3 * v)
    found = piecewise_linear(mpmath.mpf("0.3"))(
        mpmath.mpf(1.5**2), mpmath.mpf(0.7**2), mpmath.mpf(1.5 * 0.7 * 0.6)
    )
    error = products.std() / math.sqrt(products.size)
    assert abs(float(found.value) - products.mean()) < 4 * error


@pytest.mark.parametrize("sign", [-1, 1])
def test_moments_of_a_smooth_function_are_those_of_a_quadrature(sign):
    """The two variables are multiples of one Gaussian variable, with different variances.

    The derivatives of E φ(u) φ(v) by the variances of u and v are E φ″(u) φ(v) / 2 and
    E φ(u) φ″(v) / 2, and the derivative by the covariance is E φ′(u) φ′(v).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    (value, slope, curvature), of_v = (
        (np.logaddexp(0, x), 1 / (1 + np.exp(-x)), np.exp(-x) / (1 + np.exp(-x)) ** 2)
        for x in (1.5 * nodes, sign * 0.7 * nodes)
    )
    products = [value * of_v[0], curvature * of_v[0] / 2, value * of_v[2] / 2, slope * of_v[1]]
    kernel = opposite_or_equal(*smooth_functions()["softplus"])
    found = kernel(mpmath.mpf(1.5**2), mpmath.mpf(0.7**2), mpmath.mpf(sign * 1.5 * 0.7))
    moments = np.array(products) @ weights / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(np.array(found[:4], float), moments, rtol=1e-9)


@pytest.mark.parametrize("name", ["GELU", "SiLU", "softplus"])
def test_functions_are_those_of_jax_with_their_derivatives(name):
    functions = smooth_functions()[name]
    derivatives, _ = ACTIVATIONS[name]
    with jax.enable_x64(True):
        for function in functions:
            for x in (-3.0, -0.5, 0.25, 2.0):
                expected = float(derivatives(jnp.asarray(x)))
                np.testing.assert_allclose(float(function(x)), expected, rtol=1e-12)
            derivatives = jax.grad(derivatives)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_the_trapezoidal_rule_has_fifty_digits(sign):
    """The integral over the widest variable for 30 samples is compared with mpmath's quadrature."""
    with mpmath.workdps(DIGITS):
        value, slope, curvature = smooth_functions()["softplus"]
        odd = mpmath.sqrt(29)
        found = opposite_or_equal(value, slope, curvature)(odd**2, 1 / odd**2, mpmath.mpf(sign))

        def integrand(x):
            return mpmath.npdf(x) * value(odd * x) * value(sign * x / odd)

        with mpmath.workdps(DIGITS + 10):
            exact = mpmath.quad(integrand, mpmath.linspace(-17, 17, 35))
        assert abs(found.value / exact - 1) < mpmath.mpf(10) ** -46
