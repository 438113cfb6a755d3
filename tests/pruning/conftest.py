"""Fixtures for tests of pruned models."""

import jax
import pytest

from pruning.criteria import _median
from tests.support.jitted import jitted


@pytest.fixture(scope="module", autouse=True)
def compiled_norm():
    """Compile the norm of filters as one program for each shape, instead of ten programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_median, "norm", jitted(_median.norm))
        yield


@pytest.fixture
def promotion():
    """JAX's standard promotion of dtypes, because modules of other libraries mix dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield
