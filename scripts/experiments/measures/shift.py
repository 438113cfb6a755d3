"""Measure the moments and the internal covariate shift of layers after every training epoch.

The paper's dense network has ten layers of 100 units and one layer of 8 units. The network is
trained with two normalizations, and with a learning rate that drops or is constant. The paper's
text allows two orders of normalization and ReLU, and both are trained. Networks of one order and
seed start from the same weights. A shift depends on the statistics by which a layer normalizes.
Therefore every measurement is made with three kinds of statistics:

- `whole set`: every layer normalizes by the statistics of all training images. Statistics of the
  whole set depend only on the weights, so nothing shifts while the weights are frozen.
- `running`: every layer normalizes by running averages, as in inference.
- `batch`: every batch of test images normalizes by its own statistics, as in training.

For `running` and `batch`, the `floor` is the distance that changed statistics cause while the
weights are frozen. For `running`, further batches change the running averages. For `batch`, the
test images are divided into different batches.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from experiments import files, storage
from experiments.data.datasets import Images
from experiments.files import plain
from experiments.measures import provenance
from experiments.recipes import Recipe, replace
from experiments.training import chunks
from experiments.training.networks import graphs
from experiments.training.paired_runs import NORMALIZATIONS
from experiments.training.step import State
from experiments.training.trainer import Trainer, mesh_of
from jaxnorm.nnx import layer_outputs, recalibrate
from jaxnorm.shift import Tracker, stream_moments

Network = tuple[Any, Any]  # parameters and running statistics
Outputs = dict[str, Float[Array, "n *features"]]
UnitMoments = dict[str, np.ndarray]  # moments of the last layer's units, by the name of the moment

LAYERS = ("norms.4", "norms.10")
KINDS = ("whole set", "running", "batch")
SCHEDULES = ("drops", "constant")
# the name of the model for each order of normalization and ReLU
ORDERS = {"norm first": "mlp", "ReLU first": "mlp_relu_first"}
# Batch norm fixes the mean and the variance, but not these moments.
FREE = ("skewness", "kurtosis")
PROBE = 1000  # The number of test images that the trackers evaluate.
CHUNK = 500  # The number of images in one forward pass, when moments are measured.
# The moments for running statistics and for batch statistics are from this number of batches.
MOMENT_BATCHES = 20
# Before the noise floor is measured, at most this number of further batches update the running
# averages. After 100 batches at momentum 0.9, the earlier averages have a weight of 0.9¹⁰⁰ = 3e-5.
# If an epoch has fewer than 100 batches, the weight is larger. For example, an epoch of the digits
# has 11 batches, so the weight is 0.9¹¹ = 0.3.
FLOOR_BATCHES = 100


class Run(NamedTuple):
    """One network to train: its normalization, order, schedule and seed."""

    normalization: str
    order: str
    schedule: str
    seed: int

    def recipe(self, recipe: Recipe) -> Recipe:
        """The `recipe` with the normalization, the order and the schedule of the run."""
        own = replace(recipe, normalization=self.normalization, model=ORDERS[self.order])
        return replace(own, drops=()) if self.schedule == "constant" else own


class Program(NamedTuple):
    """The compiled functions for the networks of one recipe; all seeds use the same functions.

    Attributes:
      trainer: The trainer of the networks.
      outputs: A function that returns the outputs of `LAYERS` for images, normalized by the
        network's running statistics.
      in_batches: A function that returns the outputs of `LAYERS` for images in batches; each batch
        normalizes by its own statistics.
      whole_set: A function that returns a network after its statistics are replaced by the
        statistics of all training images.
      more_batches: A function that returns a network after further batches have updated its running
        averages; the weights do not change.
    """

    trainer: Trainer
    outputs: Callable[[Network, Array], Outputs]
    in_batches: Callable[[Network, Array], Outputs]
    whole_set: Callable[[Network, Array], Network]
    more_batches: Callable[[Network, Array, Array], Network]


def dense_recipe(dataset: str, epochs: int, batch_size: int) -> Recipe:
    """The recipe of the paper's dense network.

    The learning rate is divided by 5 at 30, 60 and 80 % of the epochs.
    """
    return Recipe(
        dataset=dataset,
        model="mlp",
        epochs=epochs,
        batch_size=batch_size,
        momentum=0.0,
        weight_decay=0.0,
    )


def train_all(
    recipe: Recipe,
    images: Images,
    schedules: Iterable[str],
    orders: Iterable[str],
    seeds: int,
    exact: int,
    out: Path,
    update: Callable[[str, int], None],
) -> list[dict[str, Any]]:
    """Train and measure all networks; a result has the fields of `Run` and values for each epoch.

    Seeds are the outermost loop, so the results of an interrupted run contain complete comparisons.

    Args:
      recipe: The recipe that `Run.recipe` changes to the recipe of each network.
      images: The data set.
      schedules: Some of `SCHEDULES`.
      orders: Some of `ORDERS`.
      seeds: Number of networks of each kind.
      exact: Number of test images between which exact distances are computed.
      out: A folder whose subfolder `runs` has the results of finished networks. These results are
        read, and the networks are not trained again.
      update: Function that is called with a description, and with the number of epochs that were
        finished since the previous call of `update`.
    """
    program_of = cache(partial(program, images=images))
    orders, measured = tuple(orders), []
    first = orders[0]
    for seed, schedule, order, normalization in itertools.product(
        range(seeds), schedules, orders, NORMALIZATIONS
    ):
        run = Run(normalization, order, schedule, seed)
        own = run.recipe(recipe)
        name = f"{normalization.replace('_', ' ')}, {order}, {schedule}, seed {seed + 1} of {seeds}"
        file = f"{digest(own, exact)}-{'-'.join(map(str, run))}.json".replace(" ", "_")
        lines = read_or_train(
            lambda own=own, seed=seed: train(program_of(own), images, exact, seed),
            own,
            out / "runs" / file,
            partial(update, name),
        )
        found = columns(lines)
        if seed > 0 or order != first:
            del found["moments"]  # the page shows moments only for the first seed and order
        measured.append(run._asdict() | found)
    return measured


def columns(lines: list[dict]) -> dict[str, Any]:
    """For each quantity, the list of its values over epochs, rounded to four digits."""
    return jax.tree.map(
        lambda *values: [v if v is None else float(f"{v:.4g}") for v in values],
        *lines,
        is_leaf=lambda value: value is None,
    )


def read_or_train(
    measured: Callable[[], Iterator[dict]],
    recipe: Recipe,
    path: Path,
    update: Callable[[int], None],
) -> list[dict]:
    """Measure one network while it is trained, or read the results of its finished run."""
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
    """A hash of what the results depend on: settings, code and versions."""
    return provenance.digest([asdict(recipe), exact], (Path(__file__), *provenance.code()))[:12]


def program(recipe: Recipe, images: Images) -> Program:
    """Make the compiled functions that train and measure the networks of a recipe."""
    training, inference = graphs(recipe, images)

    @jax.jit
    def in_batches(network: Network, x: Float[Array, "n h w c"]) -> Outputs:
        size = min(recipe.batch_size, len(x))
        batches = x[: len(x) // size * size].reshape(-1, size, *x.shape[1:])
        model = nnx.merge(training, *network, copy=True)
        found = jax.lax.map(partial(layer_outputs, model, LAYERS), batches)
        return {name: y.reshape(-1, *y.shape[2:]) for name, y in found.items()}

    @jax.jit
    def whole_set(network: Network, x: Float[Array, "n h w c"]) -> Network:
        model = nnx.merge(inference, *network, copy=True)
        recalibrate(model, [x])
        return network[0], nnx.state(model, nnx.BatchStat)

    @jax.jit
    def more_batches(network: Network, x: Float[Array, "n h w c"], key: Array) -> Network:
        params, statistics = network
        size = min(recipe.batch_size, len(x))
        batches = min(FLOOR_BATCHES, len(x) // size)
        rows = jax.random.permutation(key, len(x))[: batches * size].reshape(batches, size)

        def see(statistics: Any, rows: Int[Array, " n"]) -> tuple[Any, None]:
            model = nnx.merge(training, params, statistics, copy=True)
            model(x[rows])
            return nnx.state(model, nnx.BatchStat), None

        return params, jax.lax.scan(see, statistics, rows)[0]

    trainer = Trainer(recipe, images, mesh_of(1))
    return Program(trainer, outputs_of(recipe, images), in_batches, whole_set, more_batches)


def outputs_of(recipe: Recipe, images: Images) -> Callable[[Network, Array], Outputs]:
    """A function that returns the outputs of `LAYERS` for a network and images, in inference."""
    _, inference = graphs(recipe, images)

    @jax.jit
    def outputs(network: Network, x: Float[Array, "n h w c"]) -> Outputs:
        return layer_outputs(nnx.merge(inference, *network, copy=True), LAYERS, x)

    return outputs


def train(program: Program, images: Images, exact: int, seed: int) -> Iterator[dict[str, Any]]:
    """Train one network, and yield the measurements of every epoch."""
    trainer = program.trainer
    x, probe = jnp.asarray(images.x_train), jnp.asarray(images.x_test[:PROBE])
    follow = Follower(program, x, probe, exact)
    state = trainer.init_state((seed,))
    follow.update(state, jax.random.key(seed))
    for chunk in chunks.epochs(trainer, state, (seed,)):
        state = chunk.state
        (fractions,) = trainer.evaluate(state)
        key = jax.random.fold_in(jax.random.key(seed), chunk.step)
        yield {"loss": float(state.loss) / trainer.steps, **fractions, **follow.update(state, key)}


class Follower:
    """A tracker that measures the moments and the shift of a network's layers in each epoch.

    Shift and moments are measured for each of the three kinds of statistics.
    """

    def __init__(self, program: Program, x: Array, probe: Array, exact: int):
        self.program, self.x = program, x
        self.few = x[: MOMENT_BATCHES * program.trainer.recipe.batch_size]
        self.trackers = {
            "whole set": Tracker(program.outputs, probe, exact=exact),
            "running": Tracker(program.outputs, probe, exact=exact),
            "batch": Tracker(self._in_batches, probe, exact=exact),
        }
        self.before: dict[str, UnitMoments] = {}

    def update(self, state: State, key: Array) -> dict[str, Any]:
        """Measure moments, distances and changes since the last call of `update`, and noise floors.

        The first call returns an empty dictionary.
        """
        network = state.params, state.statistics
        exact = self.program.whole_set(network, self.x)
        more = self.program.more_batches(network, self.x, key)
        metrics = {
            "whole set": self.trackers["whole set"].update(exact),
            "running": self.trackers["running"].update(network, frozen=more),
            "batch": self.trackers["batch"].update((network, None), frozen=(network, key)),
        }
        moments = {
            "whole set": self._moments(partial(self.program.outputs, exact), self.x, CHUNK),
            "running": self._moments(partial(self.program.outputs, network), self.few, CHUNK),
            "batch": self._moments(partial(self._in_batches, (network, None)), self.few, None),
        }
        frozen = {
            "running": self._moments(partial(self.program.outputs, more), self.few, CHUNK),
            "batch": self._moments(partial(self._in_batches, (network, key)), self.few, None),
        }
        before, self.before = self.before, moments
        if not before:
            return {}
        return {
            "shift": {kind: _distances(layers) for kind, layers in metrics.items()},
            "movement": {kind: _movement(before[kind], moments[kind]) for kind in KINDS},
            "floor": {kind: _movement(moments[kind], frozen[kind]) for kind in frozen},
            "moments": moments["whole set"],
        }

    def _in_batches(self, state: tuple[Network, Array | None], x: Array) -> Outputs:
        """The outputs of `LAYERS` for images that are divided into batches.

        The argument `state` is a network and a key. If the key is not None, the images are shuffled
        before they are divided into batches.
        """
        network, key = state
        size = min(self.program.trainer.recipe.batch_size, len(x))
        x = x[: len(x) // size * size]
        if key is None:
            return self.program.in_batches(network, x)
        order = jax.random.permutation(key, len(x))
        found = self.program.in_batches(network, x[order])
        return {name: y[jnp.argsort(order)] for name, y in found.items()}

    def _moments(
        self, outputs: Callable[[Array], Outputs], x: Array, chunk: int | None
    ) -> UnitMoments:
        """The moments of each unit in the last layer, over the images `x`.

        The outputs are computed for `chunk` images at a time, or for all images if `chunk` is None.
        """
        found = stream_moments(outputs, image_chunks(x, chunk or len(x)))[LAYERS[-1]]
        return {name: np.asarray(value) for name, value in found._asdict().items()}


def _distances(layers: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each layer, the shift in an epoch, and a noise floor or, if there is none, bounds.

    With the bounds, the result also has the baseline, which is the distance between two halves of
    the measured images.
    """
    return {
        name: {what: layer["shift"][what] for what in ("exact", "lower", "upper", "baseline")}
        if layer["floor"] is None
        else {"exact": layer["shift"]["exact"], "floor": layer["floor"]}
        for name, layer in layers.items()
    }


def _movement(before: UnitMoments, after: UnitMoments) -> dict[str, float]:
    """The mean absolute change of skewness and kurtosis, over units whose moments are finite."""
    return {name: float(np.nanmean(np.abs(after[name] - before[name]))) for name in FREE}


def image_chunks(x: Float[Array, "n h w c"], size: int) -> Iterator[Float[Array, "m h w c"]]:
    """Yield the images in parts of `size` images."""
    for i in range(0, len(x), size):
        yield x[i : i + size]
