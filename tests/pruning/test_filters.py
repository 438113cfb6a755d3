"""Tests of the matrix of a layer's filters."""

import jax.numpy as jnp
import numpy as np
import pytest

from pruning import filter_matrix


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (3, 2, 4, 5), (2, 3, 2, 4, 5), (1, 1, 1, 1)])
def test_rows_are_the_filters(shape):
    kernel = np.arange(np.prod(shape), dtype=float).reshape(shape)
    matrix = filter_matrix(jnp.asarray(kernel))
    assert matrix.shape == (shape[-1], np.prod(shape[:-1]))
    for j in range(shape[-1]):
        np.testing.assert_array_equal(matrix[j], kernel[..., j].ravel())


def test_the_dtype_is_kept():
    assert filter_matrix(jnp.ones((3, 3, 2, 4), jnp.bfloat16)).dtype == jnp.bfloat16
