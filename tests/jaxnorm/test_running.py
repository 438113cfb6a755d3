"""Running statistics after a batch or ghost batches, and the choice of statistics, in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxnorm
from jaxnorm import BatchStatistics
from jaxnorm._running import Running, apply, updates

MEAN, VAR = np.array([3.0, -1.0]), np.array([5.0, 0.5])
RUNNING = Running(jnp.asarray(MEAN, "float32"), jnp.asarray(VAR, "float32"))


def test_groups_of_unlike_counts_weigh_and_are_corrected_by_their_own():
    means, variances = np.array([[1.0, 7.0], [2.0, -3.0], [9.0, 9.0]]), np.full((3, 2), 4.0)
    counts = np.array([3.0, 6.0, 0.0])
    batch = BatchStatistics(jnp.asarray(means), jnp.asarray(variances), jnp.asarray(counts))
    mean, var = RUNNING.update_running(batch, 0.8, jaxnorm.bessel)
    expected = np.array([1, 2]) / 3  # the groups' shares of nine samples; group 3 has no sample
    np.testing.assert_allclose(mean, 0.8 * MEAN + 0.2 * expected @ means[:2], rtol=1e-6)
    corrected = 4 * (1 / 3 * 3 / 2 + 2 / 3 * 6 / 5)
    np.testing.assert_allclose(var, 0.8 * VAR + 0.2 * corrected, rtol=1e-6)
    assert mean.dtype == var.dtype == "float32"


def test_a_batch_of_one_sample_counts_whole():
    batch = BatchStatistics(jnp.array([7.0, 2.0]), jnp.zeros(2), jnp.asarray(1.0))
    mean, var = RUNNING.update_running(batch, 0.8, jaxnorm.bessel)
    np.testing.assert_allclose(mean, 0.8 * MEAN + 0.2 * np.array([7, 2]), rtol=1e-6)
    np.testing.assert_allclose(var, 0.8 * VAR, rtol=1e-6)


@pytest.mark.parametrize("groups", [(), (3,)])
def test_without_a_counted_sample_running_statistics_stay(groups):
    none = BatchStatistics(jnp.zeros((*groups, 2)), jnp.zeros((*groups, 2)), jnp.zeros(groups))
    for found, before in zip(
        RUNNING.update_running(none, 0.8, jaxnorm.bessel), RUNNING, strict=True
    ):
        np.testing.assert_array_equal(found, before)


FACTORS = {
    "a number": lambda count: 3.0,
    "an int": lambda count: 3,
    "one of NumPy": lambda count: np.float32(3),
    "one number": lambda count: jnp.asarray(3, count.dtype),
    "one for each count": lambda count: jnp.full_like(count, 3),
}
USES = {
    "correction": lambda f: 1 / jnp.square(jaxnorm.batch_norm(EIGHT, correction=f, eps=0.0)[0][-1]),
    "running_correction": lambda f: RUNNING.update_running(GHOSTS, 0.0, f).var,
}
EIGHT = jnp.array([[-1.0, 1.0], [1.0, -1.0]] * 4, "float32") * 5**0.5
GHOSTS = BatchStatistics(jnp.ones((2, 2)), jnp.ones((2, 2)), jnp.array([8.0, 3.0]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("factor", FACTORS)
def test_the_variance_is_multiplied_by_any_form_of_the_correction(use, factor):
    np.testing.assert_allclose(USES[use](FACTORS[factor]), [3, 3], rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("use", USES)
def test_the_result_of_a_correction_is_real_and_one_number_for_each_count(use):
    wrong = {"an array; got NoneType": None, "real; got complex": jnp.ones((), complex)}
    wrong |= {r"one number for each count; got shape \(3,\)": jnp.ones(3)}
    for message, result in wrong.items():
        with pytest.raises(
            (TypeError, ValueError), match=f"^the result of {use} must be {message}"
        ):
            USES[use](lambda count, result=result: result)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("momentum", "correction", "message"),
    [
        (1.5, jaxnorm.bessel, r"momentum must lie in \[0, 1.0\]; got 1.5"),
        (-0.1, jaxnorm.bessel, r"momentum must lie in \[0, 1.0\]; got -0.1"),
        (0.8, 1.1, "running_correction must be a function, such as jaxnorm.bessel; got 1.1"),
    ],
)
def test_options_that_were_changed_after_construction_are_checked(momentum, correction, message):
    layer = jaxnorm.nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    layer.momentum, layer.running_correction = momentum, correction
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        layer(jnp.ones((3, 2), "float32"))
    assert (layer.mean[...] == 0).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("axis", [0, -3, 3, -4, 1.0])
def test_the_axis_of_features_is_another_axis_than_the_first(axis):
    layer = jaxnorm.nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    layer.axis = axis
    message = "an int; got 1.0" if axis == 1.0 else rf"other than the first; got {axis}"
    with pytest.raises((TypeError, ValueError), match=f"^axis must .*{message}$"):
        layer(jnp.ones((3, 2, 2), "float32"))


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("with_axis", [False, True])
@pytest.mark.parametrize("use", [False, True])
def test_a_mask_is_moved_with_the_features_and_counts_in_every_update(axis, with_axis, use):
    rng = np.random.default_rng(0)
    x, keep = rng.gamma(2.0, size=(4, 3, 5, 2)), rng.random((4, 3, 5)) < 0.6
    mask = np.expand_dims(keep, axis) if with_axis else keep
    y, batch = apply(
        jaxnorm.batch_norm,
        jnp.asarray(np.moveaxis(x, -1, axis)),
        RUNNING,
        jnp.asarray(mask),
        use=use,
        update=True,
        axis=axis,
        dtype=None,
    )
    counted = x[keep]
    mean, var = (MEAN, VAR) if use else (counted.mean(0), counted.var(0))
    expected = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(jnp.moveaxis(y, axis, -1), expected, rtol=1e-6, atol=1e-6)
    assert batch is not None
    assert float(batch.count) == keep.sum()
    np.testing.assert_allclose(batch.mean, counted.mean(0), rtol=1e-10)
    np.testing.assert_allclose(batch.var, counted.var(0), rtol=1e-10)


def test_the_first_choice_that_is_made_decides_over_updates():
    for use in (False, True):
        assert updates(use) is updates(use, None, None) is (not use)
        for first in (False, True):
            assert updates(use, first, not first) is updates(use, None, first) is first
