"""Tests of moments, variances of ratios, and expected rank correlations of Gaussian filters."""

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from jax.test_util import check_grads

from pruning import (
    CRITERIA,
    expected_spearman,
    gaussian,
    l1_l2_correlation,
    l1_l2_ratio_variance,
    spearman,
)
from pruning.gaussian import (
    amoroso_moment,
    chi_moment,
    chi_variance,
    expected_distance,
    expected_overlap,
    half_normal_moment,
    l1_l2_ratio_variance_limit,
    norm_sum_ratio_variance,
    norm_sum_ratio_variance_limit,
)
from pruning.gaussian._expected_similarity import overlap_of_noise

# pairs of criteria whose expected correlation is known
PAIRS = list(itertools.combinations(("l1", "l2", "fermat", "gm"), 2))
LIMIT = (math.pi - 3) / 2
DIMS = jnp.array([1.0, 2.0, 3.0, 10.0, 27.0, 576.0, 4608.0, 1e5, 1e7])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_half_normal_moments_are_scipys(order):
    expected = scipy.stats.halfnorm(scale=1.7).moment(order)
    np.testing.assert_allclose(half_normal_moment(1.7, order), expected, rtol=1e-13)


@pytest.mark.parametrize("order", [-0.5, 1, 2, 3.0, 5.5])
def test_half_normal_and_chi_are_amoroso_laws(order):
    theta = 2**0.5 * 0.3
    half_normal = amoroso_moment(0.0, theta, 0.5, 2, order)
    np.testing.assert_allclose(half_normal_moment(0.3, order), half_normal, rtol=1e-13)
    chi = amoroso_moment(0.0, theta, 4.5, 2, order)
    np.testing.assert_allclose(chi_moment(0.3, 9, order), chi, rtol=1e-13)


@pytest.mark.parametrize("dims", [1, 2, 3, 9, 64])
@pytest.mark.parametrize("order", [-0.9, 0.5, 1, 3, 5.5])
def test_chi_moments_are_integrals_of_the_density(dims, order):
    def integrand(r):
        return r**order * scipy.stats.chi.pdf(r, dims)

    expected, _ = scipy.integrate.quad(integrand, 0, 20, epsabs=0, epsrel=1e-11, points=[1, 8])
    np.testing.assert_allclose(chi_moment(1.0, dims, order), expected, rtol=1e-9)


@pytest.mark.parametrize("order", [1, 7, 19])
def test_chi_moments_keep_all_digits_of_float64(order):
    ratios = [math.gamma((d + order) / 2) / math.gamma(d / 2) for d in range(1, 9)]
    found = chi_moment(1.0, jnp.arange(1.0, 9.0), order)
    np.testing.assert_allclose(found, 2 ** (order / 2) * np.array(ratios), rtol=3e-15)


@pytest.mark.parametrize(("dims", "order"), [(400, -250), (9, 199.5), (9, 250), (400, 400)])
def test_moments_of_large_order_are_scipys(dims, order):
    expected = order * np.log(0.07) + np.subtract(
        *scipy.special.gammaln([(dims + order) / 2, dims / 2])
    )
    theta = 0.07 / 2**0.5
    np.testing.assert_allclose(jnp.log(chi_moment(theta, dims, order)), expected, rtol=1e-11)
    law = amoroso_moment(0.0, 0.07, dims / 2, 2, order)
    np.testing.assert_allclose(jnp.log(law), expected, rtol=1e-11)


def test_even_chi_moments_are_polynomials_of_the_dimension():
    np.testing.assert_allclose(chi_moment(3.0, DIMS, 2), 9 * DIMS, rtol=1e-14)
    np.testing.assert_allclose(chi_moment(1.0, DIMS, 4), DIMS * (DIMS + 2), rtol=1e-14)


def test_second_moment_is_squared_mean_plus_variance_in_float32():
    d = DIMS.astype(jnp.float32)
    mean, variance = chi_moment(2.0, d, 1), chi_variance(2.0, d)
    assert mean.dtype == variance.dtype == jnp.float32
    np.testing.assert_allclose(mean, chi_moment(2.0, DIMS, 1), rtol=2e-6)
    np.testing.assert_allclose(variance, chi_variance(2.0, DIMS), rtol=1e-6)
    np.testing.assert_allclose(jnp.square(mean) + variance, 4 * DIMS, rtol=4e-6)


def test_chi_variance_is_scipys_at_few_dims_and_its_expansion_at_many():
    for dims in (1, 2, 3, 9, 28):
        expected = scipy.stats.chi(dims, scale=0.4).var()
        np.testing.assert_allclose(chi_variance(0.4, dims), expected, rtol=1e-11)
    for dims in (10**4, 10**6, 10**7):
        expansion = 1 / 2 - 1 / (8 * dims) - 1 / (16 * dims**2)
        np.testing.assert_allclose(chi_variance(1.0, dims), expansion, rtol=1e-12)


def test_chi_variance_grows_towards_one_half():
    variance = chi_variance(1.0, jnp.arange(1.0, 3000.0))
    np.testing.assert_allclose(variance[0], 1 - 2 / np.pi, rtol=1e-13)
    assert jnp.all(jnp.diff(variance) > 0)
    assert variance[-1] < 0.5


@pytest.mark.parametrize(
    ("a", "theta", "alpha", "beta"),
    [(0.0, 1.5, 1.5, 2.0), (-1.0, 2.0, 0.7, 1.5), (2.0, -0.5, 3.0, 1.0), (1.0, 1.0, 9.0, -2.0)],
)
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_amoroso_moments_are_integrals_over_the_gamma_law(a, theta, alpha, beta, order):
    def integrand(z):
        return (a + theta * z ** (1 / beta)) ** order * scipy.stats.gamma.pdf(z, alpha)

    expected, _ = scipy.integrate.quad(integrand, 0, 60, epsabs=0, epsrel=1e-10, points=[1, 10])
    np.testing.assert_allclose(amoroso_moment(a, theta, alpha, beta, order), expected, rtol=1e-7)


def test_a_moment_of_any_order_needs_the_number_0_and_no_array_of_zeros():
    """At an array of zeros, the moment would lack the derivative with respect to `a`."""
    assert amoroso_moment(0, 1.0, 1.0, 1.0, 0.5) > 0
    for a in (jnp.zeros(()), 1.0):
        with pytest.raises(ValueError, match=r"a must be the number 0; got 0\.5$"):
            amoroso_moment(a, 1.0, 1.0, 1.0, 0.5)


def test_an_amoroso_law_has_a_beta():
    with pytest.raises(ValueError, match=r"^beta must not be 0; got 0$"):
        amoroso_moment(0.0, 1.0, 1.0, 0, 2)


def test_divergent_moments_are_infinite():
    assert amoroso_moment(0.0, 1.5, 1.5, -1, 2) == jnp.inf
    assert amoroso_moment(1.0, -1.5, 1.5, -1, 3) == -jnp.inf
    assert amoroso_moment(0.0, 1.5, 1.5, 1, -1.5) == jnp.inf
    assert half_normal_moment(1.0, -1) == jnp.inf
    assert chi_moment(1.0, 2, -2) == jnp.inf
    assert amoroso_moment(3.0, 1.5, 1.5, -1, 0) == 1


def test_a_fractional_moment_about_another_point_is_refused():
    with pytest.raises(ValueError, match=r"whole number.*got 1\.5"):
        amoroso_moment(1.0, 1.0, 1.0, 1.0, 1.5)


@pytest.mark.parametrize(
    ("dims", "direct", "inverse"),
    [
        (1, 0.0, 0.0),
        (2, 0.01910, 0.02255),
        (9, 0.05461, 0.06235),
        (64, 0.06832, 0.06990),
        (576, 0.07052, 0.07070),
        (2304, 0.07073, 0.07077),
    ],
)
def test_ratio_variances_have_the_known_values(dims, direct, inverse):
    scaled = dims * np.array(l1_l2_ratio_variance(dims))
    np.testing.assert_allclose(scaled, [direct, inverse], atol=5.1e-6)


@pytest.mark.parametrize("dims", [3, 4, 30])
def test_inverse_ratio_variance_is_that_of_adaptive_quadrature(dims):
    def inverse_moment(order):
        def integrand(t):
            return t ** (order - 1) * scipy.special.erfcx(t / 2**0.5) ** dims

        return scipy.integrate.quad(integrand, 0, np.inf, epsabs=0, epsrel=1e-12, limit=200)[0]

    def chi(order):
        log = scipy.special.gammaln((dims + order) / 2) - scipy.special.gammaln(dims / 2)
        return 2 ** (order / 2) * np.exp(log)

    ratio = dims * (2 / np.pi) ** 0.5 / chi(1)
    expected = inverse_moment(2) / chi(-2) - (inverse_moment(1) / chi(-1)) ** 2
    found = l1_l2_ratio_variance(dims).inverse
    np.testing.assert_allclose(found, ratio**2 * expected, rtol=1e-9)


def test_ratio_variances_are_those_of_drawn_filters_and_not_the_printed_bound(key):
    dims, samples = 64, 60_000
    x = np.abs(jax.random.normal(key, (samples, dims)))
    l1, l2 = x.sum(1) / (dims * (2 / np.pi) ** 0.5), np.sqrt((x**2).sum(1))
    l2 = l2 / scipy.stats.chi(dims).mean()
    for ratio, expected in zip((l1 / l2, l2 / l1), l1_l2_ratio_variance(dims), strict=True):
        variance = ratio.var()
        stderr = np.sqrt((scipy.stats.moment(ratio, 4) - variance**2) / samples)
        assert abs(variance - expected) < 4 * stderr
        assert abs(variance - (np.pi - 1) / (2 * dims)) > 100 * stderr


def test_ratio_variances_keep_their_expansion_up_to_ten_million_dims():
    for dims in (10**5, 10**7):
        direct, inverse = dims * np.array(l1_l2_ratio_variance(dims))
        np.testing.assert_allclose(direct, LIMIT + (5 / 8 - np.pi / 4) / dims, rtol=1e-8)
        # This term follows from the moments of |z| for a Gaussian z.
        second = 2 * np.pi**2 - 33 / 4 * np.pi + 49 / 8
        np.testing.assert_allclose(inverse, LIMIT + second / dims, rtol=1e-8)


def test_ratio_variances_are_ordered_below_their_limit():
    for dims in (2, 3, 5, 27, 144, 1000):
        direct, inverse = dims * np.array(l1_l2_ratio_variance(dims))
        assert 0 < direct < inverse < LIMIT


def test_ratio_variance_needs_a_dimension():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        l1_l2_ratio_variance(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_filters_of_one_weight_are_ranked_alike(dtype):
    rho = l1_l2_correlation(jnp.ones((), dtype))
    assert rho == 1
    np.testing.assert_allclose(gaussian.normal_spearman(rho, 9), 1, rtol=1e-6)


def test_norms_become_less_correlated_with_the_dimension():
    found = l1_l2_correlation(jnp.array([1.0, 3.0, 9.0, 64.0, 576.0, 1e7]))
    expected = [1, 0.9675, 0.9481, 0.9377, 0.9361, 1 / (np.pi - 2) ** 0.5]
    np.testing.assert_allclose(found, expected, atol=5.1e-5)
    assert jnp.all(jnp.diff(found) < 0)


@pytest.mark.parametrize(
    ("filters", "dims", "pair", "measured", "stderr"),
    [
        (16, 144, ("l1", "l2"), 0.9037, 0.0029),
        (64, 576, ("l1", "l2"), 0.9234, 0.0019),
        (256, 576, ("l1", "l2"), 0.9290, 0.0017),
        (64, 576, ("l2", "fermat"), 0.9783, 0.0006),
        (128, 576, ("l2", "fermat"), 0.9893, 0.0003),
        (256, 576, ("fermat", "l2"), 0.9949, 0.0002),
        (64, 576, ("l1", "gm"), 0.9081, 0.0020),
    ],
)
def test_expected_spearman_is_what_drawn_layers_gave(filters, dims, pair, measured, stderr):
    assert abs(expected_spearman(filters, dims, pair) - measured) < 2.5 * stderr


@pytest.mark.parametrize(
    ("num_filters", "dims", "layers", "error"), [(32, 27, 200, 0.06), (8, 9, 20_000, 0.12)]
)
def test_expected_spearman_of_every_pair_is_that_of_drawn_layers(
    num_filters, dims, layers, error, key
):
    def draw(key):
        v = jax.random.normal(key, (num_filters, dims))
        scores = {name: criterion(v) for name, criterion in CRITERIA.items()}
        return jnp.stack([spearman(scores[a], scores[b]) for a, b in PAIRS])

    found = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(key, layers)))
    stderr = found.std(0, ddof=1) / layers**0.5
    expected = np.array([expected_spearman(num_filters, dims, pair) for pair in PAIRS])
    assert np.all(stderr < 0.06 * (1 - expected))
    assert np.all(np.abs(found.mean(0) - expected) < 4 * stderr + error * (1 - expected))


def test_expected_spearman_has_its_limits():
    assert abs(expected_spearman(64, 1, ("l1", "l2")) - 1) < 1e-6
    many = expected_spearman(1e7, 1e7, ("l2", "l1"))
    np.testing.assert_allclose(many, 6 / np.pi * np.arcsin(0.5 / (np.pi - 2) ** 0.5), rtol=1e-6)
    tiny = 1 - expected_spearman(64, 2304, ("gm", "fermat"))
    np.testing.assert_allclose(tiny, 5e-5, rtol=0.2)


@pytest.mark.parametrize("pair", [("l1", "l1"), ("l1", "rank")])
def test_expected_spearman_refuses_other_pairs(pair):
    with pytest.raises(ValueError, match="two different names"):
        expected_spearman(64, 576, pair)


@pytest.mark.parametrize("rho", [0.6, -0.6, 0.99, -0.99])
def test_the_overlap_of_halves_is_that_of_quadrants(rho):
    """Sheppard: P(X < 0, Y < 0) = 1/4 + asin(ρ)/2π for Gaussian X and Y of correlation ρ."""
    found = overlap_of_noise(1 / rho**2 - 1, ratio=0.5, sign=np.sign(rho))
    np.testing.assert_allclose(found, 0.5 + np.arcsin(rho) / np.pi, rtol=1e-9)


def test_a_criterion_without_theory_has_no_expected_similarity(monkeypatch):
    monkeypatch.setitem(CRITERIA, "l3", lambda filters: jnp.sum(jnp.abs(filters) ** 3, 1))
    assert jnp.isnan(expected_spearman(64, 576, ("l1", "l3")))
    assert jnp.isnan(expected_overlap(64, 576, ("l3", "gm"), ratio=0.5))
    assert expected_overlap(64, 576, ("l3", "gm"), ratio=1) == 1  # both choose all filters
    found = expected_spearman(jnp.full(2, 64.0), 576, ("l1", "l3"))
    assert found.shape == (2,)


def test_moments_can_be_differentiated_batched_and_compiled():
    def moments(std, dims, order, num_filters):
        return jnp.stack(
            [
                half_normal_moment(std, order),
                chi_moment(std, dims, order),
                chi_variance(std, dims),
                amoroso_moment(-std, order, dims, 2 * std, 2),
                l1_l2_correlation(dims),
                *(expected_spearman(num_filters, dims, pair) for pair in PAIRS),
            ]
        )

    arguments = 0.7, 5.0, 1.5, 32.0
    batch = tuple(jnp.array([x, x + 0.25]) for x in arguments)
    batched = jax.jit(jax.vmap(moments))
    found = batched(*batch)
    single = jax.jit(moments)
    np.testing.assert_allclose(found[0], single(*arguments), rtol=1e-12)
    np.testing.assert_allclose(found[1], single(*(x + 0.25 for x in arguments)), rtol=1e-12)
    for key in jax.random.split(jax.random.key(0), 3):
        scale = jax.random.uniform(key, (2,), minval=0.8, maxval=1.2)
        other = tuple(scale * x for x in batch)
        check_grads(batched, other, order=1, modes=("rev",), rtol=1e-6)


@pytest.mark.parametrize("dims", [1, 9, 576, 4608])
@pytest.mark.parametrize("length", [0.0, 0.5, 7.0, 40.0, 69.0])
def test_expected_distances_are_integrals_of_the_noncentral_chi_distribution(dims, length):
    middle = np.hypot(length, dims**0.5)

    def integrand(r):
        if length == 0:
            return r * scipy.stats.chi.pdf(r, dims)
        return 2 * r * r * scipy.stats.ncx2.pdf(r * r, dims, length**2)

    low = max(0, middle - 12)
    expected = scipy.integrate.quad(
        integrand, low, middle + 12, points=[middle], epsrel=1e-12, limit=200
    )
    found = expected_distance(jnp.array(length), 1.0, dims)
    np.testing.assert_allclose(found, expected[0], rtol=1e-9)
    single = expected_distance(jnp.array(2 * length, jnp.float32), 2.0, dims)
    np.testing.assert_allclose(single, 2 * expected[0], rtol=2e-6)


def test_the_objective_of_theorem_2_grows_from_its_minimum():
    lengths = jnp.linspace(0.0, 60.0, 50)
    for dims in (1, 27, 10**7):
        distances = jax.jit(jax.vmap(partial(expected_distance, std=1.0, dims=dims)))(lengths)
        assert jnp.all(jnp.diff(distances) > 0)
    slope = jax.jit(jax.vmap(jax.grad(lambda x: expected_distance(x, 1.0, 27))))(lengths)
    assert slope[0] == 0
    assert jnp.all(slope[1:] > 0)
    assert jnp.isnan(expected_distance(jnp.array(100.0), 1.0, 27))
    assert jnp.isnan(expected_distance(0.0, jnp.array([0.0, 2.0, -1.0]), 27)).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("n", "dims", "direct", "inverse"),
    [
        (1, 5, 2.783, 0.856),
        (2, 5, 1.614, 0.950),
        (10, 9, 1.0727, 1.0156),
        (64, 9, 1.0332, 1.0245),
        (64, 576, 1.0005, 1.0004),
    ],
)
def test_ratio_variances_of_theorem_3_have_the_known_values(n, dims, direct, inverse):
    scaled = np.array(norm_sum_ratio_variance(n, dims)) / np.array(
        norm_sum_ratio_variance_limit(n, dims)
    )
    np.testing.assert_allclose(scaled, [direct, inverse], atol=5.1e-4)


def test_the_inverse_ratio_of_one_vector_is_its_length():
    """‖a‖²/‖a‖ over its mean square over its mean: Var ‖a‖ (E ‖a‖)²/9 in three dimensions."""
    variance, square = 3 - 8 / np.pi, 8 / np.pi
    found = norm_sum_ratio_variance(1, 3).inverse
    np.testing.assert_allclose(found, variance * square / 9, rtol=1e-13)


@pytest.mark.slow
def test_ratio_variances_of_theorem_3_pass_over_densities_below_the_least_number():
    dims = np.array([64, 70, 80, 100, 120, 150])
    scaled = np.array([norm_sum_ratio_variance(2, int(d)) for d in dims]) * dims[:, None]
    away = np.abs(scaled - 0.25)  # 0.25 is the limit 1/(2n)
    assert (away < 0.01).all()
    assert (np.diff(away, axis=0) < 0).all()


@pytest.mark.parametrize(
    ("n", "shared"), [(5, False), (5, True), pytest.param(50, True, marks=pytest.mark.slow)]
)
def test_ratio_variances_of_theorem_3_are_those_of_drawn_vectors(n, shared, key):
    dims, samples = 40, 20_000

    @jax.jit
    def ratio(key):
        a = jax.random.normal(key, (n + shared, dims))
        square = jnp.square(a[:1] - a[1:] if shared else a).sum(1)
        return jnp.sqrt(square).sum() / square.sum()

    found = np.asarray(jax.lax.map(ratio, jax.random.split(key, samples), batch_size=1000))
    variance = np.var(found / found.mean())
    stderr = variance * (2 / samples) ** 0.5
    expected = norm_sum_ratio_variance_limit(n, dims, shared=True).direct
    slack = 0.05 * expected  # with a shared filter, only the variance's leading term is known
    if not shared:
        m = n * dims  # the mean of the ratio is nearly m/(m − 1) times the ratio of the means
        expected, slack = norm_sum_ratio_variance(n, dims).direct * ((m - 1) / m) ** 2, 0
    assert abs(variance - expected) < 4 * stderr + slack


def test_limits_of_theorem_1_are_approached_at_third_order():
    for dims in (300, 3000):
        gap = np.subtract(l1_l2_ratio_variance(dims), l1_l2_ratio_variance_limit(dims))
        assert np.all(np.abs(gap) * dims**3 < 1)


@pytest.mark.parametrize(("n", "dims"), [(0, 5), (5, 0), (1, 2)])
def test_theorem_3_needs_vectors_and_a_finite_variance(n, dims):
    with pytest.raises(ValueError, match="must be"):
        norm_sum_ratio_variance(n, dims)


@pytest.mark.parametrize(("pair", "ratio"), [(PAIRS[0], 0.1), (PAIRS[1], 0.9), (PAIRS[5], 0.3)])
def test_expected_overlap_is_scipys_bivariate_normal(pair, ratio):
    half = float(expected_overlap(64, 9, pair, ratio=0.5))  # `half` is 1/2 + asin(ρ)/π
    rho = np.sin(np.pi * (half - 0.5))
    z = scipy.stats.norm.ppf(ratio)
    normal: Any = scipy.stats.multivariate_normal  # the type stubs do not accept matrices
    found = expected_overlap(64, 9, pair, ratio=ratio)
    np.testing.assert_allclose(
        found, normal.cdf([z, z], cov=[[1, rho], [rho, 1]]) / ratio, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("filters", "dims", "pair", "ratio", "measured", "stderr"),
    [
        (64, 64, ("l1", "l2"), 0.5, 0.884, 0.003),
        (256, 576, ("l1", "l2"), 0.5, 0.891, 0.003),
        (64, 576, ("l2", "fermat"), 0.5, 0.9446, 0.002),
        (256, 576, ("l2", "fermat"), 0.5, 0.969, 0.002),
        (256, 2304, ("l1", "l2"), 8 / 256, 0.70, 0.02),
        (128, 576, ("l1", "l2"), 8 / 128, 0.68, 0.02),
    ],
)
def test_expected_overlap_is_what_drawn_layers_gave(filters, dims, pair, ratio, measured, stderr):
    found = expected_overlap(filters, dims, pair, ratio=ratio)
    assert abs(found - measured) < 2.5 * stderr


def test_expected_overlap_needs_a_ratio():
    assert expected_overlap(64, 576, ("l1", "l2"), ratio=1) == 1
    with pytest.raises(ValueError, match=r"ratio must lie in \(0, 1\]; got 0"):
        expected_overlap(64, 576, ("l1", "l2"), ratio=0)


TOO_SMALL = {
    "chi_moment, std": (lambda x: gaussian.chi_moment(x, 3, 1), 0),
    "chi_moment, dims": (lambda x: gaussian.chi_moment(1, x, 1), 0),
    "chi_variance, std": (lambda x: gaussian.chi_variance(x, 3), 0),
    "chi_variance, dims": (lambda x: gaussian.chi_variance(1, x), 0),
    "expected_distance": (lambda x: gaussian.expected_distance(1, 1, x), 0),
    **{
        f"expected_overlap, filters of {a} and {b}": (
            lambda x, p=(a, b): gaussian.expected_overlap(x, 9, p, ratio=0.5),
            2,
        )
        for a, b in (("l2", "gm"), ("l1", "l2"))
    },
    "expected_overlap, dims": (
        lambda x: gaussian.expected_overlap(9, x, ("l1", "l2"), ratio=0.5),
        1,
    ),
    **{
        f"expected_spearman, {name} of {a} and {b}": (f, least)
        for a, b in itertools.combinations(("l1", "l2", "fermat", "gm"), 2)
        for name, f, least in (
            ("filters", lambda x, p=(a, b): gaussian.expected_spearman(x, 9, p), 2),
            ("dims", lambda x, p=(a, b): gaussian.expected_spearman(9, x, p), 1),
        )
    },
    "l1_l2_correlation": (gaussian.l1_l2_correlation, 1),
    "normal_spearman": (lambda x: gaussian.normal_spearman(0.5, x), 2),
    "scaled, dims": (gaussian.scaled_l1_l2_correlation, 1),
    "scaled, effective": (lambda x: gaussian.scaled_l1_l2_correlation(9, effective_dims=x), 1),
    "scaled, spread": (lambda x: gaussian.scaled_l1_l2_correlation(9, spread=x), 0),
}


@pytest.mark.parametrize("name", TOO_SMALL)
def test_too_small_a_number_is_refused_and_in_an_array_it_is_nan(name):
    function, least = TOO_SMALL[name]
    found = jax.jit(function)(jnp.array([least - 1, least - 0.01, least, least + 1.0]))
    assert np.isnan(found).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match=f"must be at least {least}"):
        function(least - 0.01)


# The number at `place` is NaN. For an order that is not an integer, the first number must be a
# Python 0, so it cannot be NaN.
@pytest.mark.parametrize(
    ("place", "order"), [(1, -0.5), (2, -0.5), (3, 0.5), (0, 2), (1, 2), (2, 2), (3, 2)]
)
def test_an_amoroso_moment_of_nan_is_nan(place, order):
    numbers: list[Any] = [0.0, 1.3, 0.7, 1.1]
    numbers[place] = jnp.array(jnp.nan)
    a, theta, alpha, beta = numbers
    assert jnp.isnan(amoroso_moment(a, theta, alpha, beta, order))


COLUMN, ROW = np.array([[3.0], [5.5]]), np.array([[4.0, 9.0, 30.0]])
BROADCAST: dict[str, Any] = {
    "half_normal_moment": lambda a, b: half_normal_moment(a, b / 4),
    "chi_moment": lambda a, b: chi_moment(a, b, 3),
    "chi_moment, orders": lambda a, b: chi_moment(0.3, b, a),
    "chi_variance": lambda a, b: chi_variance(a, b),
    "amoroso_moment": lambda a, b: amoroso_moment(-a, b / 7, a / 2, 1.5, 3),
    "amoroso_moment, shapes": lambda a, b: amoroso_moment(2.0, -0.5, b, a, 2),
    "expected_distance": lambda a, b: expected_distance(b, a, 5),
    "expected_distance, dims": lambda a, b: expected_distance(a, 2.5, b),
    "l1_l2_correlation": lambda a, b: l1_l2_correlation(a * b),
    "scaled_l1_l2_correlation": lambda a, b: gaussian.scaled_l1_l2_correlation(
        3 * b, shape=a / 4, spread=b / 300, effective_dims=2 * b
    ),
    "normal_spearman": lambda a, b: gaussian.normal_spearman(a / 7, b),
    "normal_overlap": lambda a, b: gaussian.normal_overlap(a / 7 - b / 60, ratio=0.3),
    "normal_kendall": lambda a, b: gaussian.normal_kendall(a / 7 - b / 60),
    **{
        f"expected_{name} of {a} and {b}": partial(f, pair=(a, b))
        for a, b in PAIRS
        for name, f in (
            ("spearman", lambda x, y, pair: expected_spearman(x, y, pair)),
            ("overlap", lambda x, y, pair: expected_overlap(x, y, pair, ratio=0.3)),
        )
    },
}


@pytest.mark.parametrize("name", BROADCAST)
def test_arrays_are_taken_element_by_element(name):
    """For a 2 × 1 and a 1 × 3 array, results equal those of six calls with single numbers."""
    function = BROADCAST[name]
    found = function(jnp.asarray(COLUMN), jnp.asarray(ROW))
    assert found.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        expected = function(float(COLUMN[i, 0]), float(ROW[0, j]))
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-10)
    assert len(np.unique(np.asarray(found).round(12))) > 1


WITH_NUMBERS: dict[str, Any] = {
    "half_normal_moment": lambda n, x: half_normal_moment(x, n),
    "chi_moment": lambda n, x: chi_moment(n, x, n),
    "chi_variance": chi_variance,
    "amoroso_moment": lambda n, x: amoroso_moment(n, x, n, n, 2),
    "expected_distance": lambda n, x: expected_distance(x, n, n),
    "l1_l2_correlation": lambda n, x: l1_l2_correlation(n),
    "expected_spearman": lambda n, x: expected_spearman(n, x, ("l1", "gm")),
    "expected_overlap": lambda n, x: expected_overlap(x, n, ("l2", "fermat"), ratio=0.3),
    "scaled_l1_l2_correlation": lambda n, x: gaussian.scaled_l1_l2_correlation(
        x, shape=n, spread=n, effective_dims=n
    ),
    "normal_spearman": lambda n, x: gaussian.normal_spearman(x / 10, n),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", WITH_NUMBERS)
@pytest.mark.parametrize("number", [np.float32, np.int64])
def test_a_number_of_numpy_is_no_array_and_changes_no_dtype(name, number):
    x, function = jnp.array([4.0, 9.0], "float32"), WITH_NUMBERS[name]
    found, expected = function(number(3), x), function(3, x)
    assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("filters", "dims"), [(9, 2), (40, 3), (5, 1), (100, 7)])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_table_of_correlations_by_scipys_moments(filters, dims, pair):
    """The dims are few, so coefficients of variation are far from their limits for many dims."""
    chi = scipy.stats.chi(dims)
    l1_l2 = (chi.std() / chi.mean()) / np.sqrt((np.pi / 2 - 1) / dims)
    noise = {
        ("l1", "l2"): 1 / l1_l2**2 - 1,
        ("l2", "fermat"): 2 * dims / chi.mean() ** 2 / (filters - 1),
        ("l2", "gm"): 2 / (filters - 1),
        ("fermat", "gm"): 1 / (2 * filters * dims),
    }
    rho = {key: 1 / np.sqrt(1 + t) for key, t in noise.items()}
    rho |= {("l1", name): rho["l1", "l2"] * rho["l2", name] for name in ("fermat", "gm")}
    found, n = expected_spearman(filters, dims, pair), filters
    both = np.arcsin(min(rho[pair], 1)) + (n - 2) * np.arcsin(rho[pair] / 2)
    np.testing.assert_allclose(found, 6 * both / (np.pi * (n + 1)), rtol=1e-7)


def test_all_filters_overlap_wholly_and_a_std_that_is_none_has_no_distance():
    found = expected_overlap(jnp.array([4.0, 64.0]), 9, ("l1", "gm"), ratio=1)
    assert found.tolist() == [1.0, 1.0]
    found = expected_distance(jnp.array(3.0), jnp.array([2.0, 0.0, -2.0]), 9)
    assert np.isfinite(found).tolist() == [True, False, False]


def test_an_array_at_its_minimum_counts():
    np.testing.assert_array_equal(chi_moment(jnp.zeros(2), 9.0, 2), [0, 0])
    np.testing.assert_allclose(l1_l2_correlation(jnp.ones(2)), l1_l2_correlation(1), rtol=1e-12)
