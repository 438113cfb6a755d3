"""What tests of training share: JAX as users have it, and a tiny run."""

from functools import partial

import jax
import pytest

from jaxnorm import models
from tests.support.small_runs import SMALL, compiled, random_images, with_steps_per_call


def pytest_collection_modifyitems(items):
    """The main job, in a process of its own, comes first: no worker ends with its minute."""
    items.sort(key=lambda item: "smallest" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """The recipes' mlp has three hidden layers in place of eleven: they are a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 16, 8)))
        yield


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
