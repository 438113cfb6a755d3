# pyright: reportArgumentType=false

import math
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from jax.test_util import check_grads

import geometry
from geometry.mean_field import (
    KernelMap,
    activation_step,
    cosine_step,
    cubic_term,
    fixed_point,
    kernel_map,
    layer_norm_map,
    mixed_map,
    recenter_gram,
    rescale_gram,
    rms_norm_gram,
)
from tests.support.gradients import several_keys

RHO = jnp.array([-1.0, -0.999, -0.6, 0.0, 0.3, 0.9, 0.999, 1.0])
RELU = (jax.nn.relu, (0.0,))
TANH = kernel_map(jnp.tanh)


@pytest.mark.parametrize(
    ("activation", "kinks", "closed"),
    [
        # The last function of each row is a closed form: the kernel of Cho and Saul (2009) for
        # ReLU, the arcsine kernel for erf, and the results of calculations by hand for the others.
        (*RELU, lambda r: (np.sqrt(1 - r**2) + (np.pi - np.arccos(r)) * r) / np.pi),
        (jax.scipy.special.erf, (), lambda r: np.arcsin(2 * r / 3) / np.arcsin(2 / 3)),
        (jnp.sin, (), lambda r: np.sinh(r) / np.sinh(1)),
        (lambda x: jnp.cos(2 * x), (), lambda r: np.cosh(4 * r) / np.cosh(4)),
        (jnp.exp, (), lambda r: np.exp(r - 1)),
        (lambda x: x**3, (), lambda r: (9 * r + 6 * r**3) / 15),
        (jnp.abs, (0.0,), lambda r: 2 / np.pi * (np.sqrt(1 - r**2) + r * np.arcsin(r))),
    ],
)
def test_kernels_in_closed_form(activation, kinks, closed):
    kernel = kernel_map(activation, kinks)
    np.testing.assert_allclose(kernel(RHO), closed(RHO), rtol=0, atol=2e-14)


@pytest.mark.parametrize(("x64", "atol"), [(True, 1e-9), (False, 1e-6)])
def test_a_kink_may_be_of_a_later_derivative(x64, atol):
    """The kernel of Cho and Saul (2009) of squared ReLU, whose slope does not jump."""
    angle = np.arccos(np.asarray(RHO, float))
    closed = 3 * np.sin(angle) * np.cos(angle) + (np.pi - angle) * (1 + 2 * np.cos(angle) ** 2)
    with jax.enable_x64(x64):
        kernel = kernel_map(lambda x: jnp.square(jax.nn.relu(x)), (0.0,))
        found = kernel(jnp.asarray(np.asarray(RHO)))
        assert abs(kernel_map(lambda x: jnp.square(jax.nn.relu(x - 1)), (1.0,)).tail) < 3e-7
    np.testing.assert_allclose(found, closed / (3 * np.pi), rtol=0, atol=atol)


def normal_density(mpmath, x):
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)


def mean_of_elu(mpmath, mean, std):
    """The mean E ELU(mean + std z) for a standard normal z."""
    ratio = mean / std
    linear = mean * mpmath.ncdf(ratio) + std * normal_density(mpmath, ratio)
    return linear + mpmath.exp(mean + std**2 / 2) * mpmath.ncdf(-ratio - std) - mpmath.ncdf(-ratio)


def mean_of_hard_tanh(mpmath, mean, std):
    def ramp(t):
        ratio = (mean - t) / std
        return (mean - t) * mpmath.ncdf(ratio) + std * normal_density(mpmath, ratio)

    return ramp(-1) - ramp(1) - 1


@pytest.mark.parametrize("cosine", [-0.9, 0.3, 0.99, 0.9999])
@pytest.mark.parametrize(
    ("activation", "kinks", "value", "inner"),
    [
        (jax.nn.elu, (0.0,), lambda m, x: x if x > 0 else m.expm1(x), mean_of_elu),
        (jax.nn.hard_tanh, (-1.0, 1.0), lambda m, x: min(max(x, -1), 1), mean_of_hard_tanh),
    ],
)
def test_functions_with_kinks_agree_with_mpmath(cosine, activation, kinks, value, inner):
    """`inner` gives the integral over v in closed form; mpmath integrates over u to 30 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(30):
        rho = mpmath.mpf(cosine)
        std = mpmath.sqrt(1 - rho**2)

        def integrate(f):
            ends = [-14, -4, -1, 0, 1, 4, 14]
            return mpmath.quad(lambda u: f(u) * normal_density(mpmath, u), ends)

        both = integrate(lambda u: value(mpmath, u) * inner(mpmath, rho * u, std))
        expected = both / integrate(lambda u: value(mpmath, u) ** 2)
    assert abs(kernel_map(activation, kinks)(cosine) - float(expected)) < 1e-8


@pytest.mark.parametrize(
    ("activation", "name"), [(jnp.tanh, "tanh"), (partial(jax.nn.gelu, approximate=False), "gelu")]
)
def test_smooth_functions_agree_with_mpmath(activation, name):
    """The trapezoidal rule in two dimensions has the error exp(−2π · 1.5/0.3) < 1e-13."""
    mpmath = pytest.importorskip("mpmath")
    value = {"tanh": mpmath.tanh, "gelu": lambda x: x * mpmath.ncdf(x)}[name]
    nodes = [mpmath.mpf(k) * 3 / 10 for k in range(-28, 29)]
    density = [normal_density(mpmath, x) * 3 / 10 for x in nodes]
    outer = [value(x) * p for x, p in zip(nodes, density, strict=True)]
    mean_square = mpmath.fdot(outer, [value(x) for x in nodes])
    kernel = kernel_map(activation)
    for cosine in (-0.7, 0.5, 0.95):
        rho, std = mpmath.mpf(cosine), mpmath.sqrt(1 - mpmath.mpf(cosine) ** 2)
        inner = [mpmath.fdot(density, [value(rho * u + std * z) for z in nodes]) for u in nodes]
        expected = mpmath.fdot(outer, inner) / mean_square
        assert abs(kernel(cosine) - float(expected)) < 1e-10


def test_the_slope_at_one_is_the_mean_square_of_the_derivative():
    def mean(f):
        density = scipy.stats.norm.pdf
        return scipy.integrate.quad(lambda x: f(x) * density(x), -12, 12, epsabs=1e-13)[0]

    for std in (0.5, 1.5):
        slopes = mean(lambda x, std=std: std**2 / np.cosh(std * x) ** 4)
        squares = mean(lambda x, std=std: np.tanh(std * x) ** 2)
        slope = kernel_map(jnp.tanh, std=std).slope
        np.testing.assert_allclose(slope, slopes / squares, rtol=1e-12)
    for activation, kinks in ((jnp.tanh, ()), RELU, (jax.nn.hard_tanh, (-1.0, 1.0))):
        kernel = kernel_map(activation, kinks)
        np.testing.assert_allclose(jax.grad(kernel)(1.0), kernel.slope, rtol=1e-7)


def test_a_map_has_its_slope_also_where_correlations_are_clipped():
    """Correlations beyond ±1 by at most 0.01 count as rounding. As tanh is odd, so is its map."""
    kernel = kernel_map(jnp.tanh)
    slopes = jax.jit(jax.vmap(jax.grad(kernel)))(jnp.array([1.0, 1.001, -1.0]))
    np.testing.assert_allclose(slopes, kernel.slope, rtol=1e-7)


def test_the_expansion_at_one():
    kernel = kernel_map(jax.nn.leaky_relu, (0.0,))
    for angle in (1e-2, 1e-3):
        deficit = 1 - kernel(math.cos(angle)) - kernel.slope * angle**2 / 2
        assert abs(-deficit / angle**3 / cubic_term(kernel) - 1) < angle
    assert cubic_term(kernel_map(jnp.tanh)) == 0
    for std in (0.7, 2.5):  # here, no kink is at the mean, and `std` is not 1
        kernel = kernel_map(jax.nn.hard_tanh, (-1.0, 1.0), std=std)
        deficit = 1 - kernel(math.cos(0.01)) - kernel.slope * 0.01**2 / 2
        assert abs(-deficit / 0.01**3 / cubic_term(kernel) - 1) < 0.03
    np.testing.assert_allclose(cubic_term(kernel_map(*RELU)), 1 / (3 * np.pi), rtol=1e-14)


@several_keys
def test_kernels_have_the_derivatives_of_differences(key):
    kernel = kernel_map(jax.nn.hard_tanh, (-1.0, 1.0))
    rho = jax.random.uniform(key, (4,), minval=-0.9, maxval=0.95)
    check_grads(jax.jit(kernel), (rho,), order=2)
    by_std = jax.jit(lambda std: kernel_map(jax.nn.selu, (0.0,), std=std)(0.9))
    std = jax.random.uniform(key, (), minval=0.5, maxval=2.0)
    check_grads(by_std, (std,), order=1, modes=["rev"])


def test_kernels_are_differentiable_traceable_and_of_their_dtype():
    kernel = kernel_map(jax.nn.hard_tanh, (-1.0, 1.0))
    assert jnp.isfinite(jax.vmap(jax.grad(kernel))(jnp.asarray(RHO))).all()
    batched = jax.jit(jax.vmap(lambda k, r: k(r), in_axes=(None, 0)))(kernel, jnp.asarray(RHO))
    np.testing.assert_allclose(batched, kernel(RHO), atol=1e-14)
    assert kernel(jnp.float32(0.5)).dtype == np.float32
    stds = jnp.array([0.5, 2.0])
    many = jax.jit(jax.vmap(lambda std: kernel_map(jnp.tanh, std=std)(0.5)))(stds)
    alone = [kernel_map(jnp.tanh, std=std)(0.5) for std in (0.5, 2.0)]
    np.testing.assert_allclose(many, alone, atol=1e-14)


def test_float32_without_x64():
    with jax.enable_x64(False):
        kernel = kernel_map(*RELU)
        assert kernel.powers.dtype == np.float32
        assert abs(kernel(0.5) - cosine_step(0.5)) < 1e-6


def test_ten_thousand_layers_take_less_than_a_second():
    kernel = kernel_map(*RELU)

    @jax.jit
    def layers(kernel, cosine):
        return jax.lax.scan(lambda c, _: (kernel(c), None), cosine, length=10_000)[0]

    start = jnp.asarray(0.3)
    last = float(layers(kernel, start))
    begin = time.perf_counter()
    layers(kernel, start).block_until_ready()
    assert time.perf_counter() - begin < 1
    # After n layers, the angle is approximately 3π/n.
    np.testing.assert_allclose(math.acos(last) * 10_000, 3 * np.pi, rtol=2e-3)


def test_the_stable_fixed_point_is_where_layers_lead():
    kernel = mixed_map(kernel_map(jnp.sin, std=1.5), bias=0.1)
    found = fixed_point(kernel)
    cosines = [0.5]
    for _ in range(60):
        cosines.append(float(kernel(cosines[-1])))
    assert abs(cosines[-1] - found.cosine) < 1e-14
    rate = (cosines[15] - found.cosine) / (cosines[14] - found.cosine)
    np.testing.assert_allclose(rate, found.slope, rtol=1e-3)
    np.testing.assert_allclose(found.depth_scale, -1 / np.log(found.slope), rtol=1e-12)


def test_the_fixed_point_of_a_cubic_map_by_hand():
    """The factors of κ(ρ) − ρ = 0.8 ρ³ − ρ + 0.2 are ρ − 1 and 0.8 ρ² + 0.8 ρ − 0.2."""
    none, one = jnp.zeros(0), jnp.ones(())
    cubic = KernelMap(jnp.array([0.2, 0, 0, 0.8]), none, none, one, 2.4 * one, 0 * one)
    root = (2**0.5 - 1) / 2
    slope = 2.4 * root**2
    np.testing.assert_allclose(fixed_point(cubic), (root, slope, -1 / math.log(slope)), rtol=1e-12)
    cube = KernelMap(jnp.array([0, 0, 0, 1.0]), none, none, one, 3 * one, 0 * one)
    assert fixed_point(cube) == (0, 0, 0)  # the slope of κ(ρ) = ρ³ at 0 is 0


def test_fixed_points_of_ordered_and_critical_maps():
    v, one = 0.3**2, jnp.ones(())  # for a sine, κ(ρ) is sinh(vρ)/sinh(v)
    ordered = fixed_point(mixed_map(kernel_map(jnp.sin, std=0.3), bias=0.5))
    slope = 0.5 * v / np.tanh(v)
    np.testing.assert_allclose(ordered, [1, slope, -1 / np.log(slope)], rtol=1e-10)
    critical = fixed_point(kernel_map(*RELU))
    assert critical.cosine == 1
    above = fixed_point(replace(kernel_map(*RELU), slope=1 + 2 * jnp.finfo(float).eps * one))
    # The slope exceeds 1 only by rounding, so the fixed point remains 1.
    assert (above.cosine, above.slope) == (1, 1 + 2 * jnp.finfo(float).eps)
    assert critical.depth_scale > 1e9
    # the slope of κ(ρ) = (1 + ρ)²/4 at 1 is 1; at 1 − 1e-8, rounding makes κ(ρ) − ρ zero
    smooth = KernelMap(jnp.array([0.25, 0.5, 0.25]), jnp.zeros(0), jnp.zeros(0), one, one, 0 * one)
    assert fixed_point(smooth).cosine == 1


def test_the_derivative_of_a_fixed_point_is_that_of_its_equation():
    """For sin with κ = 0.9 (sinh σ²ρ)/(sinh σ²) + 0.1, κ(ρ, σ) = ρ is differentiated by hand."""

    def point(std):
        return fixed_point(mixed_map(kernel_map(jnp.sin, std=std), bias=0.1)).cosine

    std, rho = 1.5, float(point(1.5))
    v = std**2
    by_rho = 0.9 * v * np.cosh(v * rho) / np.sinh(v)
    by_v = 0.9 * (rho * np.cosh(v * rho) * np.sinh(v) - np.sinh(v * rho) * np.cosh(v))
    expected = 2 * std * by_v / np.sinh(v) ** 2 / (1 - by_rho)
    np.testing.assert_allclose(jax.jit(jax.grad(point))(std), expected, rtol=1e-9)


def test_mixed_and_layer_norm_maps_by_hand():
    kernel = kernel_map(*RELU)
    mixed = mixed_map(kernel, skip=0.3, bias=0.2)
    np.testing.assert_allclose(mixed(RHO), 0.3 * RHO + 0.2 + 0.5 * cosine_step(RHO), atol=1e-14)
    np.testing.assert_allclose(mixed.slope, 0.3 + 0.5, atol=1e-14)
    none_left = mixed_map(kernel, skip=0.25, bias=0.75)
    np.testing.assert_allclose(none_left(RHO), 0.25 * RHO + 0.75, atol=1e-14)
    normed = layer_norm_map(kernel)
    expected = (cosine_step(RHO) - 1 / np.pi) / (1 - 1 / np.pi)
    np.testing.assert_allclose(normed(RHO), expected, atol=1e-14)
    np.testing.assert_allclose(normed.mean_square, 0.5 - 0.5 / np.pi, atol=1e-14)


def test_fields_of_a_truncated_series_by_hand():
    """If φ is exp and σ² = v, the powers are e⁻ᵛ vᵏ/k!, κ′(1) is v, and E φ² is e²ᵛ."""
    v = 1.44
    kernel = kernel_map(jnp.exp, std=1.2, terms=4)
    powers = np.exp(-v) * v ** np.arange(4) / [1, 1, 2, 6]
    tail = 1 - powers.sum()
    powers[-1] += tail  # the last power includes the tail, so that κ(1) is 1
    fields = {"mean_square": np.exp(2 * v), "slope": v, "tail": tail, "powers": powers}
    mixed = {
        "mean_square": np.exp(2 * v),
        "slope": 0.5 * v + 0.3,
        "tail": 0.5 * tail,
        "powers": 0.5 * powers + [0.2, 0.3, 0, 0],
    }
    rest = 1 - powers[0]
    normed = {
        "mean_square": rest * np.exp(2 * v),
        "slope": v / rest,
        "tail": tail / rest,
        "powers": powers * [0, 1, 1, 1] / rest,
    }
    for found, expected in (
        (kernel, fields),
        (mixed_map(kernel, skip=0.3, bias=0.2), mixed),
        (layer_norm_map(kernel), normed),
    ):
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(found, name), value, rtol=1e-11, err_msg=name)
    for kinks, terms in (((), 128), ((0.0,), 1024)):
        assert kernel_map(jax.nn.relu, kinks).powers.shape == (terms,)


def test_a_step_has_as_many_terms_as_are_asked_for():
    """The series of E eᵘ eᵛ in the covariance g has three terms, but is exact on the diagonal."""
    g = np.array([[1.0, 0.6, 0.0], [0.6, 0.5, 0.0], [0.0, 0.0, 0.0]])
    rounded = g - 1e-18 * np.diag([0, 0, 1])  # recentering can round a zero to −1e-18
    found = jax.jit(lambda g: activation_step(g, jnp.exp, terms=3))(rounded)
    norms = np.exp(np.diag(g) / 2)
    expected = np.outer(norms, norms) * (1 + g + g**2 / 2)
    np.fill_diagonal(expected, np.exp(2 * np.diag(g)))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("terms", [3, 5, 8, 11])
def test_smooth_kernels_are_their_power_series(terms):
    kernel, rho = kernel_map(jnp.exp, terms=terms), np.linspace(-0.9, 0.9, 7)
    expected = np.polynomial.Polynomial(np.asarray(kernel.powers))(rho)
    np.testing.assert_allclose(kernel(jnp.asarray(rho)), expected, rtol=1e-12)


def test_the_quadrature_has_enough_nodes_for_all_terms():
    """From the hundredth on, all Hermite coefficients of sin are zero up to rounding."""
    kernel = kernel_map(jnp.sin, std=2.0, terms=3000)
    assert jnp.abs(kernel.powers[100:]).sum() < 1e-12
    assert abs(kernel.tail) < 1e-12


def test_a_step_has_the_kinks_of_both_samples():
    """The kinks of u and v differ, as their norms do. The expected mean over v given u is exact."""
    a, b, c = 1.0, 0.09, 0.2
    mean, std = c / a, math.sqrt(b - c**2 / a)

    def integrand(u):
        ramps = ((mean * u - t) / std for t in (-1, 1))
        low, high = (std * (r * scipy.stats.norm.cdf(r) + scipy.stats.norm.pdf(r)) for r in ramps)
        return np.clip(u, -1, 1) * (low - high - 1) * scipy.stats.norm.pdf(u)

    parts = [scipy.integrate.quad(integrand, *ends)[0] for ends in ((-9, -1), (-1, 1), (1, 9))]
    g = jnp.array([[a, c], [c, b]])
    found = jax.jit(lambda g: activation_step(g, jax.nn.hard_tanh, (-1.0, 1.0)))(g)
    np.testing.assert_allclose(found[0, 1], sum(parts), rtol=1e-9)


def test_gram_matrices_of_any_norms_in_closed_form(key):
    x = jax.random.normal(key, (5, 4)) * jnp.array([0.1, 0.5, 1.0, 1.5, 0.0])[:, None]
    g = geometry.gram(jnp.concatenate([x, 0.5 * x[2:3], -x[2:3]]))
    relu = jax.jit(lambda g: activation_step(g, *RELU, terms=64))(g)
    np.testing.assert_allclose(2 * relu, geometry.arccosine_kernel(g), atol=1e-13)
    erf = jax.jit(lambda g: activation_step(g, jax.scipy.special.erf, terms=400))(g)
    sizes = 1 + 2 * np.diag(g)
    arcsine = 2 / np.pi * np.arcsin(2 * g / np.sqrt(sizes[:, None] * sizes))
    np.testing.assert_allclose(erf, arcsine, atol=1e-12)
    jacobian = jax.jit(jax.jacobian(lambda g: activation_step(g, *RELU, terms=64)))(g)
    reference = jax.jit(jax.jacobian(lambda g: geometry.arccosine_kernel(g)))(g)
    np.testing.assert_allclose(2 * jacobian, reference, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "function",
    [
        *(recenter_gram, rescale_gram, rms_norm_gram),
        partial(activation_step, activation=lambda x: x, terms=3),
    ],
)
def test_a_gram_matrix_keeps_its_dtype(function, dtype):
    gram = jnp.asarray(2 * np.eye(3), dtype)
    assert jax.eval_shape(function, gram).dtype == dtype


@pytest.mark.parametrize("kinks", [(0.0, 0.0), (1.0, 0.5), (jnp.inf,)])
def test_kinks_must_ascend(kinks):
    with pytest.raises(ValueError, match="kinks must be finite numbers in ascending order; got"):
        kernel_map(jnp.tanh, kinks)


@pytest.mark.parametrize("function", [rms_norm_gram, rescale_gram])
def test_a_gram_matrix_of_zeros_remains_zero(function):
    assert (function(jnp.zeros((2, 2))) == 0).all()


def test_norms_of_gram_matrices_are_those_of_batches(key):
    x = jax.random.normal(key, (6, 4)) + 1
    g = geometry.gram(x)
    centred = x - x.mean(0, keepdims=True)
    np.testing.assert_allclose(recenter_gram(g), geometry.gram(centred), atol=1e-12)
    np.testing.assert_allclose(np.trace(rescale_gram(g)), 6, rtol=1e-14)
    units = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(rms_norm_gram(g), geometry.gram(units), atol=1e-14)
    # The derivative of the cosine gᵢⱼ/√(gᵢᵢ gⱼⱼ) with respect to gᵢᵢ is −cos/(2 gᵢᵢ).
    slope = jax.grad(lambda g: rms_norm_gram(g).sum())(1e-220 * g)[0, 0]
    expected = -rms_norm_gram(g)[0, 1:].sum() / g[0, 0]
    np.testing.assert_allclose(1e-220 * slope, expected, rtol=1e-9)
    relu = activation_step(recenter_gram(g), *RELU, terms=64)
    np.testing.assert_allclose(2 * relu, geometry.mean_field_step(g), atol=1e-12)


@pytest.mark.parametrize("activation", [jnp.tanh, jax.nn.gelu])
def test_networks_of_finite_width_differ_by_one_over_the_width(activation, key):
    """After three layers of finite width, the mean Gram matrix is off by about c/width."""
    g = jnp.array([[1.0, 0.4], [0.4, 1.5]])
    infinite = g
    for _ in range(3):
        infinite = 2 * activation_step(infinite, activation)
    widths, scaled = (8, 16, 32), []
    for i, width in enumerate(widths):

        def draw(key, width=width):
            gram = g
            for layer in jax.random.split(key, 3):
                z = jax.random.normal(layer, (width, 2)) @ jnp.linalg.cholesky(gram).T
                h = activation(z)
                gram = 2 * h.T @ h / width
            return gram

        mean, stderr, _ = geometry.monte_carlo(
            draw, jax.random.fold_in(key, i), 20_000, batch_size=4000
        )
        scaled.append((width * (mean - infinite), width * stderr))
    (first, first_error), *others = scaled
    # The difference from infinite width, multiplied by the width, is nearly a nonzero constant.
    assert (abs(first) > 5 * first_error).any()
    for product, stderr in others:
        assert (abs(product - first) < 4 * np.hypot(stderr, first_error) + 0.25 * abs(first)).all()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((jax.nn.relu, (1.0, 0.0)), {}, "ascending order"),
        ((jnp.sign, (0.0,)), {}, "continuous"),
        ((lambda x: jnp.where(x > 1, x + 0.1, x), (0.0, 1.0)), {}, "continuous"),
        ((jnp.tanh,), {"terms": 2}, "at least 3; got 2"),
        ((jnp.tanh,), {"std": 0.0}, "std must be positive"),
    ],
)
def test_impossible_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kernel_map(*arguments, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_map("relu"), "activation must be a function, such as jnp.tanh; got 'relu'"),
        (lambda: kernel_map(jnp.tanh, "0"), r"kinks must be a tuple of numbers, .*; got '0'"),
        (lambda: kernel_map(jnp.tanh, (0.0, "1")), "a kink must be a number; got '1'"),
        (lambda: kernel_map(jnp.tanh, terms=4.0), r"terms must be an int; got 4\.0"),
        (lambda: kernel_map(jnp.sum), r"must return an array of shape .*; got \(\)"),
        (lambda: mixed_map(TANH, skip="1"), "skip must be a number; got '1'"),
        (lambda: mixed_map(TANH, bias="1"), "bias must be a number; got '1'"),
        *(
            (lambda shares=shares: mixed_map(TANH, skip=shares[0], bias=shares[1]), message)
            for shares, message in (
                ((0.7, 0.7), "sum must be at most 1; got skip 0.7 and bias 0.7"),
                ((-0.1, 0.5), "not be negative .*; got skip -0.1 and bias 0.5"),
                ((0.5, -0.1), "not be negative .*; got skip 0.5 and bias -0.1"),
            )
        ),
        *(
            (partial(f, jnp.tanh), r"kernel must be a KernelMap, such as .*; got <")
            for f in (mixed_map, layer_norm_map, fixed_point, cubic_term)
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_an_activation_that_mixes_numbers_is_refused_even_if_it_mixes_little(share):
    with pytest.raises(ValueError, match="activation must map each number by itself"):
        geometry.mean_field.kernel_map(lambda x: x - share * x.mean())
