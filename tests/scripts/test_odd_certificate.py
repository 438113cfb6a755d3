"""Certificates of odd states, compared with independent code in double precision."""

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
    layer,
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


def leaky_mean(slope, first, second, both):
    """E φ(u) φ(v) of Gaussian u and v, by the kernel of ReLU for each pair of signs."""
    sizes = np.sqrt(first * second)
    cosines = np.clip(both / sizes, -1, 1)
    equal, opposite = (
        sizes * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / (2 * np.pi)
        for c in (cosines, -cosines)
    )
    return (1 + slope**2) * equal - 2 * slope * opposite


def layer_of_all_pairs(gram, slope):
    """The Gram matrix after all samples are centered, scaled to mean square 1, and mapped by φ."""
    n = len(gram)
    centre = np.eye(n) - 1 / n
    gram = centre @ gram @ centre
    gram *= n / np.trace(gram)
    variances = np.diag(gram)
    return leaky_mean(slope, variances[:, None], variances, gram)


def gram_of(entries, n):
    """The Gram matrix with the four distinct `entries`; the last sample is the odd sample."""
    odd, both, other, pair = entries
    gram = np.full((n, n), pair) + (other - pair) * np.eye(n)
    gram[-1], gram[:, -1], gram[-1, -1] = both, both, odd
    return gram


STATES = [(4, (5.0, -0.7, 1.3, 0.4)), (7, (0.6, 0.2, 2.0, -0.1))]


@pytest.mark.parametrize("slope", ["0.3", "-1", "0"])
@pytest.mark.parametrize(("n", "entries"), STATES)
def test_entries_and_their_deviations_are_those_of_the_whole_gram_matrix(n, entries, slope):
    after, found, _ = layer(list(map(mpmath.mpf, entries)), n, piecewise_linear(mpmath.mpf(slope)))

    def four(entries):
        gram = layer_of_all_pairs(gram_of(entries, n), float(slope))
        return gram[-1, -1], gram[-1, 0], gram[0, 0], gram[0, 1]

    np.testing.assert_allclose(np.array(after, float), four(entries), rtol=1e-12)
    step = 1e-5 * np.eye(4)
    columns = [np.subtract(four(entries + s), four(entries - s)) / 2e-5 for s in step]
    found = np.array(found.tolist(), float)
    np.testing.assert_allclose(found, np.transpose(columns), atol=1e-8)


@pytest.mark.parametrize("slope", ["0.3", "-1", "0"])
@pytest.mark.parametrize(("n", "entries"), STATES)
def test_deviations_between_samples_are_those_of_the_whole_gram_matrix(n, entries, slope):
    """The vector c has a number for each sample of the cluster; these numbers sum to 0."""
    _, _, found = layer(list(map(mpmath.mpf, entries)), n, piecewise_linear(mpmath.mpf(slope)))
    found = np.array(found.tolist(), float)
    c = np.append(np.arange(n - 1) - (n - 2) / 2, 0)
    cluster = np.append(np.ones(n - 1), 0)
    sums = np.outer(cluster, c) + np.outer(c, cluster)
    np.fill_diagonal(sums, 0)
    with_odd = np.outer(c, 1 - cluster)
    ring = np.zeros((n, n))  # the rows of this matrix of covariances sum to 0
    for i, j, value in ((0, 1, 1), (1, 2, -1), (2, 3, 1), (3, 0, -1)) if n > 4 else ():
        ring[i, j] = ring[j, i] = value
    basis = [np.diag(c), with_odd + with_odd.T, sums, ring]
    gram = gram_of(entries, n)
    for i, deviation in enumerate(basis):
        ahead, behind = (
            layer_of_all_pairs(gram + step * deviation, float(slope)) for step in (1e-5, -1e-5)
        )
        expected = sum(share * part for share, part in zip(found[:, i], basis, strict=True))
        np.testing.assert_allclose((ahead - behind) / 2e-5, expected, atol=1e-8, err_msg=str(i))


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
    """E φ(u) φ(v) of the odd and another of 30 samples, compared with mpmath's quadrature."""
    with mpmath.workdps(DIGITS):
        value, slope, curvature = smooth_functions()["softplus"]
        odd = mpmath.sqrt(29)
        found = opposite_or_equal(value, slope, curvature)(odd**2, 1 / odd**2, mpmath.mpf(sign))

        def integrand(x):
            return mpmath.npdf(x) * value(odd * x) * value(sign * x / odd)

        with mpmath.workdps(DIGITS + 10):
            exact = mpmath.quad(integrand, mpmath.linspace(-17, 17, 35))
        assert abs(found.value / exact - 1) < mpmath.mpf(10) ** -46
