"""The radius and the Lipschitz constant of layers, compared with matrices, and edge cases."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.test_util import check_grads

import jaxnorm
from claims import OWN
from geometry import claims
from jaxnorm import shift
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

layer_norm_bounds = jitted(shift.layer_norm_bounds)


@given(
    st.sampled_from([2, 3, 5, 40]),
    st.integers(0, 3),
    st.integers(0, 99),
    st.sampled_from([1.0, 1e-200, 1e200]),
)
@settings(max_examples=30, deadline=None)
def test_the_norm_of_the_scales_without_the_mean_is_an_eigenvalue(d, equal, seed, size):
    scale = np.random.default_rng(seed).normal(size=d)
    scale[:equal] = np.abs(scale).max()
    project = np.eye(d) - 1 / d
    largest = np.linalg.eigvalsh(project @ np.diag(scale**2) @ project)[-1]
    found = layer_norm_bounds(jnp.asarray(size * scale), eps=0.01)
    np.testing.assert_allclose(found.radius / size, math.sqrt(d * largest), rtol=1e-9)
    np.testing.assert_allclose(found.lipschitz / size, 10 * math.sqrt(largest), rtol=1e-9)


@several_keys
def test_gradients_of_the_bounds(key):
    scale = jax.random.normal(key, (5,))
    alpha = jax.random.uniform(jax.random.fold_in(key, 1), (5,), minval=0.2, maxval=0.8)
    check_grads(jax.jit(lambda g: shift.layer_norm_bounds(g, eps=1e-2)), (scale,), order=1)
    for bounds in (shift.dyt_bounds, shift.derf_bounds, shift.unitized_bounds):
        check_grads(jax.jit(bounds), (alpha, scale), order=1)
    at_zero = jax.grad(lambda g: shift.layer_norm_bounds(g).radius)(0 * scale)
    np.testing.assert_array_equal(at_zero, 0)


def test_equal_scales_have_the_paper_s_numbers():
    """If scales are 1, the radius of unitization is 1/α, and the radius of other layers is √d."""
    ones = jnp.ones(9)
    for bounds in (shift.layer_norm_bounds(ones), shift.rms_norm_bounds(ones)):
        np.testing.assert_allclose(shift.certified_upper_bound(bounds), 6)
    np.testing.assert_allclose(shift.dyt_bounds(0.5, ones).radius, 3)
    bounds = shift.unitized_bounds(0.25, ones)
    np.testing.assert_allclose(2 * bounds.radius, shift.unitized_upper_bound(0.25))
    np.testing.assert_allclose(bounds.lipschitz, 4 / 3)


@pytest.mark.parametrize("bounds", [shift.dyt_bounds, shift.derf_bounds])
def test_the_sign_of_alpha_changes_no_bound(bounds):
    scale, alpha = jnp.array([2.0, -1.0, 0.5]), jnp.array([0.5, 3.0, 0.2])
    for one, other in zip(bounds(alpha, scale), bounds(-alpha, scale), strict=True):
        assert one == other > 0


def test_edges():
    one = shift.layer_norm_bounds(jnp.ones(1))
    assert (one.radius, one.lipschitz) == (0, 0)
    without_eps = shift.rms_norm_bounds(jnp.ones(4), eps=0.0)
    assert (without_eps.radius, without_eps.lipschitz) == (2, math.inf)
    assert shift.certified_upper_bound(without_eps, 0.1) == 4
    nothing = shift.dyt_bounds(0.0, jnp.ones(4))
    assert (nothing.radius, nothing.lipschitz) == (0, 0)
    assert shift.unitized_bounds(1.0, jnp.ones(4)).lipschitz == math.inf
    assert shift.unitized_bounds(0.0, jnp.ones(4)).radius == math.inf
    for alpha in (1.5, -0.5, jnp.array([0.5, 0.5, 0.5, -0.1]), jnp.array([0.5, 0.5, 1.1, 0.5])):
        assert np.isnan(shift.unitized_bounds(alpha, jnp.ones(4))).all()
    some = shift.derf_bounds(jnp.array([0.0, -0.5, 2.0]), jnp.array([9.0, 3.0, -4.0]))
    np.testing.assert_allclose(some, [5, 8 * 2 / math.sqrt(math.pi)])
    assert shift.certified_upper_bound(some) == 10
    half = shift.certified_upper_bound(some, jnp.asarray(0.5))
    np.testing.assert_allclose(half, 8 / math.sqrt(math.pi))


def test_a_bound_of_zero_times_infinity_is_zero():
    constant, steep = (shift.LayerBounds(*map(jnp.float64, b)) for b in ((1, 0), (1, math.inf)))
    assert shift.certified_upper_bound(constant) == 0  # All outputs of the layer are equal.
    assert shift.certified_upper_bound(steep, 0.0) == 0  # The distance of the inputs is 0.
    assert shift.certified_upper_bound(steep, 1e-9) == 2
    assert shift.layer_norm_bounds(jnp.ones(1), eps=0.0) == (0, 0)
    slope = jax.grad(lambda b: shift.certified_upper_bound(steep._replace(lipschitz=b), 0.5))
    assert slope(0.0) == 0.5


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="scale must be a vector"):
        shift.rms_norm_bounds(jnp.ones(0))


def test_the_claims_of_the_library_hold(key):
    for verdict in claims.check_all(OWN["jaxnorm"], key):
        assert verdict.as_recorded, verdict.claim.name
        assert verdict.text == "true"


NAMES = [name for name in vars(shift) if name.endswith("_bounds") and not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["radius", "lipschitz"])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_wrong_bound_is_noticed(monkeypatch, key, name, part, factor):
    right = getattr(shift, name)

    def wrong(*args, **options):
        found = right(*args, **options)
        return found._replace(**{part: factor * getattr(found, part)})

    monkeypatch.setattr(shift, name, wrong)
    assert not all(verdict.as_recorded for verdict in claims.check_all(OWN["jaxnorm"], key))


def test_the_steepest_unitized_layer_of_several_alphas_is_below_its_bound():
    """At random points of many radii, the norm of the Jacobian is at most the bound."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for d in (2, 3, 8):
        alpha, scale = jnp.asarray(rng.uniform(0, 0.95, d)), jnp.asarray(rng.normal(size=d))
        x = rng.normal(size=(300, d)) * 10 ** rng.uniform(-2, 2, (300, 1))

        def layer(x, alpha=alpha, scale=scale):
            return scale * jaxnorm.unitize_bounded(x, alpha)

        slopes = np.asarray(jax.jit(jax.vmap(jax.jacobian(layer)))(jnp.asarray(x)))
        bound = float(shift.unitized_bounds(alpha, scale).lipschitz)
        worst = max(worst, np.linalg.norm(slopes, 2, axis=(1, 2)).max() / bound)
    assert worst <= 1


def test_unequal_alphas_have_five_fourths_of_the_largest_slope():
    alpha, scale = jnp.array([0.2, 0.7, 0.5]), jnp.array([3.0, 1.0, -1.0])
    np.testing.assert_allclose(shift.unitized_bounds(alpha, scale).lipschitz, 1.25 * 3 / 0.8)
    np.testing.assert_allclose(shift.unitized_bounds(0.2, scale).lipschitz, 3 / 0.8)
