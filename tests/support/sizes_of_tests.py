"""Gaussian layers at the boundary of a test's hypothesis, and p-values of many layers."""

import jax
import numpy as np


def p_values(test, x):
    """The p-values of `test` for the layers that are stacked along the first axis of `x`."""
    return np.asarray(jax.jit(jax.vmap(lambda x: test(x)[1]))(x))


def assert_size(found, level, expected):
    """Assert that a share `expected` of the p-values is below `level`, within four errors."""
    assert abs(np.mean(found < level) - expected) < 4 * (expected / len(found)) ** 0.5


def at_the_boundary(key, layers, n, dims, margin):
    """Layers in which the filters' standard deviations have the relative spread `margin`."""
    # To first order, the standard deviations of Gaussian filters have this squared relative spread.
    own = 1 / (2 * dims - 2)
    keys = jax.random.split(key)
    scale = 1 + (margin**2 - own) ** 0.5 * jax.random.normal(keys[0], (layers, n, 1))
    return scale * jax.random.normal(keys[1], (layers, n, dims))
