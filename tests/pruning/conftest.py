"""What tests of pruned models share."""

import jax
import pytest


@pytest.fixture
def promotion():
    """As users have it: modules of others mix precisions."""
    with jax.numpy_dtype_promotion("standard"):
        yield
