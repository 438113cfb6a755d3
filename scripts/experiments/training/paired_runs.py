"""Networks of two normalizations, trained from the same weights and measured at every epoch."""

import time
from collections.abc import Callable
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
from experiments.training import chunks, evaluation, networks
from experiments.training.checkpoints import Checkpoints
from experiments.training.step import State
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.nnx import recalibrate

NORMALIZATIONS = ("batch_norm", "unitized")
SAMPLE = 500  # images, for the running statistics of untrained networks
PROBE = 1000  # test images whose outputs are measured
BETWEEN_CHECKPOINTS = 5.0  # seconds; the last epoch is always saved


class History(NamedTuple):
    """Measurements of every epoch; entry 0 of moments is of the untrained network."""

    loss: Float[np.ndarray, " epochs"]
    accuracy: Float[np.ndarray, " epochs"]  # on all test images
    moments: Float[np.ndarray, "epochs+1 4 c"]
    distances: Float[np.ndarray, "epochs c"]  # from one epoch to the next


class Program(NamedTuple):
    """Compiled functions for one normalization, shared by its seeds.

    Attributes:
      trainer: Trains the network.
      init_state: The untrained network of a seed, with the running statistics of a sample.
      outputs: Outputs of the last normalization, in inference, for the probe.
      probe_accuracy: Accuracy on the probe.
    """

    trainer: Trainer
    init_state: Callable[[int], State]
    outputs: Callable[[State], Float[Array, "n h w c"]]
    probe_accuracy: Callable[[State], float]


def program(recipe: Recipe, images: Images) -> Program:
    """Compiled functions to train and measure the network of a recipe."""
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


def train(
    program: Program,
    seed: int,
    checkpoint_dir: Path,
    on_epoch: Callable[[int], None],
    log: Callable[[str], None],
) -> tuple[State, History]:
    """Train from `seed`, or from the newest whole checkpoint, and measure every epoch.

    Args:
      program: Compiled for the recipe.
      seed: Decides the initial weights and the order of the images.
      checkpoint_dir: Folder of the checkpoints of this seed.
      on_epoch: Called with the number of finished epochs, restored ones included.
      log: Called with a line for each checkpoint that is damaged.
    """
    trainer, epochs = program.trainer, program.trainer.recipe.epochs
    state = program.init_state(seed)
    history = _empty_history(epochs, program.outputs(state))
    with Checkpoints(checkpoint_dir) as checkpoints:
        (state, restored), _ = checkpoints.restore((state, jax.device_put(history)), log)
        history = History(*map(np.array, restored))
        outputs = program.outputs(state)
        on_epoch(chunks.steps_done(state) // trainer.steps)
        saved = time.monotonic()
        for chunk in chunks.epochs(trainer, state, (seed,)):
            epoch, state = chunk.epoch, chunk.state
            before, outputs = outputs, program.outputs(state)
            (fractions,) = trainer.evaluate(state)
            history.loss[epoch] = chunk.losses[0]
            history.accuracy[epoch] = fractions["accuracy"]
            history.moments[epoch + 1] = _moments(outputs)
            history.distances[epoch] = _distances(before, outputs)
            if epoch + 1 == epochs or time.monotonic() - saved > BETWEEN_CHECKPOINTS:
                checkpoints.save(chunk.step, (state, jax.device_put(history)))
                saved = time.monotonic()
            on_epoch(epoch + 1)
    return state, history


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


def _empty_history(epochs: int, outputs: Float[Array, "n h w c"]) -> History:
    c = outputs.shape[-1]
    shapes = (epochs,), (epochs,), (epochs + 1, 4, c), (epochs, c)
    history = History(*(np.zeros(shape, np.float32) for shape in shapes))
    history.moments[0] = _moments(outputs)
    return history
