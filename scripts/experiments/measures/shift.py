"""Moments and internal covariate shift of a network's layers, after every epoch of training.

The paper's dense network (ten layers of 100 units, one of 8) is trained with both normalizations
from the same weights, at a learning rate that drops and at a constant one.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

import jaxnorm
from experiments import files, provenance, storage
from experiments.data.datasets import Images
from experiments.pages.page import plain
from experiments.training import chunks
from experiments.training.networks import graphs
from experiments.training.paired_runs import NORMALIZATIONS
from experiments.training.recipes import Recipe, drops, replace
from experiments.training.step import State
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.shift import Tracker, stream_moments

Layers = Callable[[State, Array], dict[str, Array]]

LAYERS = ("norms.4", "norms.10")
SCHEDULES = ("drops", "constant")
PROBE = 1000  # test images that the tracker sees
CHUNK = 500  # training images at a time, for the moments


def dense_recipe(dataset: str, epochs: int, batch_size: int) -> Recipe:
    """The paper's dense network, its rate divided by 5 at 30, 60 and 80 % of the epochs."""
    return Recipe(
        dataset=dataset,
        model="mlp",
        epochs=epochs,
        batch_size=batch_size,
        drops=drops(epochs),
        momentum=0.0,
        weight_decay=0.0,
    )


def scheduled(recipe: Recipe, schedule: str) -> Recipe:
    """The recipe with its drops, or for the schedule `constant` without them."""
    return replace(recipe, drops=()) if schedule == "constant" else recipe


def train_all(
    recipe: Recipe,
    images: Images,
    seeds: int,
    exact: int,
    out: Path,
    update: Callable[[str, int], None],
) -> dict[str, dict[str, list[list[dict]]]]:
    """Measurements by normalization, schedule, seed and epoch.

    Args:
      recipe: Of one normalization; those of the others differ in it and in the drops.
      images: The data set.
      seeds: Number of networks for each normalization and schedule.
      exact: Test images between which exact distances are computed.
      out: Folder whose `runs` has the networks that are finished: they are read, not trained.
      update: Called with a description and the number of epochs since the last call.
    """
    runs: dict[str, dict[str, list]] = {name: {} for name in NORMALIZATIONS}
    layers_by = {n: layers_of(replace(recipe, normalization=n), images) for n in NORMALIZATIONS}
    for normalization, schedule in itertools.product(NORMALIZATIONS, SCHEDULES):
        own = scheduled(replace(recipe, normalization=normalization), schedule)
        trainer, layers = Trainer(own, images, mesh_of(1)), layers_by[normalization]
        runs[normalization][schedule] = []
        for seed in range(seeds):
            name = f"{normalization.replace('_', ' ')}, {schedule}, seed {seed + 1} of {seeds}"
            path = f"{digest(own, exact)}-{normalization}-{schedule}-{seed}.json"
            measured = partial(train, trainer, layers, images, exact, seed)
            lines = read_or_train(measured, own, out / "runs" / path, partial(update, name))
            runs[normalization][schedule].append(lines)
    return runs


def read_or_train(
    measured: Callable[[], Iterator[dict]],
    recipe: Recipe,
    path: Path,
    update: Callable[[int], None],
) -> list[dict]:
    """The measurements of one network, from the file of a finished run if there is one."""
    update(0)
    finished = files.read_json(path, list)
    if finished is not None:
        update(recipe.epochs)
        return finished
    lines = []
    for line in measured():
        lines.append(plain(line))
        update(1)
    storage.make_folder(path.parent)
    files.write(path, json.dumps(lines))
    return lines


def digest(recipe: Recipe, exact: int) -> str:
    """A hash of everything that decides the results: settings, code and versions."""
    decisive = [asdict(recipe), exact, jax.__version__]
    return provenance.digest(decisive, (Path(__file__), *provenance.code()))[:12]


def layers_of(recipe: Recipe, images: Images) -> Layers:
    """A function of a state and images: the outputs of `LAYERS` in inference."""
    _, inference = graphs(recipe, images)

    @jax.jit
    def outputs(network: Any, x: Float[Array, "n h w c"]) -> dict[str, Array]:
        return jaxnorm.nnx.layer_outputs(nnx.merge(inference, *network, copy=True), LAYERS, x)

    return lambda state, x: outputs((state.params, state.statistics), x)


def train(
    trainer: Trainer, layers: Layers, images: Images, exact: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Train one network, and yield the measurements of every epoch."""
    x, probe = jnp.asarray(images.x_train), jnp.asarray(images.x_test[:PROBE])
    tracker, state = Tracker(layers, probe, exact=exact), trainer.init_state((seed,))
    tracker.update(state)
    for chunk in chunks.epochs(trainer, state, (seed,)):
        state = chunk.state
        (fractions,) = trainer.evaluate(state)
        yield {
            "loss": float(state.loss) / trainer.steps,
            **fractions,
            "shift": {
                name: layer["shift"] | {"channels": float(np.mean(layer["shift"]["channels"]))}
                for name, layer in tracker.update(state).items()
            },
            "tracker_seconds": tracker.seconds,
            "moments": stream_moments(partial(layers, state), image_chunks(x))[
                LAYERS[-1]
            ]._asdict(),
        }


def image_chunks(x: Float[Array, "n h w c"]) -> Iterator[Float[Array, "m h w c"]]:
    """Images in parts of `CHUNK`."""
    for i in range(0, len(x), CHUNK):
        yield x[i : i + CHUNK]
