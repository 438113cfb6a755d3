"""Arguments may be variables of NNX, and float64 arrays of NumPy if JAX's float64 is off."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from geometry.networks import hull_vertices, neuron_per_point
from jaxnorm import linen, nnx as layers
from tests.support.public_functions import NUMERICAL

X: Any = np.random.default_rng(5).normal(3, 2, (6, 4))


@pytest.fixture(autouse=True)
def without_float64(unchecked):
    with jax.enable_x64(False):
        yield


def in_float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float32"), tree)


def assert_equal(results, expected):
    for result, known in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
        assert jnp.result_type(result) == jnp.result_type(known) != jnp.float64
        np.testing.assert_array_equal(result, known)


@pytest.mark.parametrize("function", NUMERICAL, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_a_function_takes_them_without_a_warning(function):
    arguments, options = NUMERICAL[function]
    arguments = jax.tree.map(np.asarray, arguments)
    results, expected = (
        jax.jit(lambda a=a: function(*a, **options))() for a in (arguments, in_float32(arguments))
    )
    assert_equal(results, expected)


@pytest.mark.parametrize("function", NUMERICAL, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_a_function_takes_variables_of_nnx(function):
    arguments, options = NUMERICAL[function]
    arrays = in_float32(arguments)
    variables = [nnx.Variable(x) if isinstance(x, jax.Array) else x for x in arrays]
    shapes = (jax.eval_shape(lambda a=a: function(*a, **options)) for a in (variables, arrays))
    assert jax.tree.leaves(next(shapes)) == jax.tree.leaves(next(shapes))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["BatchNorm", "BatchRenorm", "UnitizedBatchNorm"])
def test_a_layer_takes_them_without_a_warning(name, training):
    module = getattr(linen, name)(use_running_average=not training)
    variables = module.init(jax.random.key(0), in_float32(X))
    results, expected = (
        module.apply(variables, x, mutable=["batch_stats"]) for x in (X, in_float32(X))
    )
    assert_equal(results, expected)
    new = partial(getattr(layers, name), 4, use_running_average=not training, rngs=nnx.Rngs(0))
    assert_equal(new()(X), new()(in_float32(X)))


def test_the_hull_is_that_of_the_float64_samples():
    """In float32, the last sample would lie on the line between its neighbors."""
    x: Any = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, -2.0], [0.0, 3e-8]]) + 100 * np.array([1, 0])
    x[:, 1] += 5
    assert hull_vertices(x).all()
    kernel, bias = neuron_per_point(X)
    assert kernel.dtype == bias.dtype == jnp.float32
