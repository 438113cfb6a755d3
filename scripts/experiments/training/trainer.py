"""Compile a recipe for a data set and a mesh; up to rounding, losses do not depend on the mesh.

A state contains everything that a step changes, and the number of finished steps. Batches, crops
and flips depend only on the seed and the number of finished steps. Therefore a resumed run and an
uninterrupted run give bitwise equal results. If seeds are trained by vmap, one compiled function
trains all seeds, and each leaf of the state has an axis of seeds.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Int

from experiments import recipes
from experiments.cli import InputError
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.data.loaders import InMemoryLoader, Loader, StreamingLoader
from experiments.recipes import Recipe
from experiments.training import evaluation, networks
from experiments.training.optimizers import make_optimizer
from experiments.training.step import State, rematerialize, train_step

STEPS_IN_SCAN, STEPS_IN_LOOP = 100, 10
MIN_SHARDED_SIZE = 2**12  # Arrays with fewer elements are not sharded.
MAX_STEPS = 2**31  # Steps are counted by int32.

Seeds = tuple[int, ...]


class Layout(NamedTuple):
    """How a recipe runs on devices; the layout changes results only by rounding.

    Attributes:
      shard_state: Whether parameters and optimizer state are sharded instead of replicated.
      remat: Whether the inside of each block is recomputed in the backward pass.
      vmap_seeds: Whether several seeds are trained together by vmap.
      workers: Number of processes that read images, for streamed data sets.
      microbatches: Number of parts into which each device's images in a step are divided.
        Normalization uses the statistics of all parts together.
    """

    shard_state: bool = False
    remat: bool = False
    vmap_seeds: bool = False
    workers: int = 0
    microbatches: int = 1


class Trainer:
    """A compiled recipe that trains one seed, or several seeds together by vmap.

    Attributes:
      recipe: Recipe of the network.
      steps: Number of steps in an epoch; images that do not fill a batch are left out.
      total_steps: The number of steps of all epochs.
      steps_per_call: The largest number of steps between two times at which the loss is read.
      parameters: Number of trained parameters of one network.
      placement: The shape of the mesh, and the kind of its devices.
      vmaps_seeds: Whether several seeds are trained together by vmap.
      streams: Whether batches of images are read while the network is trained.
      seconds_waiting: The total time in seconds that `advance` has waited for batches.
    """

    def __init__(
        self, recipe: Recipe, data: Images | Records, mesh: Mesh, layout: Layout | None = None
    ):
        """Prepare the functions of the trainer; JAX compiles a function when it is first called.

        Args:
          recipe: The recipe of the network, which is already checked.
          data: Images in the memory of every host, or records that every host reads.
          mesh: A mesh with one axis, `data`, over which batches are sharded.
          layout: The layout; by default one seed, replicated state and no rematerialization.

        Raises:
          InputError: A batch cannot be divided evenly over devices and parts, a batch is larger
            than the training set, the run has too many steps, or two options exclude each other.
        """
        layout = layout or Layout()
        self.recipe, self.vmaps_seeds = recipe, layout.vmap_seeds
        self._loader = _loader(recipe, data, mesh, layout)
        self.steps = self._loader.count // recipe.batch_size
        self.total_steps = recipe.epochs * self.steps
        self.placement = {"shape": dict(mesh.shape), "device": mesh.devices.flat[0].device_kind}
        self.streams, self.seconds_waiting = isinstance(data, Records), 0.0
        if self.total_steps >= MAX_STEPS:
            raise InputError(
                f"--epochs must give fewer than 2^31 steps; got {recipe.epochs} epochs of "
                f"{self.steps} steps"
            )
        build = partial(
            networks.network,
            classes=self._loader.classes,
            shape=self._loader.shape,
            streamed=self.streams,
            key=jax.random.key(0),
        )
        model = nnx.eval_shape(partial(build, recipe))
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
        # In a scan, XLA's CPU compiler makes convolutions 4 to 17 times slower.
        self._scans = self._loader.scannable and platform(mesh) != "cpu"
        self.steps_per_call = STEPS_IN_SCAN if self._scans else STEPS_IN_LOOP
        local = partial(build, recipe, statistics=_statistics_options(recipe, mesh.size))
        self._compile(build, nnx.eval_shape(local), mesh, layout)
        self._evaluate = evaluation.evaluator(
            recipe, data, model, mesh, vmap_seeds=layout.vmap_seeds, workers=layout.workers
        )

    def _compile(
        self, build: Callable[..., nnx.Module], model: nnx.Module, mesh: Mesh, layout: Layout
    ) -> None:
        graph = nnx.graphdef(rematerialize(model) if layout.remat else model)
        optimizer = make_optimizer(self.recipe, self.steps)
        step = train_step(self.recipe, self._loader, optimizer, graph, mesh, layout.microbatches)
        step = self._maybe_vmap(step, (0, self._loader.in_axes, 0))
        init = self._maybe_vmap(partial(_init_state, self.recipe, build, optimizer), 0)
        # Tracing takes seconds. With this inner `jit`, `eval_shape` and the outer `jit` share one
        # trace.
        init = jax.jit(init)
        shapes = jax.eval_shape(init, self._seed_array((0, 1)))
        shardings = jax.tree.map(partial(_state_sharding, mesh, layout.shard_state), shapes)
        self._init = jax.jit(init, out_shardings=shardings)
        self._state_shapes = jax.tree.map(_with_sharding, shapes, shardings)

        @partial(jax.jit, donate_argnums=0, out_shardings=shardings, static_argnums=3)
        def take_steps(state: State, arrays: Any, seed: Int[Array, "*seeds"], count: int) -> State:
            if count == 1:
                return step(state, arrays, seed)
            return jax.lax.scan(lambda s, _: (step(s, arrays, seed), None), state, length=count)[0]

        self._take_steps = take_steps

    def _maybe_vmap(self, function: Callable, in_axes: Any) -> Callable:
        return jax.vmap(function, in_axes) if self.vmaps_seeds else function

    def _seed_array(self, seeds: Seeds) -> Int[Array, "*seeds"]:
        return jnp.asarray(seeds if self.vmaps_seeds else seeds[0], jnp.int32)

    def init_state(self, seeds: Seeds) -> State:
        """The state of the seeds' networks before the first step."""
        return self._init(self._seed_array(seeds))

    def batches(self, seeds: Seeds, epoch: int, step: int) -> Any:
        """The batches of an epoch from step `step` on, in the form that `advance` takes."""
        return self._loader.epoch(self._seed_array(seeds), epoch, step)

    def advance(self, state: State, batches: Any, seeds: Seeds, count: int) -> State:
        """Take the next `count` steps with `batches`; the buffers of `state` are donated."""
        seed = self._seed_array(seeds)
        if self._scans:
            return self._take_steps(state, self._device_batch(batches), seed, count)
        for _ in range(count):
            state = self._take_steps(state, self._device_batch(batches), seed, 1)
        return state

    def _device_batch(self, batches: Any) -> Any:
        """Get the loader's next arrays, and add the waiting time to `seconds_waiting`."""
        began = time.monotonic()
        arrays = self._loader.device_batch(batches)
        self.seconds_waiting += time.monotonic() - began
        return arrays

    def evaluate(self, state: State) -> list[dict[str, float]]:
        """For each seed, the fractions of test images that the network classifies correctly."""
        return self._evaluate((state.params, state.statistics))

    def evaluate_views(
        self, state: State, views: tuple[recipes.Evaluation, ...]
    ) -> dict[str, dict[str, float]]:
        """For each of `views`, the accuracy and the top-5 accuracy on streamed test images."""
        network = state.params, state.statistics
        return {view: self._evaluate(network, view)[0] for view in views}

    def lower(self, seeds: Seeds = (0, 1)) -> jax.stages.Lowered:
        """Lower a training step for all `seeds` or, without vmap, for the first seed."""
        seed = self._seed_array(seeds)
        shapes = self._state_shapes
        if self.vmaps_seeds:
            shapes = jax.tree.map(lambda s: s.update(shape=(len(seeds), *s.shape[1:])), shapes)
        return self._take_steps.lower(shapes, self._loader.shapes(seed), seed, 1)

    def close(self) -> None:
        """End the processes that read images, if there are any."""
        self._loader.close()


def mesh_of(
    devices: int | None = None,
    *,
    available: Sequence[Any] = (),
    axis_type: AxisType = AxisType.Auto,
) -> Mesh:
    """A mesh with one axis, `data`, over all devices or over the first `devices` devices.

    Args:
      devices: The number of devices; by default all available devices.
      available: The devices that can be used; by default the devices of all processes.
      axis_type: With Auto, XLA propagates shardings; with Explicit, JAX propagates shardings in
        types.

    Raises:
      InputError: `devices` is less than 1, or larger than the number of available devices.
    """
    available = available or jax.devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise InputError(f"--devices must be from 1 to {len(available)}; got {devices}")
    return Mesh(np.array(available[:devices]), ("data",), axis_types=(axis_type,))


def platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def _loader(recipe: Recipe, data: Images | Records, mesh: Mesh, layout: Layout) -> Loader:
    parts = mesh.size * recipe.accumulate * layout.microbatches
    if recipe.batch_size % parts:
        raise InputError(
            f"--batch-size must be a multiple of devices times --accumulate times --microbatches, "
            f"{parts}; got {recipe.batch_size}"
        )
    if layout.microbatches > 1 and recipe.statistics_groups > 1:
        raise InputError(
            "--statistics-groups must be 1 if --microbatches is above 1; got "
            f"{recipe.statistics_groups}"
        )
    if isinstance(data, Images):
        loader = InMemoryLoader(data, recipe, mesh)
    elif layout.vmap_seeds:
        raise InputError(
            f"--vmap-seeds yes needs images that fit on a device; the images of {data.name} are "
            "streamed"
        )
    else:
        loader = StreamingLoader(data, recipe, mesh, layout.workers)
    if recipe.batch_size > loader.count:
        raise InputError(
            f"--batch-size must be at most the {loader.count} training images; got "
            f"{recipe.batch_size}"
        )
    return loader


def _init_state(
    recipe: Recipe,
    build: Callable[..., nnx.Module],
    optimizer: optax.GradientTransformation,
    seed: Int[Array, ""],
) -> State:
    key = jax.random.key(seed)
    model = build(recipe, key=key)
    if recipe.normalization != "batch_norm":
        # Networks with different layers draw different values from one key, so all parameters that
        # the network with batch norm also has are copied from the network with batch norm.
        shared = build(recipes.replace(recipe, normalization="batch_norm"), key=key)
        kernels = nnx.to_flat_state(nnx.state(shared, nnx.Param))
        own = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
        nnx.update(model, nnx.from_flat_state([(path, v) for path, v in kernels if path in own]))
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    return State(params, statistics, optimizer.init(params), jnp.int32(0), jnp.float32(0))


def _statistics_options(recipe: Recipe, devices: int) -> dict[str, Any]:
    """The options with which a layer normalizes each group of a batch by the group's statistics.

    A group is either a part of one device's images, or all images of several devices.
    """
    groups = recipe.statistics_groups
    if groups % devices == 0:
        return {"groups": groups // devices}
    if devices % groups:
        raise InputError(
            f"--statistics-groups must divide the {devices} devices or be a multiple of them; got "
            f"{groups}"
        )
    indices = None if groups == 1 else np.arange(devices).reshape(groups, -1).tolist()
    return {"groups": 1, "axis_name": "data", "axis_index_groups": indices}


def _with_sharding(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _state_sharding(mesh: Mesh, shard: bool, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
    """The sharding of an array of the state.

    With `shard`, a large array is sharded along the longest axis whose length is a multiple of the
    number of devices. All other arrays are replicated.
    """
    axes = [k for k, n in enumerate(leaf.shape) if n % mesh.size == 0]
    if not shard or leaf.size < MIN_SHARDED_SIZE or not axes:
        return NamedSharding(mesh, P())
    longest = max(axes, key=lambda k: leaf.shape[k])
    return NamedSharding(mesh, P(*("data" if k == longest else None for k in range(leaf.ndim))))
