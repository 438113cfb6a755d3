import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.spatial import ConvexHull
from sklearn.datasets import load_digits

from geometry.networks import hull_vertices, neuron_per_point, point_initializers


def activity(x, kernel, bias):
    return np.maximum(np.asarray(x) @ np.asarray(kernel) + np.asarray(bias), 0)


@pytest.mark.parametrize(("n", "k"), [(1, 3), (4, 2), (12, 12), (40, 30), (200, 25)])
def test_every_sample_has_its_own_neuron(n, k):
    x = np.random.default_rng(0).normal(size=(n, k))
    if k == 2:
        x = np.stack([np.cos(np.arange(n)), np.sin(np.arange(n))], 1)
    y = activity(x, *neuron_per_point(jnp.asarray(x)))
    np.testing.assert_allclose(y, np.eye(n), atol=1e-9)
    assert np.count_nonzero(y) == n


@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
@pytest.mark.parametrize(("n", "k"), [(40, 2), (60, 3)])
def test_vertices_are_those_of_qhull(n, k, scale):
    x = np.random.default_rng(1).normal(size=(n, k))
    expected = np.isin(np.arange(n), ConvexHull(x).vertices)
    assert 0 < expected.sum() < n
    x = jnp.asarray(scale * x)
    assert (hull_vertices(x) == expected).all()
    y = activity(x[expected], *neuron_per_point(x[expected]))
    np.testing.assert_allclose(y, np.eye(expected.sum()), atol=1e-9)


def test_a_thin_vertex_is_found_by_the_linear_programme_alone():
    # In its own direction, the last point is not the farthest point. Nor is it the farthest point
    # in its whitened direction.
    x = np.array([[0.0, 0.0], [10.0, 1.0], [10.0, -1.0], [0.0, 1.0], [0.0, -1.0], [9.0, 1.01]])
    assert hull_vertices(jnp.asarray(x))[-1]
    assert not hull_vertices(jnp.asarray(x))[0]
    y = activity(x[1:], *neuron_per_point(jnp.asarray(x[1:])))
    np.testing.assert_allclose(y, np.eye(5), atol=1e-9)


def test_a_vertex_that_only_ties_along_its_own_direction_is_found():
    """On the direction of the first point, the first two points have equal projections.

    After whitening, the first point has the smaller projection on its own direction.
    """
    x = jnp.array([[4.0, 0.0], [4.0, 4.0], [3.0, -6.0]])
    assert hull_vertices(jnp.concatenate([x, -x])).all()


def test_points_on_a_sphere_are_all_vertices(key):
    x = jax.random.normal(key, (30, 3))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    assert hull_vertices(x).all()


def test_inner_and_repeated_samples_have_none():
    x = jnp.array([[0.0], [1.0], [2.0], [2.0]])
    assert hull_vertices(x).tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="3 of 4 are not: 1, 2, 3"):
        neuron_per_point(x)


def test_a_long_list_of_inner_samples_names_the_first_five():
    with pytest.raises(ValueError, match=r"7 of 9 are not: 1, 2, 3, 4, 5, \.\.\.$"):
        neuron_per_point(jnp.arange(9.0)[:, None])
    with pytest.raises(ValueError, match=r"5 of 7 are not: 1, 2, 3, 4, 5$"):
        neuron_per_point(jnp.arange(7.0)[:, None])


@pytest.mark.parametrize(("height", "vertex"), [(3e-9, True), (3e-10, False)])
def test_a_margin_below_a_billionth_of_the_batch_counts_as_zero(height, vertex):
    x = 7 * jnp.array([[-1.0, 5.0], [1.0, 5.0], [0.0, 5.0 + height]])
    assert hull_vertices(x).tolist() == [True, True, vertex]


def test_before_the_relu_the_own_sample_has_1_and_the_next_one_minus_1():
    x = jnp.array([[3.0, 1.0], [7.0, 1.0], [3.0, 6.0]], jnp.float32)
    kernel, bias = neuron_per_point(x)
    assert kernel.dtype == bias.dtype == jnp.float32
    z = np.asarray(x @ kernel + bias[None])
    np.testing.assert_allclose(np.diagonal(z), 1, rtol=1e-5)

    np.testing.assert_allclose(np.sort(z, 0)[1], -1, rtol=1e-5)
    one = jnp.array([[2.0, -5.0]])
    np.testing.assert_allclose(activity(one, *neuron_per_point(one)), 1, rtol=1e-12)
    assert hull_vertices(one).tolist() == [True]


def test_the_digits_are_vertices():
    images, _ = load_digits(return_X_y=True)
    x = jnp.asarray(images[:200])
    y = activity(x, *neuron_per_point(x))
    np.testing.assert_allclose(y, np.eye(200), atol=1e-8)


@pytest.mark.parametrize("width", [3, 6, 10])
def test_a_layer_of_any_width_starts_with_neurons_of_points(width, key):
    x = jax.random.normal(key, (6, 9), jnp.float32)
    kernel, bias = point_initializers(jax.random.key(1), x, gain=2.0)
    layer = nnx.Linear(9, width, kernel_init=kernel, bias_init=bias, rngs=nnx.Rngs(0))
    y = np.asarray(jax.nn.relu(layer(x)))[:, :6]
    assert layer.kernel[...].dtype == jnp.float32
    np.testing.assert_allclose(np.sort(y.sum(0)), 2, rtol=1e-4)
    assert np.count_nonzero(y > 1e-3) == min(width, 6)
    # The order of the neurons depends on the key.
    assert y.argmax(0).tolist() != list(range(min(width, 6)))
    if width > 6:
        assert layer.bias is not None
        assert (layer.bias[6:] == 0).all()
        assert layer.kernel[:, 6:].std() > 0.2


def test_additional_neurons_have_the_variance_of_he_initialization(key):
    """A standard deviation that is estimated from 4,000 weights has a standard error of 1 %."""
    kernel, _ = point_initializers(key, jnp.eye(4))
    weights = np.asarray(kernel(key, (4, 1004), jnp.float32))[:, 4:]
    np.testing.assert_allclose(weights.std(), (2 / 4) ** 0.5, rtol=0.05)


def test_a_layer_of_other_inputs_is_refused(key):
    kernel, _ = point_initializers(key, jnp.eye(3))
    with pytest.raises(
        ValueError,
        match=r"must have 3 inputs, the features of a sample; got the kernel shape \(4, 2\)",
    ):
        nnx.Linear(4, 2, kernel_init=kernel, rngs=nnx.Rngs(0))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_batch_is_refused():
    with pytest.raises(ValueError, match=r"\(samples, features\); got \(3,\)"):
        neuron_per_point(jnp.ones(3))
    with pytest.raises(ValueError, match="must be finite; 1 of 4 elements are not"):
        neuron_per_point(jnp.eye(2).at[0, 0].set(jnp.inf))


def test_with_fewer_neurons_than_samples_the_key_chooses_the_samples():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 30)))
    chosen = []
    for seed in range(4):
        kernel, bias = point_initializers(jax.random.key(seed), x)
        key = jax.random.key(9)
        y = activity(x, kernel(key, (30, 3), x.dtype), bias(key, (3,), x.dtype))
        np.testing.assert_allclose(y.max(0), 1, rtol=1e-9)
        chosen.append(tuple(y.argmax(0)))
    assert len(set(chosen)) == 4
    assert len({sample for samples in chosen for sample in samples}) > 5
