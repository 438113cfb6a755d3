"""What tests of pruned models share."""

import jax
import pytest

from pruning.criteria import _median
from tests.support.jitted import jitted


@pytest.fixture(scope="module", autouse=True)
def compiled_norm():
    """Lengths of filters are one program for a shape in place of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_median, "norm", jitted(_median.norm))
        yield


@pytest.fixture
def promotion():
    """As users have it: modules of others mix precisions."""
    with jax.numpy_dtype_promotion("standard"):
        yield
