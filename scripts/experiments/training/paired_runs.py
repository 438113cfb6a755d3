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
from experiments.training import evaluation, recipes
from experiments.training.checkpoints import Checkpoints
from experiments.training.recipes import Recipe
from experiments.training.trainer import State, Trainer, mesh_of, trainer
from jaxnorm.nnx import recalibrate

ARMS = ("batch_norm", "unitized")
SAMPLE = 500  # images that give untrained networks their running statistics
PROBE = 1000  # test images of which outputs are measured
BETWEEN_CHECKPOINTS = 5.0  # seconds; a network's last epoch is always kept


class History(NamedTuple):
    """What is measured at every epoch; entry 0 of moments is the untrained network."""

    loss: Float[np.ndarray, " epochs"]
    accuracy: Float[np.ndarray, " epochs"]  # on all test images
    moments: Float[np.ndarray, "epochs+1 4 c"]
    distances: Float[np.ndarray, "epochs c"]  # from one epoch to the next


class Program(NamedTuple):
    """One arm's compiled functions, shared by its seeds.

    Attributes:
      trainer: What trains it.
      start: The untrained network of a seed, with the running statistics of a sample.
      outputs: Of the last normalization, in inference, on the probe.
      probed: Accuracy on the probe.
    """

    trainer: Trainer
    start: Callable[[int], State]
    outputs: Callable[[State], Float[Array, "n h w c"]]
    probed: Callable[[State], float]


def program(recipe: Recipe, images: Images) -> Program:
    """Compiled functions to train and measure the network of a recipe."""
    mesh = mesh_of(1)
    compiled = trainer(recipe, images, mesh)
    training, inference = recipes.graphs(recipe, images)
    probe = images._replace(x_test=images.x_test[:PROBE], y_test=images.y_test[:PROBE])
    x = jnp.asarray(probe.x_test)

    def start(seed: int) -> State:
        state = compiled.start((seed,))
        model = nnx.merge(training, state.params, state.statistics, copy=True)
        recalibrate(model, [jnp.asarray(images.x_train[:SAMPLE])])
        places = jax.tree.map(lambda a: a.sharding, state.statistics)
        return state._replace(statistics=jax.device_put(nnx.state(model, nnx.BatchStat), places))

    def frozen(network: Any) -> Any:
        return nnx.merge(inference, *network)

    @jax.jit
    def outputs(network: Any, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        return frozen(network).last_normalized(x)

    accuracy = evaluation.of_arrays(
        lambda network, x: frozen(network)(x), probe, mesh, together=False
    )

    def probed(state: State) -> float:
        (found,) = accuracy((state.params, state.statistics))
        return found["accuracy"]

    return Program(
        compiled, start, lambda state: outputs((state.params, state.statistics), x), probed
    )


def train(
    functions: Program,
    recipe: Recipe,
    seed: int,
    folder: Path,
    on_epoch: Callable[[int], None],
    tell: Callable[[str], None],
) -> tuple[State, History]:
    """Train from `seed`, or from the newest whole checkpoint, and measure every epoch.

    Args:
      functions: Of the recipe.
      recipe: As at the time of the checkpoint.
      seed: Decides the initial weights and the order of the images.
      folder: Where checkpoints are kept.
      on_epoch: Called with the number of finished epochs, restored ones included.
      tell: Called with a line for each checkpoint that is damaged.
    """
    compiled, seeds = functions.trainer, (seed,)
    state = functions.start(seed)
    history = _empty_history(recipe.epochs, functions.outputs(state))
    with Checkpoints(folder) as checkpoints:
        state, kept = checkpoints.restore((state, jax.device_put(history)), tell)
        history = History(*map(np.array, kept))
        outputs = functions.outputs(state)
        done = int(state.step) // compiled.steps
        on_epoch(done)
        saved_at = time.monotonic()
        for epoch in range(done, recipe.epochs):
            batches = compiled.epoch(seeds, epoch, 0)
            state = compiled.advance(state, batches, seeds, compiled.steps)
            before, outputs = outputs, functions.outputs(state)
            (found,) = compiled.evaluate(state)
            history.loss[epoch] = state.loss / compiled.steps
            history.accuracy[epoch] = found["accuracy"]
            history.moments[epoch + 1] = _moments(outputs)
            history.distances[epoch] = _distances(before, outputs)
            if epoch + 1 == recipe.epochs or time.monotonic() - saved_at > BETWEEN_CHECKPOINTS:
                checkpoints.save(int(state.step), (state, jax.device_put(history)))
                saved_at = time.monotonic()
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
    channels = outputs.shape[-1]
    shapes = (epochs,), (epochs,), (epochs + 1, 4, channels), (epochs, channels)
    history = History(*(np.zeros(shape, np.float32) for shape in shapes))
    history.moments[0] = _moments(outputs)
    return history
