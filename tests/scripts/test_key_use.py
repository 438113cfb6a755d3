"""No random key is used twice during training, from the initial weights to the last crops."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from experiments.data import loaders
from experiments.measures import depth, shift
from experiments.recipes import replace
from tests.support import key_use
from tests.support.small_runs import SMALL, compiled, random_images, train_one

pytestmark = pytest.mark.usefixtures("users_jax")


def test_weights_orders_and_crops_of_a_training_have_keys_of_their_own(tmp_path):
    recipe = replace(SMALL, augment=True, accumulate=2, epochs=2)
    with key_use.recorded() as use:
        program = compiled(recipe, random_images())
        train_one(program, tmp_path / "run")
    use.assert_once()
    assert use.count("permutation") == 2  # each of two epochs draws its order of images
    assert use.count("bernoulli") == 2 * program.steps * 2


def test_offsets_and_flips_are_drawn_by_two_keys(key):
    with key_use.recorded() as use:
        loaders.draw_crops(key, 4)
    use.assert_once()
    assert (use.count("randint"), use.count("bernoulli")) == (1, 1)


def test_networks_of_a_depth_share_only_the_batch_of_their_ranks():
    images = random_images()
    x = jnp.asarray(images.x_train.reshape(len(images.x_train), -1))
    y = jnp.asarray(images.y_train)
    with key_use.recorded() as use:
        for key in jax.random.split(jax.random.key(0), 2):
            depth.run(key, x, y, start="default", hl=2, steps=3)
    drawn = [key for name, key in use.keys if name == "randint"]
    # Each of two networks draws a batch for each of three steps, one batch for computing ranks, and
    # images for computing the accuracy.
    assert len(drawn) == 2 * (3 + 2)
    assert len(set(drawn)) == 2 * (3 + 1)  # ranks are computed with the batch of the first step
    first = {key for key in drawn if drawn.count(key) == 2}
    use.keys = [pair for pair in dict.fromkeys(use.keys) if pair[1] not in first]
    use.assert_once()


def test_the_floor_of_every_epoch_is_of_other_batches(monkeypatch):
    """At the start and after each epoch, the batches that measure the noise have a new key."""
    keys = []

    class Follower:
        def __init__(self, *_):
            pass

        def update(self, state, key):
            keys.append(jax.random.key_data(key).tobytes())
            return {}

    monkeypatch.setattr(shift, "Follower", Follower)
    images = random_images()
    program: Any = SimpleNamespace(trainer=compiled(SMALL, images))
    for seed in (0, 1):
        assert len(list(shift.train(program, images, 10, seed))) == SMALL.epochs
    assert len(set(keys)) == len(keys) == 2 * (1 + SMALL.epochs)
