"""What tests of training share: JAX as users have it, and a tiny run."""

import jax
import pytest

from tests.support.small_runs import SMALL, compiled, random_images, with_steps_per_call


@pytest.fixture(scope="module")
def users_jax():
    """JAX as users have it: Optax mixes dtypes, and scripts run in float32."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def images():
    return random_images()


@pytest.fixture(scope="module")
def one(images, users_jax):
    """The trainer of one seed."""
    return with_steps_per_call(compiled(SMALL, images), 1)
