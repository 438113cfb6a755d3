import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from geometry import angles, gram, monte_carlo
from geometry.mean_field import (
    _rescaled_kernel,
    rescale_rms_step,
    rescale_step,
    rms_angle,
    rms_cosine_step,
    standardize_step,
)
from geometry.odd_points import recentred_angle
from jaxnorm import rescale, rescale_rms, standardize
from tests.support.gradients import several_keys

MAPS = {
    rescale_rms: jax.jit(rescale_rms_step),
    standardize: jax.jit(standardize_step),
    rescale: jax.jit(rescale_step),
}
cosine_step = jax.jit(rms_cosine_step)
each_map = pytest.mark.parametrize(("part", "step"), MAPS.items(), ids=lambda f: f.__name__)
# The derivatives of `rescale_rms_step` are tested only in slow tests, because `standardize_step`
# calls the same code.
each_derivative = pytest.mark.parametrize(
    ("part", "step"),
    [
        pytest.param(*item, marks=[pytest.mark.slow] if item[0] is rescale_rms else [])
        for item in MAPS.items()
    ],
    ids=lambda f: f.__name__,
)


def symmetric(n, cosine):
    return jnp.eye(n) * (1 - cosine) + cosine


@each_map
def test_a_random_layer_has_this_mean_gram_matrix(part, step, key):
    x = jax.random.normal(key, (7, 12)) + 0.3

    def draw(key):
        z = x @ jax.random.normal(key, (12, 1))
        return 2 * gram(jax.nn.relu(part(z)))

    mean, stderr, _ = monte_carlo(draw, jax.random.key(1), 20_000)
    assert (abs(mean - step(gram(x))) < 5 * stderr + 1e-12).all()


def test_samples_on_one_line_keep_their_lengths_and_sides():
    """Features of rank 1 are all divided by one length; ReLU keeps the features of one sign."""
    lengths = jnp.array([1.0, -2.0, 3.0, 0.5])
    sides = lengths[:, None] * lengths[None] > 0
    expected = jnp.where(sides, jnp.outer(lengths, lengths), 0) / jnp.mean(lengths**2)
    found = MAPS[rescale_rms](7.0 * jnp.outer(lengths, lengths))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@each_map
def test_the_scale_of_the_batch_does_not_matter(part, step, key):
    g = gram(jax.random.normal(key, (6, 8)))
    np.testing.assert_allclose(step(1e12 * g), step(g), rtol=1e-8, atol=1e-9)
    if part is not rescale:
        np.testing.assert_allclose(jnp.trace(step(g)), 6, rtol=1e-8)


@pytest.mark.parametrize("n", [3, 10, 50])
def test_a_symmetric_batch_stands_at_the_recentred_angle(n):
    g = MAPS[standardize](symmetric(n, 0.4))
    np.testing.assert_allclose(np.arccos(g[0, 1] / g[0, 0]), recentred_angle(n), rtol=1e-8)


@pytest.mark.parametrize(("layers", "degrees"), [(1, 71.44), (2, 63.64), (5, 59.05), (30, 58.75)])
def test_many_rescaled_samples_have_the_reference_angles(layers, degrees):
    cosine = jnp.zeros(())
    for _ in range(layers):
        cosine = cosine_step(cosine)
    assert abs(np.degrees(np.arccos(cosine)) - degrees) < 5e-3


def test_the_map_of_many_samples_is_the_limit_of_the_exact_one():
    for cosine in (0.2, 0.6):
        few, many = (MAPS[rescale_rms](symmetric(n, cosine)) for n in (20, 80))
        limit = cosine_step(jnp.array(cosine))
        off, less = (abs(g[0, 1] / g[0, 0] - limit) for g in (few, many))
        assert less < 0.3 * off < 0.01


def test_58_75_degrees_is_where_rescaling_about_zero_stands():
    angle = rms_angle()
    assert abs(np.degrees(angle) - 58.75) < 5e-3
    fixed = np.cos(angle)
    np.testing.assert_allclose(cosine_step(jnp.asarray(fixed)), fixed, rtol=1e-12)


@each_derivative
@several_keys
def test_gradients(part, step, key):
    check_grads(step, (gram(jax.random.normal(key, (5, 7))),), order=1, modes=["rev"])


@each_map
def test_gradients_are_finite_for_equal_norms_and_parallel_samples(part, step):
    parallel = jnp.concatenate([jnp.eye(5), 2 * jnp.eye(5)[:2]])
    gradient = jax.jit(jax.grad(lambda g: step(g)[0, 1]))
    for x in (jnp.eye(7), parallel):
        assert np.isfinite(gradient(gram(x))).all()


@each_map
def test_gradients_hold_for_more_samples_than_features(part, step, key):
    x, along = jax.random.normal(key, (2, 6, 4)) + 3
    total = jax.jit(lambda t: jnp.sin(step(gram(x + t * along))).sum())
    coarse, fine = ((total(h) - total(-h)) / (2 * h) for h in (1e-3, 5e-4))
    expected = (4 * fine - coarse) / 3  # Richardson's extrapolation
    for slope in (jax.jacfwd(total), jax.grad(total)):
        np.testing.assert_allclose(slope(0.0), expected, rtol=1e-7)


def test_the_map_of_many_samples_has_a_finite_gradient_at_right_angles():
    assert np.isfinite(jax.jit(jax.grad(rms_cosine_step))(0.0))


@each_derivative
@several_keys
def test_second_derivatives_at_equal_eigenvalues(part, step, key):
    cosine = jax.random.uniform(key, minval=0.1, maxval=0.8)
    check_grads(step, (symmetric(5, cosine),), order=2, modes=["rev"])


@each_map
def test_one_factorization_serves_the_whole_quadrature(part, step):
    program = str(jax.make_jaxpr(step)(jnp.eye(6)))
    assert program.count("= eigh[") == 1
    assert "cholesky" not in program


def test_float32_of_nearly_equal_samples_keeps_six_digits(key):
    x = jax.random.normal(key, (16, 32))
    x = x.at[1].set(x[0] + 1e-4 * x[2])
    for step in MAPS.values():
        wide, short = step(gram(x)), step(gram(x).astype(jnp.float32))
        np.testing.assert_allclose(short, wide, atol=2e-6)


def test_float32_keeps_five_digits(key):
    x = jax.random.normal(key, (6, 4))
    for step in MAPS.values():
        wide, short = step(gram(x)), step(gram(x).astype(jnp.float32))
        assert short.dtype == jnp.float32
        np.testing.assert_allclose(short, wide, atol=1e-4)


def test_about_the_mean_angles_collapse():
    x = np.random.default_rng(0).normal(size=(20, 30))
    g = x @ x.T
    for _ in range(30):
        g = np.asarray(MAPS[rescale](g))
        g = g / g[0, 0]
    roots = np.linalg.cholesky(g + 1e-12 * np.eye(20))
    off = np.asarray(jax.jit(angles)(roots))[np.triu_indices(20, 1)]
    assert np.degrees(np.median(off)) < 14


def test_impossible_sizes():
    with pytest.raises(ValueError, match="at least 4 samples; got 3"):
        rescale_step(jnp.eye(3))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_gram_matrix_is_refused():
    with pytest.raises(ValueError, match=r"\(samples, samples\); got \(2, 3\)"):
        rescale_rms_step(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="must be finite; 1 of 4 elements are not"):
        rescale_rms_step(jnp.eye(2).at[0, 0].set(jnp.inf))


@each_map
def test_the_scale_of_the_batch_does_not_matter_even_in_float32(part, step, key):
    x = np.asarray(jax.random.normal(key, (6, 9), jnp.float32))
    g, size = x @ x.T, np.float32(1e-20)

    @jax.jit
    def both(g):
        return step(g), jax.grad(lambda g: step(g)[0, 1])(g)

    (tiny, gradient), (found, _) = both(size * g), both(g)
    np.testing.assert_allclose(tiny, found, rtol=1e-4, atol=1e-4)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("step", [rescale_rms_step, standardize_step, rescale_step])
def test_nodes_are_summed_over_all_blocks(step, monkeypatch, key):
    g = gram(jax.random.normal(key, (6, 9)))
    whole = step(g)
    monkeypatch.setattr(_rescaled_kernel, "_BLOCK", 7 * g.size * g.dtype.itemsize)
    np.testing.assert_allclose(step(g), whole, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 3])
def test_rescaled_samples_on_a_line_have_the_exact_gram_matrix(n):
    # Every feature is a multiple of the same vector, so rescaling leaves only its sign to chance.
    x = np.linspace(-1, 2, n).astype("float32")
    expected = np.maximum(np.outer(x, x), 0) * n / np.sum(x * x)
    found = jax.jit(rescale_rms_step)(gram(jnp.asarray(x)[:, None]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
