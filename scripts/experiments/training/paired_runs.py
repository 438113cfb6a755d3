"""Train and measure networks with two normalizations, which start from equal weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

import jaxnorm
from experiments.data.datasets import Images
from experiments.recipes import Recipe
from experiments.signals import Interruption
from experiments.training import evaluation, loop, networks
from experiments.training.loop import Extras
from experiments.training.step import State
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.nnx import recalibrate

NORMALIZATIONS = ("batch_norm", "unitized")
SAMPLE = 500  # The number of images from which an untrained network gets running statistics.
PROBE = 1000  # The number of test images for which the outputs of a layer are measured.


class History(NamedTuple):
    """The measurements of one network at the end of every epoch.

    `moments` and `distances` describe the outputs of the last normalization layer for the first
    `PROBE` test images, with one number for each channel.

    Attributes:
      loss: The training loss.
      accuracy: The accuracy on all test images.
      moments: Mean, variance, skewness and kurtosis. The first entry belongs to the untrained
        network, so there is one entry more than epochs.
      distances: The earth mover distance between the outputs before and after the epoch.
    """

    loss: Float[np.ndarray, " epochs"]
    accuracy: Float[np.ndarray, " epochs"]
    moments: Float[np.ndarray, "epochs+1 4 c"]
    distances: Float[np.ndarray, "epochs c"]


class Program(NamedTuple):
    """The compiled functions for networks with one normalization; all seeds use the same ones.

    Attributes:
      trainer: The trainer of the network.
      init_state: A function that takes a seed and returns the untrained network, with running
        statistics from a sample of images.
      outputs: A function that takes a state and returns the last normalization layer's outputs for
        the first `PROBE` test images, in inference.
      probe_accuracy: A function that takes a state and returns the accuracy on these images.
    """

    trainer: Trainer
    init_state: Callable[[int], State]
    outputs: Callable[[State], Float[Array, "n h w c"]]
    probe_accuracy: Callable[[State], float]


def program(recipe: Recipe, images: Images) -> Program:
    """Make the compiled functions that train and measure the network of a recipe."""
    mesh = mesh_of(1)
    trainer = Trainer(recipe, images, mesh)
    training, inference = networks.graphs(recipe, images)
    probe = images._replace(x_test=images.x_test[:PROBE], y_test=images.y_test[:PROBE])
    x = jnp.asarray(probe.x_test)

    def init_state(seed: int) -> State:
        state = trainer.init_state((seed,))
        model = nnx.merge(training, state.params, state.statistics, copy=True)
        recalibrate(model, [jnp.asarray(images.x_train[:SAMPLE])])
        shardings = jax.tree.map(lambda a: a.sharding, state.statistics)
        statistics = jax.device_put(nnx.state(model, nnx.BatchStat), shardings)
        return state._replace(statistics=statistics)

    def frozen(state: State) -> Any:
        return nnx.merge(inference, state.params, state.statistics)

    @jax.jit
    def outputs(state: State, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        return frozen(state).last_normalized(x)

    accuracies = evaluation.array_evaluator(
        lambda state, x: frozen(state)(x), probe, mesh, vmap_seeds=False
    )
    return Program(
        trainer,
        init_state,
        lambda state: outputs(state, x),
        lambda state: accuracies(state)[0]["accuracy"],
    )


def train(program: Program, seed: int, out: Path, view: loop.View) -> tuple[State, History]:
    """Train from `seed`, or from the newest undamaged checkpoint, and measure every epoch.

    Args:
      program: The functions that are compiled for the recipe.
      seed: Seed of the initial weights and of the order of the images.
      out: Folder of the runs of all seeds.
      view: The display that shows the progress.
    """
    untrained = _moments(program.outputs(program.init_state(seed)))
    trained = loop.train(
        program.trainer,
        (seed,),
        out,
        view,
        Interruption(),
        Extras(measure=partial(_measure, program)),
        lambda seeds: program.init_state(*seeds),
    )
    (lines,) = trained.lines
    loss, accuracy, moments, distances = (
        np.array([line[name] for line in lines], np.float32)
        for name in ("loss", "accuracy", "moments", "distances")
    )
    return trained.state, History(loss, accuracy, np.stack([untrained, *moments]), distances)


def _measure(program: Program, state: State) -> loop.Measure:
    """Make a function that measures outputs' moments, and their distances since its last call."""
    outputs = program.outputs(state)

    def measure(state: State) -> dict[str, Any]:
        nonlocal outputs
        before, outputs = outputs, program.outputs(state)
        distances = _distances(before, outputs)
        return {"moments": _moments(outputs).tolist(), "distances": distances.tolist()}

    return measure


@jax.jit
def _moments(outputs: Float[Array, "n h w c"]) -> Float[Array, "4 c"]:
    return jnp.stack(jaxnorm.moments(outputs, axis=(0, 1, 2)))


@jax.jit
def _distances(
    before: Float[Array, "n h w c"], after: Float[Array, "n h w c"]
) -> Float[Array, " c"]:
    return jaxnorm.shift.emd_1d(
        *(outputs.reshape(-1, outputs.shape[-1]) for outputs in (before, after))
    )
