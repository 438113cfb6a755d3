"""Learning rates by step, optimizers by name and smoothed labels."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import recipes
from experiments.cli import InputError
from experiments.recipes import Recipe
from experiments.training.optimizers import (
    check_optimizer,
    known_optimizers,
    learning_rate,
    make_optimizer,
    make_schedule,
)
from experiments.training.step import cross_entropy

pytestmark = pytest.mark.usefixtures("users_jax")

STEPS = 7
WARM = Recipe(epochs=10, learning_rate=0.4, warmup=0.2, drops=(0.4, 0.7), drop_factor=10.0)


def rates(recipe):
    schedule = jax.vmap(make_schedule(recipe, STEPS))
    return np.asarray(schedule(jnp.arange(recipe.epochs * STEPS)), float)


def test_the_rate_rises_by_steps_and_drops_at_the_start_of_epochs():
    found, warm = rates(WARM), 2 * STEPS
    np.testing.assert_allclose(found[:warm], 0.4 * np.arange(warm) / warm, rtol=1e-6)
    epochs = np.arange(warm, 10 * STEPS) // STEPS + 1
    expected = np.select([epochs < 5, epochs < 8], [0.4, 0.04], 0.004)
    np.testing.assert_allclose(found[warm:], expected, rtol=1e-6)


@pytest.mark.parametrize("name", recipes.PRESETS)
@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_a_preset_trains_for_any_number_of_epochs_and_its_rate_falls_as_often(name, epochs):
    preset = recipes.PRESETS[name][1]
    recipe = replace(preset, epochs=epochs)
    recipes.check(recipe)
    check_optimizer(recipe)
    found, whole = rates(recipe), rates(preset)
    assert found.max() <= whole.max()
    if preset.schedule == "drops":
        shares = np.arange(len(found)) / len(found)
        due = np.sum(shares[:, None] >= np.array(preset.drops), 1)
        done = np.round(np.log(recipe.learning_rate / found) / np.log(recipe.drop_factor))
        late = np.repeat(due[::STEPS], STEPS)  # a drop begins with the next epoch
        np.testing.assert_array_equal(done, late)
    else:
        warm = round(preset.warmup * len(found))
        assert found.argmax() == warm
        assert (np.diff(found[: warm + 1]) > 0).all()
        assert (np.diff(found[warm:]) < 0).all()
        assert found[-1] <= preset.learning_rate / (len(found) - warm) * 1.001


def test_drops_of_one_epoch_all_divide_the_rate():
    found = rates(Recipe(epochs=2, learning_rate=1.0, drops=(0.1, 0.2, 0.5), drop_factor=10.0))
    np.testing.assert_allclose(found, [1.0] * STEPS + [1e-3] * STEPS, rtol=1e-6)


def test_the_rate_falls_to_zero_along_a_cosine():
    found, warm = rates(replace(WARM, schedule="cosine")), 2 * STEPS
    np.testing.assert_allclose(found[:warm], 0.4 * np.arange(warm) / warm, rtol=1e-6)
    progress = np.arange(8 * STEPS) / (8 * STEPS)
    np.testing.assert_allclose(found[warm:], 0.2 * (1 + np.cos(np.pi * progress)), atol=1e-7)


def test_the_rate_falls_to_zero_along_a_line():
    found, warm = rates(replace(WARM, schedule="linear")), 2 * STEPS
    np.testing.assert_allclose(found[:warm], 0.4 * np.arange(warm) / warm, rtol=1e-6)
    np.testing.assert_allclose(found[warm:], 0.4 * (1 - np.arange(8 * STEPS) / (8 * STEPS)), 1e-5)


def test_the_rate_of_a_step_has_six_digits():
    assert learning_rate(WARM, STEPS, 3 * STEPS) == 0.4
    assert learning_rate(WARM, STEPS, 1) == pytest.approx(0.4 / 14, rel=1e-5)
    assert learning_rate(WARM, STEPS, 10 * STEPS - 1) == 0.004


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"warmup": 1.0}, r"--warmup must lie in \[0, 1\); got 1"),
        ({"warmup": 0.5}, r"--drops must come after --warmup, .* first 0.5 of .*; got \(0.4, 0.7"),
        ({"warmup": 0.5, "drops": (0.7, 0.4)}, r"--drops must come after .*; got \(0.7, 0.4"),
        ({"warmup": -1.0}, r"--warmup must lie in \[0, 1\); got -1"),
        ({"drops": (0.4, 1.0)}, r"--drops must lie in \(0, 1\); got 1"),
        ({"drops": (61, 121)}, r"--drops must lie in \(0, 1\); got 61"),
        ({"label_smoothing": 1.0}, r"--label-smoothing must lie in \[0, 1\); got 1.0"),
    ],
)
def test_schedules_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        recipes.check(replace(WARM, **changes))
    recipes.check(replace(WARM, warmup=0.5, schedule="cosine"))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InputError, match=r"must be nesterov or one of Optax's .* adamw, .*; got x"):
        check_optimizer(replace(WARM, optimizer="x"))


def test_optimizers_are_found_by_what_they_need():
    known = set(known_optimizers())
    assert {"sgd", "adam", "adamw", "lion", "lamb", "rmsprop", "adagrad"} < known
    assert not known & {"lbfgs", "rprop", "sm3", "scale_by_learning_rate"}


# `noisy_sgd` is left out, because its steps are random.
@pytest.mark.parametrize("name", ["nesterov", *sorted({*known_optimizers()} - {"noisy_sgd"})])
def test_every_optimizer_takes_a_step_downwards_and_decays_kernels_alone(name):
    recipe = replace(WARM, optimizer=name, warmup=0, learning_rate=1e-3, weight_decay=0.0)
    params = {"kernel": jnp.full((4, 3), 0.5), "bias": jnp.full(3, 0.5)}

    def step(recipe, gradient):
        check_optimizer(recipe)
        optimizer = make_optimizer(recipe, STEPS)
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        after: Any = optax.apply_updates(params, updates)
        return after

    uphill = jax.tree.map(jnp.ones_like, params)
    after = step(recipe, uphill)
    found = jax.tree.map(lambda after, before: after - before, after, params)
    assert all((leaf <= 0).all() for leaf in jax.tree.leaves(found)), name
    assert found["kernel"].min() < 0
    decayed = step(replace(recipe, weight_decay=10.0), uphill)
    np.testing.assert_array_equal(decayed["bias"], after["bias"])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_optimizers_of_optax_are_those_that_a_user_would_write(name):
    recipe = replace(WARM, optimizer=name, weight_decay=0.1)
    rate = make_schedule(recipe, STEPS)
    kernels = {"kernel": True, "bias": False}
    by_hand = {
        "sgd": optax.chain(optax.add_decayed_weights(0.1, kernels), optax.sgd(rate, momentum=0.9)),
        "adamw": optax.adamw(rate, weight_decay=0.1, mask=kernels),
    }[name]
    ours = make_optimizer(recipe, STEPS)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    gradient = {"kernel": jnp.eye(2), "bias": jnp.arange(2.0)}
    states = [ours.init(params), by_hand.init(params)]
    for _ in range(3):
        found, states[0] = ours.update(gradient, states[0], params)
        expected, states[1] = by_hand.update(gradient, states[1], params)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_smoothed_labels_spread_a_share_over_all_classes():
    rng = np.random.default_rng(0)
    logits, y = jnp.asarray(rng.normal(size=(5, 4)), jnp.float32), jnp.array([0, 3, 1, 2, 2])
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected = -0.9 * log_p[np.arange(5), y] - 0.1 * log_p.mean(1)

    @partial(jax.jit, static_argnums=1)
    def loss(logits, smoothing):
        return cross_entropy(lambda x: x, (logits, y), smoothing=smoothing)

    np.testing.assert_allclose(loss(logits, 0.1), expected.mean(), rtol=1e-5)
    plain = -log_p[np.arange(5), y]
    np.testing.assert_allclose(loss(logits, 0.0), plain.mean(), rtol=1e-5)
    assert math.isfinite(loss(1e4 * logits, 0.1))
