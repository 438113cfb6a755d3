"""Effects of a training step on weights, images and the logged loss."""

import itertools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.data import loaders
from experiments.data.datasets import Images
from experiments.recipes import replace
from experiments.training import chunks, loop, step, trainer
from experiments.training.step import cross_entropy
from tests.support.small_runs import SMALL, compiled, first_state, random_images

pytestmark = pytest.mark.usefixtures("users_jax")
STILL = replace(SMALL, learning_rate=1e-30, weight_decay=0.0)


@pytest.fixture(scope="module")
def one_image():
    """A data set of two batches, in which all images are equal."""
    x = np.random.default_rng(0).standard_normal((1, 6, 6, 1)).astype(np.float32)
    x, y = np.repeat(x, 32, 0), np.zeros(32, np.int32)
    return Images("made", "", 2, x, y, x[:8], y[:8])


def test_running_statistics_see_every_accumulated_part(one_image):
    """Images are equal and the rate is 0, so a step of two parts counts like two steps."""
    parts = first_state(compiled(replace(STILL, accumulate=2), one_image), 1).statistics
    steps = first_state(compiled(STILL, one_image), 2).statistics
    once = first_state(compiled(STILL, one_image), 1).statistics
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # noqa: E731
    jax.tree.map(near, parts, steps)
    with pytest.raises(AssertionError):
        jax.tree.map(near, once, steps)


def test_alpha_alone_is_clipped_to_0_and_1():
    given = {"norm": {"alpha": jnp.array([-0.5, 0.25, 2.0]), "bias": jnp.array([-0.5, 2.0])}}
    clipped = step.clip_alpha(given)["norm"]
    np.testing.assert_array_equal(clipped["alpha"], [0, 0.25, 1])
    np.testing.assert_array_equal(clipped["bias"], given["norm"]["bias"])


def test_every_step_draws_other_crops_and_every_run_the_same(one_image):
    """Images are equal and the rate is 0, so losses differ only by the crops and flips."""
    program = compiled(replace(STILL, augment=True), one_image)
    first, both = (float(first_state(program, n).loss) for n in (1, 2))
    assert abs(both - 2 * first) > 1e-3
    assert float(first_state(program, 2).loss) == both
    assert float(first_state(program, 1, seeds=(1,)).loss) != first


def test_no_two_parts_of_a_run_draw_the_same(monkeypatch):
    """Each part of a step has other crops and flips, for every seed and epoch."""
    drawn = []

    def draw_noted(key, count, draw=loaders.draw_crops):
        offsets, flips = draw(key, count)
        jax.debug.callback(lambda a, b: drawn.append((str(a), str(b))), offsets, flips)
        return offsets, flips

    monkeypatch.setattr(loaders, "draw_crops", draw_noted)
    program = compiled(replace(SMALL, augment=True, accumulate=2, batch_size=32), random_images())
    for seeds in ((0,), (1,)):
        state = program.init_state(seeds)
        for epoch in range(2):
            batches = program.batches(seeds, epoch, 0)
            state = program.advance(state, batches, seeds, program.steps)
    jax.effects_barrier()
    assert len(drawn) == len(set(drawn)) == 2 * 2 * program.steps * 2


def test_every_part_of_every_step_has_a_key_of_its_own_and_counts_once(monkeypatch):
    """In epochs of two steps, two seeds take three steps, each of two accumulated parts."""
    keys, losses, parts = [], [], itertools.count(1.0)
    of_images = {"count": 9, "batch": lambda arrays, step, size: (jnp.ones((size, 1)),) * 2}
    draw = lambda key, count: keys.append(jax.random.key_data(key).tolist())  # noqa: E731
    loader: Any = SimpleNamespace(**of_images, draw=draw)
    monkeypatch.setattr(
        step, "_gradient", lambda *_: lambda w, old, x, y, draws: (next(parts), old, w)
    )
    monkeypatch.setattr(step, "_split", lambda batch, count, mesh: [batch] * count)
    recipe, optimizer = replace(SMALL, batch_size=4, accumulate=2), optax.sgd(0.1)
    take: Any = step.train_step(recipe, loader, optimizer, None, trainer.mesh_of(1), 1)  # pyright: ignore[reportArgumentType]
    for seed in (0, 1):
        w = jnp.ones(2)
        state = step.State(w, (), optimizer.init(w), jnp.int32(0), jnp.float32(0))
        for _ in range(3):
            state = take(state, (), seed)
            losses.append(float(state.loss))
    assert len(keys) == len({*map(tuple, keys)}) == 2 * 3 * 2
    # The steps have the mean losses 1.5, 3.5, 5.5, …. The state adds up the losses of one epoch.
    assert losses == [1.5, 1.5 + 3.5, 5.5, 7.5, 7.5 + 9.5, 11.5]


def test_every_device_has_the_same_state_though_each_normalizes_its_own_group():
    program = compiled(replace(SMALL, statistics_groups=2), random_images(), devices=2)
    for leaf in jax.tree.leaves(first_state(program, 1)):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


def test_the_loss_of_a_part_of_an_epoch_is_the_mean_of_its_steps(one_image):
    """Images are equal and the rate is 0, so the mean loss is the same after each step."""
    program = compiled(STILL, one_image)
    steps = chunks.chunks(program, program.init_state((0,)), (0,), itertools.repeat(1))
    losses = [float(chunk.losses[0]) for chunk in steps]
    assert len(losses) == STILL.epochs * program.steps > STILL.epochs
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_all_offsets_are_drawn_alike_often(key):
    offsets, flips = loaders.draw_crops(key, 8100)
    index = np.asarray(offsets) @ [9, 1]
    counts = np.bincount(index, minlength=81)
    assert len(counts) == 81
    assert 50 < counts.min() <= counts.max() < 150  # the mean 100 ± five standard deviations
    assert abs(np.asarray(flips).mean() - 0.5) < 5 * 0.5 / 90


def test_images_a_second_are_without_the_first_chunk_which_compiles():
    clock = loop.Clock(skipped=1)
    assert clock.speed == 0
    for images, seconds in ((160, 100.0), (160, 2.0), (80, 1.0)):
        clock(SimpleNamespace(images=images, seconds=seconds, waiting=0.0))  # pyright: ignore[reportArgumentType]
    assert clock.speed == 240 / 3


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_the_loss_of_bfloat16_logits_is_in_float32(smoothing):
    logits = jnp.array([[3.0, -1.0, 0.5], [5.0, 4.0, -2.0]], jnp.bfloat16)
    found = cross_entropy(lambda x: x, (logits, jnp.array([2, 1])), smoothing=smoothing)
    targets = (1 - smoothing) * np.eye(3)[[2, 1]] + smoothing / 3
    log_softmax = np.asarray(logits, np.float64)
    log_softmax -= np.log(np.exp(log_softmax).sum(1, keepdims=True))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, -(targets * log_softmax).sum(1).mean(), rtol=1e-6)
