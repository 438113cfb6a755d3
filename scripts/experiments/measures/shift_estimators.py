"""Compare estimates of the earth mover distance between pairs of distributions."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments import recipes
from experiments.data import datasets
from experiments.measures.shift import LAYERS, outputs_of
from experiments.training import chunks
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.shift import emd, emd_critic, emd_lower_bound, emd_sliced, mean_projection

TRAIN, TEST = 2000, 500
Sample = Float[Array, "n d"]


class Case(NamedTuple):
    """Two distributions, and the earth mover distance between them.

    If `distance` is None, `measure` uses the exact distance between the test samples.
    """

    name: str
    draw: Callable[[Key[Array, ""], int], tuple[Sample, Sample]]
    distance: float | None


def measure(case: Case, seeds: int, steps: int) -> dict[str, Any]:
    """For every estimate, the bias and the standard deviation, both divided by the distance."""
    keys = jax.random.split(jax.random.key(0), (seeds, 4))
    train, test = ([case.draw(key[i], size) for key in keys] for i, size in ((0, TRAIN), (1, TEST)))
    samples = [jnp.stack(part) for pairs in (train, test) for part in zip(*pairs, strict=True)]
    exact = np.array([emd(x, y) for x, y in test])
    sliced = jax.jit(jax.vmap(emd_sliced))(keys[:, 2], *samples[2:])
    critics = [
        jax.jit(jax.vmap(partial(critic, steps=steps)))(keys[:, 3], *samples)
        for critic in (emd_lower_bound, emd_critic)
    ]
    truth = exact if case.distance is None else np.full(seeds, case.distance)
    values = {
        "exact": exact,
        "slices": np.asarray(sliced.distance) / mean_projection(samples[0].shape[-1]),
        "lower bound": np.asarray(critics[0]),
        "Algorithm 3": np.asarray(critics[1]),
    }
    errors = {name: np.asarray(value, np.float64) / truth - 1 for name, value in values.items()}
    return {
        "name": case.name,
        "distance": float(truth.mean()),
        "estimates": {
            name: {
                "bias": float(e.mean()),
                "spread": float(e.std(ddof=1)),
                "values": np.asarray(values[name], np.float64).tolist(),
            }
            for name, e in errors.items()
        },
    }


def cases() -> Iterator[Case]:
    """Yield pairs of distributions whose distance is known, and one pair from a real layer."""

    def gaussians(
        key: Key[Array, ""], n: int, *, dims: int, shift: float, scale: float
    ) -> tuple[Sample, Sample]:
        x, y = jax.random.normal(key, (2, n, dims))
        return x, scale * y + shift / dims**0.5

    def unbounded(key: Key[Array, ""], n: int, *, dims: int) -> tuple[Sample, Sample]:
        x, y = jax.random.uniform(key, (2, n, dims))
        # In this example of the unitization paper, the features of the first sample are uniform on
        # [5, 10], and the features of the second sample are uniform on [0, 2.5].
        return 5 + 5 * x, 2.5 * y

    for dims in (1, 8, 64, 512):
        for shift in (0.5, 2.0, 8.0):
            draw = partial(gaussians, dims=dims, shift=shift, scale=1.0)
            yield Case(f"Gaussians, d = {dims}, shift {shift:g}", draw, shift)
    for dims in (2, 64):
        draw = partial(gaussians, dims=dims, shift=0.0, scale=2.0)
        logs = math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2)
        yield Case(f"Gaussians, d = {dims}, scales 1 and 2", draw, 2**0.5 * math.exp(logs))
    yield Case("unbounded example, d = 1", partial(unbounded, dims=1), 6.25)
    yield Case("layer of 8 units, one epoch", real_layer(), None)


def real_layer() -> Callable[[Key[Array, ""], int], tuple[Sample, Sample]]:
    """A function that draws outputs of a real layer before and after an epoch of training.

    The layer is the last normalization layer of a network that is trained on digits.
    """
    images = datasets.load("digits")
    recipe = recipes.replace(recipes.PRESETS["digits-mlp"][1], epochs=6, momentum=0.0, drops=())
    outputs, trainer = outputs_of(recipe, images), Trainer(recipe, images, mesh_of(1))
    x = jnp.asarray(np.concatenate([images.x_train, images.x_test]))
    *_, before, after = (
        outputs((chunk.state.params, chunk.state.statistics), x)[LAYERS[-1]]
        for chunk in chunks.epochs(trainer, trainer.init_state((0,)), (0,))
    )

    def draw(key: Key[Array, ""], n: int) -> tuple[Sample, Sample]:
        index = jax.random.randint(key, (n,), 0, len(x))
        return before[index], after[index]

    return draw
