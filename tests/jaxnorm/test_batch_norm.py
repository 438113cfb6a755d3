"""Batch norm and unitized batch norm, compared with Algorithms 1 and 2 in NumPy and float64."""

import inspect
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jaxnorm
from jaxnorm import BatchStatistics, bessel, bounded, interpolated, recenter, rescale, unit_vector
from jaxnorm._statistics import Sums, mean_and_variance
from tests.support import numpy_layers
from tests.support.jitted import jitted
from tests.support.numpy_programs import evaluated

batch_norm, unitized_batch_norm, batch_statistics = map(
    jitted, (jaxnorm.batch_norm, jaxnorm.unitized_batch_norm, jaxnorm.batch_statistics)
)
SHAPES = [(6, 5), (4, 7, 3), (3, 4, 5, 2), (2, 2, 3, 2, 3)]


def case(shape, mean=0.0, seed: Any = 0):
    """An input, and random alpha (some outside [0, 1]), scale and bias."""
    rng = np.random.default_rng(seed)
    c = shape[-1]
    x = rng.gamma(2.0, size=shape) * rng.uniform(0.5, 2, c) + mean
    return x, rng.uniform(-0.5, 1.5, c), rng.uniform(0.5, 2, c), rng.normal(size=c)


def eq_10(alpha, s, eps):
    return alpha / np.sqrt(s + eps) + 1 - alpha


def eq_9(alpha, s, eps):
    return 1 / (alpha * np.sqrt(s + eps) + 1 - alpha)


def algorithm_2(x, alpha, scale, bias, *, eps, pixels=None, mean=None, var=None, factor=eq_10):
    """Algorithm 2 in NumPy, line by line and one sample at a time."""
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes) if mean is None else mean
    var = ((x - mean) ** 2).mean(axes) if var is None else var
    area = int(np.prod(x.shape[1:-1]))
    y = np.empty_like(x)
    for k, image in enumerate(x):
        normalized = (image - mean) / np.sqrt(var + eps)
        s = np.sum(normalized**2) / ((pixels or area) * area)
        y[k] = scale * factor(alpha, s, eps) * normalized + bias
    return y


def with_gradients(layer):
    """A compiled function that returns the output of `layer` and the gradients of its sum."""

    def both(*args):
        y, gradients = jax.vjp(layer, *args)
        return y, gradients(jnp.ones_like(y))

    return jax.jit(both)


def arrays(*values, dtype="float64") -> Any:
    return [jnp.asarray(value, dtype) for value in values]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pixels", [None, 1, 7.5])
def test_training_against_the_algorithm(shape, pixels):
    values = case(shape)
    y, statistics = unitized_batch_norm(*arrays(*values), eps=1e-3, pixels=pixels)
    expected = algorithm_2(*values, eps=1e-3, pixels=pixels)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(statistics.mean, values[0].reshape(-1, shape[-1]).mean(0))


@pytest.mark.parametrize("shape", SHAPES)
def test_inference_against_the_algorithm(shape):
    values = case(shape)
    mean, var = np.full(shape[-1], 0.3), np.full(shape[-1], 1.7)
    given = BatchStatistics(*arrays(mean, var, 1.0))
    x, alpha, scale, bias = arrays(*values)
    y, _ = unitized_batch_norm(x, alpha, scale, bias, given, eps=1e-3)
    expected = algorithm_2(*values, eps=1e-3, mean=mean, var=var)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [interpolated, bounded])
def test_in_inference_a_sample_has_the_same_derivatives_in_every_batch(factor):
    x, alpha, scale, bias = arrays(*case((4, 5, 5, 6)))
    given = batch_statistics(x)

    def loss(alpha, x, given):
        y, _ = unitized_batch_norm(x, alpha, scale, bias, given, pixels=7, factor=factor)
        return jnp.sin(y[:2]).sum()

    def derivatives(x):
        return jax.jit(jax.grad(loss, (0, 1, 2)))(alpha, x, given)

    (alone, x_alone, _), (among, x_among, _) = found = derivatives(x[:2]), derivatives(x)
    np.testing.assert_allclose(alone, among, rtol=1e-10)
    np.testing.assert_allclose(x_alone, x_among[:2], rtol=1e-8, atol=1e-12)
    for small, large in zip(*(statistics[:2] for *_, statistics in found), strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-10)


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 2, 3)])
@pytest.mark.parametrize("eps", [0.0, 1e-60, 1e-5])
@pytest.mark.parametrize(("factor", "a"), [(interpolated, 0.5), (bounded, 0.5), (bounded, 1.0)])
def test_a_sample_at_the_mean_becomes_the_bias_with_finite_gradients(shape, eps, factor, a):
    x = jnp.zeros(shape, "float32").at[1].set(2)
    alpha, given = jnp.full(shape[-1], a, "float32"), batch_statistics(x)
    given = given._replace(mean=jnp.zeros_like(given.mean))

    def layer(x, alpha):
        y, _ = unitized_batch_norm(x, alpha, bias=alpha, statistics=given, eps=eps, factor=factor)
        return y

    y, gradients = with_gradients(layer)(x, alpha)
    np.testing.assert_array_equal(y[0], a)
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inference", [False, True])
def test_alpha_zero_is_batch_norm(shape, inference):
    x, _, scale, bias = arrays(*case(shape))
    statistics = batch_statistics(x[:2]) if inference else None
    plain, _ = batch_norm(x, scale, bias, statistics)
    unitized, _ = unitized_batch_norm(x, jnp.zeros_like(scale), scale, bias, statistics)
    np.testing.assert_allclose(unitized, plain, rtol=1e-13, atol=1e-13)


def test_alpha_one_without_eps_gives_vectors_norm_one_and_images_norm_hw():
    for shape, norm in (((6, 5), 1.0), ((3, 4, 5, 2), 20.0)):
        x = jnp.asarray(case(shape)[0])
        y, _ = unitized_batch_norm(x, jnp.ones(shape[-1]), eps=0.0)
        norms = np.linalg.norm(np.reshape(y, (len(x), -1)), axis=1)
        np.testing.assert_allclose(norms, norm, rtol=1e-10)


def test_one_pixel_is_algorithm_1_on_normalized_vectors():
    x = jnp.asarray(case((6, 5))[0])
    y, _ = unitized_batch_norm(x, jnp.ones(5), eps=0.0)
    np.testing.assert_allclose(y, unit_vector(batch_norm(x, eps=0.0)[0]), rtol=1e-10)


def test_the_mean_of_line_9_is_channels_over_pixels():
    # With alpha 1, outputs are divided by √s. On average over samples, s is channels/pixels.
    x = jnp.asarray(case((8, 4, 4, 3))[0])
    plain, _ = batch_norm(x, eps=0.0)
    unitized, _ = unitized_batch_norm(x, jnp.ones(3), eps=0.0)
    s = np.mean((np.asarray(plain) / np.asarray(unitized)) ** 2, (1, 2, 3))
    np.testing.assert_allclose(s.mean(), 3 / 16, rtol=1e-10)


def test_tiling_an_image_changes_nothing_at_fixed_pixels():
    x, alpha, scale, bias = arrays(*case((2, 3, 3, 2)))
    statistics = batch_statistics(x)
    tiled = jnp.asarray(np.tile(x, (1, 2, 2, 1)))
    small, _ = unitized_batch_norm(x, alpha, scale, bias, statistics, pixels=9)
    large, _ = unitized_batch_norm(tiled, alpha, scale, bias, statistics, pixels=9)
    np.testing.assert_allclose(np.asarray(large)[:, :3, :3], small, rtol=1e-12)
    free, _ = unitized_batch_norm(tiled, alpha, scale, bias, statistics)
    assert abs(np.asarray(free)[:, :3, :3] - np.asarray(small)).max() > 0.01


@pytest.mark.parametrize("layer", ["batch", "unitized"])
@pytest.mark.parametrize(  # vectors are marked slow, because the next test covers vectors
    "shape", [pytest.param((6, 5), marks=pytest.mark.slow), (3, 4, 5, 2)]
)
@pytest.mark.parametrize("inference", [False, True])
def test_gradients(layer, shape, inference):
    statistics = batch_statistics(arrays(*case(shape))[0] + 1) if inference else None

    @jax.jit
    def loss(x, alpha, scale, bias):
        if layer == "batch":
            y, _ = batch_norm(x, scale, bias, statistics, eps=1e-3)
        else:
            y, _ = unitized_batch_norm(x, alpha, scale, bias, statistics, eps=1e-3)
        return jnp.sum(jnp.sin(y))

    # Reverse mode is checked up to second derivatives. Forward mode, which is slower to compile, is
    # checked only for first derivatives.
    for key in jax.random.split(jax.random.key(0), 3):
        point = arrays(*case(shape, seed=np.asarray(jax.random.key_data(key))))
        check_grads(loss, point, order=2, modes=["rev"])
        check_grads(loss, point, order=1, modes=["fwd"])


@pytest.mark.parametrize(
    ("case_of", "factor"),
    [
        pytest.param("masked", interpolated, marks=pytest.mark.slow),
        ("masked", bounded),
        ("inference", interpolated),
        pytest.param("inference", bounded, marks=pytest.mark.slow),
        pytest.param("training", bounded, marks=pytest.mark.slow),
        # A user could pass such a function.
        ("training", lambda alpha, square: bounded(jnp.abs(alpha), square)),
    ],
)
def test_vectors_have_all_derivatives_of_the_formula(case_of, factor):
    width = 3
    x, alpha, scale, bias = arrays(*case((5, width)))
    alpha += 0.5  # for some alpha outside [0, 1], `bounded` divides by a number near zero
    keep = jnp.arange(5) != 1 if case_of == "masked" else jnp.ones(5, bool)
    moments = batch_statistics(x + 1)
    weights = jnp.cos(jnp.arange(5.0 * width).reshape(5, width))

    def ours(x, alpha, scale, bias, mean, var):
        given = BatchStatistics(mean, var, moments.count) if case_of == "inference" else None
        where = keep if case_of == "masked" else None
        return unitized_batch_norm(
            x, alpha, scale, bias, given, eps=0.1, pixels=3, factor=factor, where=where
        )

    def formula(x, alpha, scale, bias, mean, var):
        if case_of != "inference":
            mean = x[keep].mean(0)
            var = ((x[keep] - mean[None]) ** 2).mean(0)
        normalized = (x - mean[None]) / jnp.sqrt(var + 0.1)[None]
        norm = jnp.sqrt((normalized**2).sum(1, keepdims=True) / 3 + 0.1)
        alpha = jnp.broadcast_to(alpha[None], x.shape)
        eq_10, eq_9 = alpha / norm + 1 - alpha, 1 / (alpha * norm + 1 - alpha)
        gain = eq_10 if factor is interpolated else eq_9
        return scale[None] * gain * normalized + bias[None], BatchStatistics(mean, var, keep.sum())

    point, unflattened = jax.flatten_util.ravel_pytree(
        (x, alpha, scale, bias, moments.mean, moments.var)
    )

    def derivatives(layer):
        def loss(point):
            y, statistics = layer(*unflattened(point))
            return (
                jnp.sum(weights * jnp.sin(y))
                + jnp.sum(statistics.mean**2)
                + jnp.sum(statistics.var**2)
            )

        def slope(point):
            return jax.jvp(loss, (point,), (direction,))[1]

        def projected(point):
            return jnp.vdot(jax.grad(loss)(point), direction)

        all_of = (loss, slope, *(jax.grad(f) for f in (loss, slope, projected)))
        return jax.jit(lambda point: [d(point) for d in all_of])(point)

    direction = jnp.sin(jnp.arange(float(point.size)))
    for found, expected in zip(derivatives(ours), derivatives(formula), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("factor", [interpolated, bounded])
def test_vectors_whose_square_overflows_have_finite_gradients(factor):
    given = BatchStatistics(*arrays([0.0, 0.0], [1.0, 1.0], 1.0, dtype="float32"))
    x, alpha = arrays([[1e30, 1.0], [1.0, 2.0]], [0.5, 0.5], dtype="float32")

    def loss(x, alpha):
        y, _ = unitized_batch_norm(x, alpha, statistics=given, factor=factor)
        return jnp.tanh(y).sum()

    for gradient in jax.jit(jax.grad(loss, (0, 1)))(x, alpha):
        assert np.isfinite(gradient).all()
    y, _ = unitized_batch_norm(x, alpha, statistics=given)
    np.testing.assert_allclose(y[0], x[0] / 2, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 4), (1, 1, 4)])
def test_a_vector_at_a_pole_of_eq_9_has_finite_outputs_and_gradients(shape):
    x = jnp.array([1.5, 1.0, 0.5, 0.5], "float32").reshape(shape)
    given = BatchStatistics(*arrays(np.zeros(4), np.full(4, 0.75), 1.0, dtype="float32"))

    def layer(x, alpha):  # √(‖x̂‖² + ε) = 2, so the divisor for alpha −1 is −2 + 1 + 1 = 0
        return unitized_batch_norm(x, alpha, statistics=given, eps=0.25, factor=bounded)[0]

    y, gradients = with_gradients(layer)(x, jnp.full(4, -1.0, "float32"))
    for found in (y, *gradients):
        assert np.isfinite(found).all()


@jitted
def output_and_gradients(x, alpha, scale, bias, upstream, *, factor):
    def loss(*args):
        y, _ = unitized_batch_norm(*args, factor=factor)
        return jnp.sum(y * upstream), y

    gradients, y = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(x, alpha, scale, bias)
    return y, *gradients


@pytest.mark.parametrize(
    ("shape", "factor", "mean", "tolerance"),
    [
        *(((8, 2), interpolated, mean, 1e-5) for mean in (0.0, 1e3)),
        *(((64, 10), interpolated, mean, 1e-5) for mean in (0.0, 10.0, 1e3)),
        *(
            (shape, factor, mean, 1e-5 if mean < 1e3 else tolerance)
            for shape, tolerance in (((8, 256), 1e-5), ((16, 8, 8, 6), 1e-3))
            for factor in (interpolated, bounded)
            for mean in (0.0, 10.0, 1e3)
        ),
    ],
)
def test_float32_outputs_and_gradients_against_float64(shape, factor, mean, tolerance):
    x, alpha, *affine = case(shape, mean)
    # For alpha outside [0, 1], `bounded` can divide by a number near zero, which costs precision.
    alpha = alpha if factor is interpolated else np.clip(alpha, 0, 1)
    values = tuple(value.astype(np.float32) for value in (x, alpha, *affine))
    upstream = np.random.default_rng(1).normal(size=shape)
    narrow, wide = (
        output_and_gradients(*arrays(*values, upstream, dtype=dtype), factor=factor)
        for dtype in ("float32", "float64")
    )
    for found, expected in zip(narrow, wide, strict=True):
        assert found.dtype == np.float32
        error = np.linalg.norm(np.asarray(found, np.float64) - expected)
        assert error < tolerance * np.linalg.norm(expected)


def test_large_means_in_float32_come_out_with_unit_deviation():
    x = np.random.default_rng(2).normal(1e4, 1.0, (256, 8, 8, 4)).astype(np.float32)
    y, _ = batch_norm(jnp.asarray(x))
    np.testing.assert_allclose(np.std(np.asarray(y, np.float64), (0, 1, 2)), 1, atol=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(128, 255), (128, 256), (32, 1024), (16, 5, 5, 256)])
def test_a_large_mean_costs_no_digits_at_any_width(shape, alpha):
    x = np.random.default_rng(5).normal(1e4, 1.0, shape).astype(np.float32)
    y, statistics = unitized_batch_norm(jnp.asarray(x), alpha)
    exact = algorithm_2(x.astype(np.float64), alpha, 1, 0, eps=1e-5)
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(statistics.var, x.astype(np.float64).var(axes), rtol=1e-5)


def test_bfloat16_inference_keeps_its_statistics_in_float32():
    x = np.random.default_rng(3).normal(10.3, 0.1, (4096, 8))
    given = BatchStatistics(*arrays(np.full(8, 10.3), np.full(8, 0.01), 1.0, dtype="float32"))
    x = jnp.asarray(x, jnp.bfloat16)
    y, _ = batch_norm(x, statistics=given)
    assert y.dtype == jnp.bfloat16
    exact = (np.asarray(x, np.float64).mean(0) - 10.3) / 0.1
    np.testing.assert_allclose(np.asarray(y, np.float64).mean(0), exact, atol=5e-3)


@pytest.mark.parametrize("width", [2, 256])
@pytest.mark.parametrize(
    "layer",
    [batch_norm, lambda x, *affine: unitized_batch_norm(x, jnp.ones_like(x[0]), *affine)],
    ids=["batch_norm", "unitized"],
)
def test_constant_channels_become_the_bias_with_finite_gradients(layer, width):
    values = jnp.geomspace(1e-3, 1e4, width, dtype=jnp.float32)
    x, scale, bias = jnp.broadcast_to(values, (37, width)), jnp.ones(width), 2 + values
    y, statistics = layer(x, scale, bias)
    np.testing.assert_array_equal(y, 2 + x)
    np.testing.assert_array_equal(statistics.mean, values)
    np.testing.assert_array_equal(statistics.var, 0)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(layer(x, scale)[0] ** 3)))(x)
    assert np.isfinite(gradient).all()


def test_a_batch_that_is_all_masked_gives_no_nan():
    x = jnp.ones((3, 2, 2, 4))
    nothing = jnp.zeros(3, bool)[:, None, None]
    for y, statistics in (
        batch_norm(x, where=nothing),
        unitized_batch_norm(x, jnp.ones(4), where=nothing),
    ):
        assert np.isfinite(y).all()
        assert statistics.count == 0


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 3), (4, 2, 2, 3)])
def test_a_masked_sample_is_left_out_of_statistics_and_normalized_like_any_other(shape, inference):
    x, alpha, scale, bias = case(shape)
    keep = np.array([True, True, False, True])
    own = x[keep].reshape(-1, 3)
    mean, var = own.mean(0), own.var(0)
    given = BatchStatistics(*arrays(mean, var, 1.0)) if inference else None
    where = jnp.asarray(keep).reshape(4, *(1 for _ in shape[1:-1]))
    y, statistics = unitized_batch_norm(
        *arrays(x, alpha, scale, bias), statistics=given, where=where
    )
    expected = algorithm_2(x, alpha, scale, bias, eps=1e-5, mean=mean, var=var)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-12)


def test_a_vector_is_an_image_of_one_pixel_masked_or_not():
    x, alpha, scale, bias = arrays(*case((5, 3)))
    keep = jnp.arange(5) != 3
    for where in (None, keep):
        as_image = None if where is None else where[:, None]
        vectors, _ = unitized_batch_norm(x, alpha, scale, bias, where=where)
        images, _ = unitized_batch_norm(x[:, None], alpha, scale, bias, where=as_image)
        np.testing.assert_allclose(vectors, images[:, 0], rtol=1e-12, atol=1e-12)


def test_python_numbers_do_where_one_number_is_meant():
    x = jnp.asarray(case((4, 2, 3))[0])
    half, two, one = (jnp.full(3, value) for value in (0.5, 2.0, 1.0))
    given = BatchStatistics(half, two, jnp.ones(()))
    as_numbers: Any = BatchStatistics
    numbers = as_numbers(0.5, 2.0, 1)
    for found, expected in (
        (
            jaxnorm.unitized_batch_norm(x, 0.5, 2, 1.0),
            jaxnorm.unitized_batch_norm(x, half, two, one),
        ),
        (jaxnorm.batch_norm(x, 2, 1), jaxnorm.batch_norm(x, two, one)),
        (jaxnorm.batch_norm(x, 2.0, 1, numbers), jaxnorm.batch_norm(x, two, one, given)),
        (
            jaxnorm.unitized_batch_norm(x, 1, statistics=numbers),
            jaxnorm.unitized_batch_norm(x, one, statistics=given),
        ),
    ):
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert bessel(5) == bessel(jnp.array(5.0)) == 1.25


def test_masked_pixels_add_nothing_to_the_norm():
    x, alpha, scale, bias = arrays(*case((3, 4, 2)))
    padded = jnp.asarray(np.concatenate([x, np.full((3, 2, 2), 50.0)], 1))
    valid = jnp.asarray(np.broadcast_to(np.arange(6) < 4, (3, 6)))
    y, _ = unitized_batch_norm(padded, alpha, scale, bias, pixels=4, where=valid)
    expected, _ = unitized_batch_norm(x, alpha, scale, bias, pixels=4)
    np.testing.assert_allclose(np.asarray(y)[:, :4], expected, rtol=1e-10)


def test_masked_pixels_add_nothing_to_the_norm_in_inference():
    values = case((3, 4, 2))
    mean, var = np.array([0.5, -1.0]), np.array([2.0, 0.3])
    padded = np.concatenate([values[0], np.full((3, 2, 2), 50.0)], 1)
    valid = jnp.asarray(np.broadcast_to(np.arange(6) < 4, (3, 6)))
    statistics = BatchStatistics(*arrays(mean, var, 1.0))
    y, _ = unitized_batch_norm(
        *arrays(padded, *values[1:]), statistics=statistics, eps=1e-3, pixels=4, where=valid
    )
    expected = algorithm_2(*values, eps=1e-3, pixels=4, mean=mean, var=var)
    np.testing.assert_allclose(np.asarray(y)[:, :4], expected, rtol=1e-10)


def test_squares_and_variances_are_never_negative_however_sums_round():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300)).astype("float32")
    # The second of the three images in a group is the mean of the group. After the mean is
    # subtracted, only rounding errors remain of this image, and they can have either sign.
    x = jnp.asarray(np.stack([a, (a + b) / 2, b], 1).reshape(-1, 1, 1).repeat(5, 1))
    y, _ = unitized_batch_norm(x, 1.0, groups=300, eps=0.0, factor=lambda alpha, s: jnp.sqrt(s))
    assert jnp.isfinite(y).all()
    value = np.float32(rng.normal(size=1000))
    sums = Sums(*arrays(3 * value, 3 * value**2, np.full(1000, 3.0), dtype="float32"))
    _, var, _ = mean_and_variance(sums)
    assert (var >= 0).all()
    assert (var < 1e-6 * np.square(value)).all()


@pytest.mark.parametrize(
    "layer", [batch_norm, lambda x, **o: unitized_batch_norm(x, jnp.ones(2), **o)]
)
def test_shards_are_normalized_as_one_batch(layer):
    x = jnp.asarray(case((8, 3, 2))[0])
    spread = jax.vmap(lambda x: layer(x, axis_name="s")[0], axis_name="s")
    parts = np.asarray(jax.jit(spread)(np.reshape(x, (4, 2, 3, 2))))
    np.testing.assert_allclose(parts.reshape(x.shape), layer(x)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inference", [False, True])
def test_the_bounded_layer_has_eq_9_in_place_of_eq_10(shape, inference):
    x, alpha, scale, bias = case(shape)
    alpha = np.clip(alpha, 0, 1)
    mean, var = (np.full(shape[-1], 0.3), np.full(shape[-1], 1.7)) if inference else (None, None)
    given = BatchStatistics(*arrays(mean, var, 1.0)) if inference else None
    arguments = arrays(x, alpha, scale, bias)
    found, _ = unitized_batch_norm(*arguments, statistics=given, eps=1e-3, factor=bounded)
    expected = algorithm_2(x, alpha, scale, bias, eps=1e-3, mean=mean, var=var, factor=eq_9)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5, 2)])
def test_eq_9_bounds_the_norm_that_eq_10_lets_grow(shape):
    # One sample is far from the others. With given statistics of mean 0 and variance 1, the norm of
    # the far sample after Equation 10 exceeds the bound of Theorem 3.3.
    x = jnp.asarray(case(shape)[0]).at[0].multiply(1e3)
    area = int(np.prod(shape[1:-1]))
    alpha = jnp.full(shape[-1], 0.5)
    bound = area / 0.5
    norms = {}
    for factor in (bounded, interpolated):
        y, _ = unitized_batch_norm(x, alpha, eps=0.0, factor=factor)
        norms[factor] = np.linalg.norm(np.reshape(y, (len(x), -1)), axis=1).max()
    assert norms[bounded] < bound
    statistics = BatchStatistics(*arrays(np.zeros(shape[-1]), np.ones(shape[-1]), 1.0))
    y, _ = unitized_batch_norm(x, alpha, statistics=statistics, eps=0.0)
    assert np.linalg.norm(np.asarray(y)[0]) > bound


def test_alpha_is_clipped_or_squashed_by_the_function_that_is_handed_over():
    x, _, scale, bias = arrays(*case((3, 4, 5, 2)))
    free = jnp.array([-0.7, 1.6])
    clipped, _ = unitized_batch_norm(
        x, free, scale, bias, factor=lambda a, s: interpolated(jnp.clip(a, 0, 1), s)
    )
    expected, _ = unitized_batch_norm(x, jnp.array([0.0, 1.0]), scale, bias)
    np.testing.assert_allclose(clipped, expected, rtol=1e-12, atol=1e-12)
    squashed, _ = unitized_batch_norm(
        x, free, scale, bias, factor=lambda a, s: interpolated(jax.nn.sigmoid(a), s)
    )
    expected, _ = unitized_batch_norm(x, jax.nn.sigmoid(free), scale, bias)
    np.testing.assert_allclose(squashed, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("number", [-2.0, -0.5, 0.0, 0.25, 1.0, 2.0, 4.0])
def test_factors_and_their_slopes_at_any_alpha_on_both_sides_of_the_pole(number):
    """For alpha outside [0, 1], the divisor of Equation 9 has both signs and a zero."""
    norm = np.array([0.25, 0.5, 0.75, 1.0, 1.5, 3.0, 5.0])  # all divisors are exact floats
    divisor, square = number * norm + 1 - number, jnp.asarray(norm**2)
    pole = divisor == 0
    assert pole.any() == (divisor < 0).any() == (number < 0 or number > 1)
    eq_9 = 1 / np.where(pole, 1, divisor)
    away = np.where(pole, 0, 1)
    for alpha in (jnp.full(7, number), jnp.float64(number), number):
        np.testing.assert_allclose(bounded(alpha, square), eq_9, rtol=1e-14)
        expected = number / norm + 1 - number
        np.testing.assert_allclose(interpolated(alpha, square), expected, rtol=1e-14, atol=1e-14)
    slopes = jax.grad(lambda *args: bounded(*args).sum(), (0, 1))(jnp.full(7, number), square)
    expected = away * (1 - norm) * eq_9**2, -away * number / (2 * norm) * eq_9**2
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-14)
    slopes = jax.grad(lambda *args: interpolated(*args).sum(), (0, 1))(jnp.full(7, number), square)
    expected = 1 / norm - 1, -number / (2 * norm**3)
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("factor", [interpolated, bounded])
def test_factors_are_finite_and_have_finite_gradients_at_zero(factor):
    alpha, square = jnp.array([0.0, 0.5, 1.0]), jnp.zeros(3)
    assert jnp.isfinite(factor(alpha, square)).all()
    for gradient in jax.jit(jax.grad(lambda a, s: factor(a, s).sum(), (0, 1)))(alpha, square):
        assert np.isfinite(gradient).all()
    # Gradients of gradients also need finite derivatives in forward mode.
    assert np.isfinite(jax.jvp(factor, (alpha, square), (alpha, square + 1))[1]).all()


@pytest.mark.parametrize("pixels", [None, 3])
def test_the_norm_of_each_pixel_is_that_of_figure_1b(pixels):
    x, alpha, scale, bias = arrays(*case((3, 4, 5, 2)))
    y, statistics = unitized_batch_norm(x, alpha, scale, bias, pixels=pixels, per_pixel=True)
    # With `per_pixel`, the unitization treats each pixel as a vector.
    rows = jnp.asarray(np.reshape(x, (-1, 2)))
    vectors, _ = unitized_batch_norm(rows, alpha, scale, bias, pixels=pixels)
    np.testing.assert_allclose(y, np.reshape(vectors, x.shape), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(statistics.mean, np.mean(x, (0, 1, 2)), rtol=1e-12)


def test_parts_of_batch_norm_are_those_of_the_decomposition():
    x = jnp.asarray(case((6, 5), mean=3.0)[0])
    for recentering, rescaling, expected in (
        (True, False, recenter(x)),
        (False, True, rescale(x)),
        (False, False, x),
    ):
        y, _ = batch_norm(x, eps=0.0, recentering=recentering, rescaling=rescaling)
        np.testing.assert_allclose(y, expected, rtol=1e-10)
    given = BatchStatistics(*arrays(np.full(5, 2.0), np.full(5, 4.0), 1.0))
    y, _ = batch_norm(x, statistics=given, eps=0.0, recentering=False)
    np.testing.assert_allclose(y, x / 2, rtol=1e-12)


def test_the_papers_code_corrects_the_variance_in_training():
    x, alpha, scale, bias = case((3, 4, 5, 2))
    eps, count = 1e-3, 60
    var = ((x - x.mean((0, 1, 2))) ** 2).mean((0, 1, 2)) * count / (count - 1 - eps)
    found, statistics = unitized_batch_norm(
        *arrays(x, alpha, scale, bias), eps=eps, correction=lambda n: bessel(n, eps=eps)
    )
    expected = algorithm_2(x, alpha, scale, bias, eps=eps, var=var)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    # `statistics.var` is the biased variance.
    np.testing.assert_allclose(statistics.var, x.var((0, 1, 2)), rtol=1e-10)


def ghost(x, **options):
    return unitized_batch_norm(x, jnp.array([0.3, 0.8]), **options)


@pytest.mark.parametrize("layer", [batch_norm, ghost])
def test_groups_are_batches_of_their_own(layer):
    x = jnp.asarray(case((6, 3, 2))[0])
    keep = jnp.asarray(np.random.default_rng(5).random((6, 3)) < 0.7)
    y, statistics = jax.tree.map(np.asarray, layer(x, groups=3, where=keep))
    for i in range(3):
        part = slice(2 * i, 2 * i + 2)
        expected, own = layer(x[part], where=keep[part])
        np.testing.assert_allclose(y[part], expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(statistics.var[i], own.var, rtol=1e-10)
    twice = np.asarray(jax.jit(jax.vmap(lambda x: layer(x, groups=3)[0]))(jnp.stack([x, 2 * x])))
    np.testing.assert_allclose(twice[1], layer(2 * x, groups=3)[0], rtol=1e-10, atol=1e-12)


def test_groups_must_divide_the_batch():
    with pytest.raises(ValueError, match="groups must divide the number of samples, 6; got 4"):
        batch_norm(jnp.ones((6, 2)), groups=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["alpha", "scale", "bias"])
@pytest.mark.parametrize("size", [1, 3])
def test_parameters_of_another_size_are_refused(name, size):
    parameters: Any = dict.fromkeys(("alpha", "scale", "bias"), jnp.ones(2))
    parameters[name] = jnp.ones(size)
    message = rf"{name} must be a number or have shape \(2,\), .* got shape \({size},\)"
    with pytest.raises(ValueError, match=message):
        unitized_batch_norm(jnp.ones((4, 2)), **parameters)


@pytest.mark.usefixtures("unchecked")
def test_statistics_of_another_size_are_refused():
    given = batch_statistics(jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"statistics.mean must be a number or have shape \(2,\)"):
        batch_norm(jnp.ones((4, 2)), statistics=given)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(3, 0), (4, 3, 3, 0), (3,)])
def test_an_input_without_features_is_refused(shape):
    with pytest.raises(ValueError, match=r"x must have shape \(samples, ..., features\)"):
        unitized_batch_norm(jnp.ones(shape), jnp.ones(shape[-1]))
    given = batch_statistics(jnp.ones((4, 3)))._replace(mean=jnp.ones(()), var=jnp.ones(()))
    with pytest.raises(ValueError, match=r"x must have shape \(samples, ..., features\)"):
        batch_norm(jnp.ones(shape), statistics=given)


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 3, 4)])
def test_a_batch_without_samples_gives_no_nan(shape):
    y, statistics = unitized_batch_norm(jnp.ones(shape), jnp.ones(4))
    assert y.shape == shape
    np.testing.assert_array_equal(jnp.stack(statistics[:2]), 0)


@pytest.mark.parametrize("pixels", [0, -1.0])
def test_pixels_must_be_positive(pixels):
    with pytest.raises(ValueError, match=f"pixels must be positive; got {pixels}"):
        unitized_batch_norm(jnp.ones((2, 2)), jnp.ones(2), pixels=pixels)


def test_a_sample_at_the_mean_has_no_negative_square(key):
    """The second of three images with the values 0, v, 2 v has Σ h² − 2 m Σ h + P m² = 0.

    Unless clipped, the sum would be negative after rounding.
    """
    values = np.asarray(jax.random.uniform(key, (500, 1, 1, 1), jnp.float32, 0.1, 1))
    x = jnp.asarray(values * np.arange(3, dtype=np.float32)[:, None, None] * np.ones((7, 1), "f"))

    def factor(alpha, square):  # a user's own factor; if a mean square is negative, it gives NaN
        return alpha * jax.lax.rsqrt(square)

    def normalized(x):
        return unitized_batch_norm(x, jnp.ones(1, jnp.float32), eps=1e-10, factor=factor)[0]

    assert jnp.isfinite(jax.jit(jax.vmap(normalized))(x)).all()


def options_of(function):
    """A test value of each option of `function`, except axes, groups, masks and statistics."""
    values = {
        "eps": [0.3],
        "recentering": [False],
        "rescaling": [False],
        "correction": [partial(jaxnorm.bessel, eps=1e-3)],
        "pixels": [2.5],
        "per_pixel": [True],
        "factor": [jaxnorm.bounded],
    }
    left_out = {"x", "alpha", "scale", "bias", "statistics", "groups", "where"}
    names = set(inspect.signature(function).parameters) - left_out
    names -= {"axis_name", "axis_index_groups"}
    assert names <= set(values), "give a value of each new option"
    return [{name: value} for name in sorted(names) for value in values[name]]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(12, 3), (12, 4, 5, 3)])
@pytest.mark.parametrize(
    ("function", "option"),
    [
        pytest.param(f, option, id=f"{f.__name__}-{next(iter(option))}")
        for f in (jaxnorm.batch_norm, jaxnorm.unitized_batch_norm)
        for option in options_of(f)
    ],
)
def test_groups_are_their_parts_with_every_option(function, option, shape, masked):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(3, 2, shape))
    numbers = [jnp.asarray(random.uniform(0.2, 0.8, 3)) for _ in range(3)]
    numbers = numbers if function is jaxnorm.unitized_batch_norm else numbers[1:]
    where = jnp.asarray(random.random(shape[:-1]) < 0.7) if masked else None
    y, statistics = function(x, *numbers, groups=3, where=where, **option)
    for i in range(3):
        rows = slice(4 * i, 4 * i + 4)
        keep = None if where is None else where[rows]
        part, own = function(x[rows], *numbers, where=keep, **option)
        np.testing.assert_allclose(y[rows], part, rtol=1e-10, atol=1e-12)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-10), statistics, own
        )
    whole, _ = function(x, *numbers, where=where, **option)
    assert jnp.abs(y - whole).max() > 1e-3
    plain, _ = function(x, *numbers, groups=3, where=where)
    assert jnp.abs(y - plain).max() > 1e-3 or (option.get("per_pixel") and len(shape) == 2)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", numpy_layers.OWN)
def test_functions_by_numpy_in_every_pair_of_options(name, shards):
    """Batch norm, unitized batch norm and batch renorm for every pair of their options.

    If a batch is spread over shards, it is still normalized as one batch.
    """
    function: Any = {
        "BatchNorm": jaxnorm.batch_norm,
        "UnitizedBatchNorm": jaxnorm.unitized_batch_norm,
        "BatchRenorm": jaxnorm.batch_renorm,
    }[name]
    given = BatchStatistics(*arrays(numpy_layers.MEAN, numpy_layers.VAR, 7.0))
    running = {"running": given} if name == "BatchRenorm" else {}
    for call in numpy_layers.calls(name, function, [1, 2, 4] if shards == 1 else [1]):
        options = {
            k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in call.options.items()
        }
        if name == "UnitizedBatchNorm":
            options["alpha"] = jnp.asarray(numpy_layers.ALPHA)
        where = None if call.where is None else jnp.asarray(call.where)
        statistics = given if call.inference else None
        layer = partial(function, statistics=statistics, **running, **options)
        x = jnp.asarray(call.x)
        if shards > 1:
            x, where = jax.tree.map(lambda part: jnp.stack(jnp.split(part, shards)), (x, where))
            spread = partial(layer, axis_name="shards")
            layer = jax.vmap(spread, out_axes=(0, None), axis_name="shards")
        y, found = evaluated(lambda x, where, layer=layer: layer(x, where=where), x, where)
        tolerance = 1e-9 if call.x.dtype == np.float64 else 2e-5
        y = y.reshape(call.y.shape)
        numpy_layers.assert_rounded_once(y, call.y, call.x.dtype, tolerance=tolerance)
        for part, expected in zip(found, call[-3:], strict=True):
            assert part.shape == np.shape(expected)
            np.testing.assert_allclose(part, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(6, 3), (3, 2, 4, 3)])
def test_each_part_of_batch_norm_has_its_own_scale_and_bias(shape):
    rng = np.random.default_rng(6)
    x, axes = rng.normal(3, 2, shape), tuple(range(len(shape) - 1))
    scale, bias, mean, var = rng.uniform(0.5, 2, (4, 3))
    parts = list(product([False, True], repeat=4))

    @jax.jit
    def results(x, scale, bias, given):
        return [
            jaxnorm.batch_norm(
                x,
                scale if affine else None,
                bias if affine else None,
                given if inference else None,
                eps=0.1,
                recentering=recentering,
                rescaling=rescaling,
            )[0]
            for recentering, rescaling, affine, inference in parts
        ]

    given = BatchStatistics(*arrays(mean, var, 5.0))
    found = results(*arrays(x, scale, bias), given)
    for y, (recentering, rescaling, affine, inference) in zip(found, parts, strict=True):
        center, square = (mean, var) if inference else (x.mean(axes), x.var(axes))
        expected = (x - center * recentering) / (np.sqrt(square + 0.1) if rescaling else 1)
        expected = scale * expected + bias if affine else expected
        np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)


def test_batch_renorm_with_given_statistics_is_batch_norm_whatever_the_running_ones():
    rng = np.random.default_rng(4)
    x = jnp.asarray(rng.normal(3, 2, (6, 4)))
    given, running = (
        jaxnorm.BatchStatistics(jnp.asarray(rng.normal(m, 1, 4)), jnp.full(4, v), jnp.asarray(9.0))
        for m, v in ((2.0, 5.0), (-4.0, 0.3))
    )
    scale, bias = jnp.asarray(rng.normal(1, 2, (2, 4)))
    y, statistics = jaxnorm.batch_renorm(x, scale, bias, given, running=running)
    expected, _ = jaxnorm.batch_norm(x, scale, bias, given)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    np.testing.assert_array_equal(statistics.mean, given.mean)
