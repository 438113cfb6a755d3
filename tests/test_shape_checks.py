"""Tests check arguments against the shapes in signatures, but only if a signature has arrays."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from geometry import mean_field
from jaxnorm import shift
from pruning.channels._program import calls


def test_a_wrong_shape_is_refused_by_its_annotation():
    with pytest.raises(TypeCheckError, match="cosine"):
        mean_field.cosine_step([1.0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeCheckError, match="Type-check error"):
        shift.emd_1d(jnp.zeros(3), jnp.zeros((3, 2)))


def test_only_signatures_with_arrays_are_checked():
    assert hasattr(mean_field.recenter_gram, "__wrapped__")
    assert not hasattr(calls.call_of, "__wrapped__")
