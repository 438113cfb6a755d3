"""A whole small run, compared with a computation by hand of all its parts.

Recipes set every option to a value that has an effect. Epochs leave out an incomplete batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.recipes import Recipe, replace
from experiments.training import loop
from tests.support.small_runs import View, compiled, random_images

pytestmark = pytest.mark.usefixtures("users_jax")

RECIPE = Recipe(
    model="mlp",
    epochs=3,
    batch_size=24,  # an epoch uses 48 of 70 images, in two batches
    learning_rate=0.2,
    drops=(0.3, 0.6),
    drop_factor=4.0,
    momentum=0.6,
    weight_decay=0.05,
    running_momentum=0.7,
)


def leaves(tree) -> dict[str, Any]:
    """The arrays by their paths, such as layers/0/kernel."""
    return {
        "/".join(str(getattr(part, "key", part)) for part in path if hasattr(part, "key")): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def normalize(name, w, x, normalization, groups):
    """The normalized `x`, and its mean and unbiased variance, each averaged over groups of rows."""
    parts = x.reshape(groups, -1, x.shape[-1])
    mean = parts.mean(1, keepdims=True)
    var = ((parts - mean) ** 2).mean(1, keepdims=True)
    h = ((parts - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    if normalization != "batch_norm":
        norm, alpha = jnp.sqrt((h**2).sum(1, keepdims=True) + 1e-5), w[f"{name}/alpha"]
        h = h * (1 / (alpha * norm + 1 - alpha))
    count = parts.shape[1]
    moments = mean[:, 0].mean(0), var[:, 0].mean(0) * count / (count - 1)
    return w[f"{name}/scale"] * h + w[f"{name}/bias"], moments


def loss_of(w, x, y, recipe):
    """The mean cross entropy of a part of a batch, and the moments of inputs of both norms."""
    h, moments = x.reshape(len(x), -1), []
    for i in range(2):
        h = h @ w[f"layers/{i}/kernel"] + w[f"layers/{i}/bias"]
        options = recipe.normalization, recipe.statistics_groups
        h, found = normalize(f"norms/{i}", w, h, *options)
        h = jnp.maximum(h, 0)
        moments.append(found)
    logits = h @ w["head/kernel"] + w["head/bias"]
    log_p = logits - jnp.log(jnp.exp(logits).sum(1, keepdims=True))
    share = recipe.label_smoothing
    right = log_p[jnp.arange(len(y)), y]
    return -((1 - share) * right + share * log_p.mean(1)).mean(), moments


def run_by_hand(recipe, images, state, orders, rates):
    """The final weights and running statistics, and for each epoch the mean loss."""
    w, statistics = leaves(state.params), leaves(state.statistics)
    velocity, losses = {name: 0.0 * leaf for name, leaf in w.items()}, []
    gradient_of = jax.jit(
        jax.value_and_grad(lambda w, x, y: loss_of(w, x, y, recipe), has_aux=True)
    )
    steps = len(images.x_train) // recipe.batch_size
    for t, rate in enumerate(rates):
        epoch, step = divmod(t, steps)
        index = orders[epoch][step * recipe.batch_size : (step + 1) * recipe.batch_size]
        found = []
        for i in range(recipe.accumulate):
            part = index[i :: recipe.accumulate]
            (loss, moments), gradient = gradient_of(w, images.x_train[part], images.y_train[part])
            found.append((loss, gradient))
            for k, moved in enumerate(moments):
                for name, new in zip(("mean", "var"), moved, strict=True):
                    old = statistics[f"norms/{k}/{name}"]
                    statistics[f"norms/{k}/{name}"] = 0.7 * old + 0.3 * new
        losses.append(np.mean([loss for loss, _ in found]))
        for name in w:
            g = sum(gradient[name] for _, gradient in found) / len(found)
            g = g + recipe.weight_decay * w[name] if w[name].ndim == 2 else g
            # This is the rule in the code of the unitization paper.
            if recipe.optimizer == "nesterov":
                velocity[name] = recipe.momentum * velocity[name] - rate * g
                w[name] = w[name] + recipe.momentum * velocity[name] - rate * g
            else:
                velocity[name] = recipe.momentum * velocity[name] + g
                w[name] = w[name] - rate * velocity[name]
            if recipe.normalization == "bounded" and name.endswith("alpha"):
                w[name] = jnp.clip(w[name], 0, 1)
    return w, statistics, np.reshape(losses, (-1, steps)).mean(1)


RATES = {  # the rates of six steps, by hand; an epoch has two steps
    "drops": [0.2, 0.2, 0.05, 0.05, 0.0125, 0.0125],
    "cosine": [0.0, 0.1, *(0.1 * (1 + np.cos(np.pi * np.arange(4) / 4)))],
    "linear": [0.0, 0.1, 0.2, 0.15, 0.1, 0.05],
}


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({}, 1),
        ({"accumulate": 2, "label_smoothing": 0.3, "schedule": "linear", "warmup": 0.3}, 1),
        ({"optimizer": "sgd", "schedule": "cosine", "warmup": 0.3, "accumulate": 3}, 2),
        ({"normalization": "bounded", "accumulate": 2, "statistics_groups": 2}, 1),
        ({"statistics_groups": 2, "label_smoothing": 0.2}, 2),
    ],
)
def test_a_run_is_the_one_that_is_written_out(changes, devices, tmp_path):
    recipe, images, seeds = replace(RECIPE, **changes), random_images(), (3,)
    program = compiled(recipe, images, devices)
    first = program.init_state(seeds)
    orders = [np.asarray(program.batches(seeds, epoch, 0)) for epoch in range(3)]
    with jax.numpy_rank_promotion("allow"):
        expected = run_by_hand(recipe, images, first, orders, RATES[recipe.schedule])
    view: Any = View()
    trained = loop.train(program, seeds, tmp_path, view, view.interrupted)
    state, (lines,) = trained.state, trained.lines
    np.testing.assert_allclose([line["loss"] for line in lines], expected[2], rtol=1e-3)
    rates = [line["learning_rate"] for line in lines]
    np.testing.assert_allclose(rates, RATES[recipe.schedule][1::2], rtol=1e-5)
    for found, by_hand in zip((state.params, state.statistics), expected, strict=False):
        found = leaves(found)
        assert found.keys() == by_hand.keys()
        for name, leaf in found.items():
            np.testing.assert_allclose(leaf, by_hand[name], rtol=2e-3, atol=2e-4, err_msg=name)
