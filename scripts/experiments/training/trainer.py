"""The compiled parts of training: placed on a mesh of devices, the same numbers on any of them.

A state holds everything that a step changes, and its own number: batches, crops and flips follow
from the seed and that number alone, so that a run that goes on from any state ends with the same
bits. Seeds that run side by side are one program, each leaf of their state with an axis of seeds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Num

import jaxnorm
from experiments.cli import InputError
from experiments.data import imagenet
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.data.loaders import Feed, Resident, Streamed, sharded
from experiments.training import evaluation, recipes
from experiments.training.recipes import Recipe

IN_SCAN, IN_LOOP = 100, 10  # steps at once
SHARDED = 2**12  # numbers from which on an array is worth spreading over devices

Seeds = tuple[int, ...]
Accuracies = list[dict[str, float]]


class State(NamedTuple):
    """What a step changes; `loss` is the sum over the steps of the epoch that have passed."""

    params: Any
    statistics: Any
    optimizer: Any
    step: Int[Array, "*seeds"]
    loss: Float[Array, "*seeds"]


class Trainer(NamedTuple):
    """Compiled functions on one mesh, for one seed or for several side by side.

    Attributes:
      recipe: What is trained.
      start: The state before the first step.
      epoch: What `advance` takes batches from: seeds, epoch and step of the epoch.
      advance: `count` steps of one epoch: state, what `epoch` returned, seeds, count -> state.
      evaluate: Fractions of all test images that are classified rightly, by seed.
      finally_evaluate: The same by views of other sizes: state, names of `recipes.Evaluation`.
      at_once: Steps between two looks at the loss.
      steps: Steps of an epoch; images that fill no batch wait for another epoch's order.
      parameters: Number of trained numbers of one network.
      lowered: The program of one step, before it is compiled.
      close: End the processes that read, where there are any.
    """

    recipe: Recipe
    start: Callable[[Seeds], State]
    epoch: Callable[[Seeds, int, int], Any]
    advance: Callable[[State, Any, Seeds, int], State]
    evaluate: Callable[[State], Accuracies]
    finally_evaluate: Callable[[State, tuple[recipes.Evaluation, ...]], dict[str, dict[str, float]]]
    at_once: int
    steps: int
    parameters: int
    lowered: Callable[[], jax.stages.Lowered]
    close: Callable[[], None]


class Layout(NamedTuple):
    """How a recipe is spread and computed; nothing here changes its numbers beyond rounding.

    Attributes:
      shard_state: Parameters and optimizer state are spread too, instead of a copy a device.
      remat: Keep what enters each block only, compute what is inside it again.
      together: Seeds run side by side.
      workers: Processes that read images, of data sets that are read in a stream.
    """

    shard_state: bool = False
    remat: bool = False
    together: bool = False
    workers: int = 0


def mesh_of(
    devices: int | None = None,
    *,
    available: Sequence[Any] = (),
    axis_type: AxisType = AxisType.Auto,
) -> Mesh:
    """One axis, `data`, of all devices of all processes or of the first `devices`.

    Args:
      devices: How many devices; by default all.
      available: Devices to choose from; by default those of all processes.
      axis_type: Whether XLA propagates shardings (Auto) or JAX does, in types (Explicit).

    Raises:
      InputError: There are not as many devices.
    """
    every = available or jax.devices()
    if devices is not None and not 1 <= devices <= len(every):
        raise InputError(f"--devices must be from 1 to {len(every)}; got {devices}")
    return Mesh(np.array(every[:devices]), ("data",), axis_types=(axis_type,))


def platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def trainer(
    recipe: Recipe, data: Images | Records, mesh: Mesh, layout: Layout | None = None
) -> Trainer:
    """Compile a recipe for a data set and a mesh.

    Args:
      recipe: What to train, checked.
      data: Images on the host of every process, or records that it reads.
      mesh: Of one axis, `data`, over which batches are spread.
      layout: By default one seed, a copy of the state on each device, nothing computed twice.

    Raises:
      InputError: A batch cannot be spread evenly, or is larger than the data set.
    """
    layout = layout or Layout()
    feed = _feed(recipe, data, mesh, layout)
    build = partial(
        recipes.network,
        classes=feed.classes,
        shape=feed.shape,
        streamed=isinstance(feed, Streamed),
    )
    steps = feed.count // recipe.batch_size
    optimizer = _optimizer(recipe, steps)
    lift = jax.vmap if layout.together else lambda function, *_: function
    begin = lift(partial(_begin, recipe, build, optimizer))
    key, shared = jax.random.key(0), _statistics(recipe, mesh.size)
    model = nnx.eval_shape(lambda: build(recipe, key=key))
    local = nnx.eval_shape(lambda: build(recipe, key=key, statistics=shared))
    training = nnx.graphdef(_rematerialized(local) if layout.remat else local)
    gradient_of = _gradient(recipe, feed, training, mesh)
    step = lift(
        partial(_step, recipe, feed, optimizer, steps, gradient_of, mesh), (0, feed.axes, 0)
    )

    def number(seeds: Seeds) -> Int[Array, "*seeds"]:
        return jnp.asarray(seeds if layout.together else seeds[0], jnp.int32)

    # XLA's CPU back end runs convolutions in a scan 4 to 17 times slower.
    scans = feed.in_epoch and platform(mesh) != "cpu"
    example = number((0, 1))
    begin = jax.jit(begin)  # traced once, by the next line: deep networks take seconds
    shapes = jax.eval_shape(begin, example)
    placed = jax.tree.map(partial(_placement, mesh, layout.shard_state), shapes)
    begin = jax.jit(begin, out_shardings=placed)

    @partial(jax.jit, donate_argnums=0, out_shardings=placed, static_argnums=3)
    def several(state: State, taken: Any, seed: Int[Array, "*seeds"], count: int) -> State:
        if count == 1:
            return step(state, taken, seed)
        return jax.lax.scan(lambda s, _: (step(s, taken, seed), None), state, length=count)[0]

    def advance(state: State, batches: Any, seeds: Seeds, count: int) -> State:
        seed = number(seeds)
        if scans:
            return several(state, feed.take(batches), seed, count)
        for _ in range(count):
            state = several(state, feed.take(batches), seed, 1)
        return state

    def lowered() -> jax.stages.Lowered:
        state = jax.tree.map(_with_sharding, shapes, placed)
        return several.lower(state, feed.shapes(example), example, 1)

    evaluate, finally_evaluate = _evaluations(recipe, feed, data, model, mesh, layout)
    return Trainer(
        recipe,
        lambda seeds: begin(number(seeds)),
        lambda seeds, epoch, step: feed.epoch(number(seeds), epoch, step),
        advance,
        evaluate,
        finally_evaluate,
        IN_SCAN if scans else IN_LOOP,
        steps,
        sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))),
        lowered,
        feed.close,
    )


def _feed(recipe: Recipe, data: Images | Records, mesh: Mesh, layout: Layout) -> Feed:
    parts = mesh.size * recipe.accumulate
    if recipe.batch_size % parts:
        raise InputError(
            f"--batch-size must be a multiple of devices times --accumulate, {parts}; got "
            f"{recipe.batch_size}"
        )
    if isinstance(data, Images):
        feed = Resident(data, recipe, mesh)
    elif layout.together:
        raise InputError(
            f"--side-by-side yes needs images that fit on a device; {data.name} is read"
        )
    else:
        feed = Streamed(data, recipe, mesh, layout.workers)
    if recipe.batch_size > feed.count:
        raise InputError(
            f"--batch-size must be at most the {feed.count} training images; got "
            f"{recipe.batch_size}"
        )
    return feed


def _begin(
    recipe: Recipe,
    build: Callable[..., nnx.Module],
    optimizer: optax.GradientTransformation,
    seed: Int[Array, ""],
) -> State:
    key = jax.random.key(seed)
    model = build(recipe, key=key)
    if recipe.normalization != "batch_norm":
        # Networks start from batch norm's kernels, whatever their layers drew for themselves.
        shared = build(recipes.replace(recipe, normalization="batch_norm"), key=key)
        kernels = nnx.to_flat_state(nnx.state(shared, nnx.Param))
        own = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
        nnx.update(model, nnx.from_flat_state([(path, v) for path, v in kernels if path in own]))
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    return State(params, statistics, optimizer.init(params), jnp.int32(0), jnp.float32(0))


def _statistics(recipe: Recipe, devices: int) -> dict[str, Any]:
    """Options of a layer by which its statistics are those of each group of the whole batch.

    A group is either part of a device's images, or spread over several devices.
    """
    groups = recipe.statistics_groups
    if groups % devices == 0:
        return {"groups": groups // devices}
    if devices % groups:
        raise InputError(
            f"--statistics-groups must divide the {devices} devices or be a multiple of them; got "
            f"{groups}"
        )
    each = None if groups == 1 else np.arange(devices).reshape(groups, -1).tolist()
    return {"groups": 1, "axis_name": "data", "axis_index_groups": each}


def _gradient(recipe: Recipe, feed: Feed, training: nnx.GraphDef, mesh: Mesh) -> Callable:
    """A function of parameters, statistics and a batch: loss, new statistics and gradient.

    Every device differentiates the mean loss of its own images. The parameters' cast to the
    precision of the computation is inside, so that its gradient is float32 before it is averaged
    over the devices.
    """
    devices = ("data",) if mesh.size > 1 else ()  # nothing is sent on one device

    def mean_loss(
        params: Any, statistics: Any, x: Float[Array, "n h w c"], y: Int[Array, " n"]
    ) -> tuple[Array, Any]:
        model: Any = nnx.merge(training, _cast(params, recipe), statistics, copy=True)
        logits = model(_cast(x, recipe)).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), nnx.state(model, nnx.BatchStat)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(), P("data"), P("data"), P("data")),
        out_specs=P(),
        check_vma=False,  # psum takes no groups of indices with it
    )
    def gradient_of(
        params: Any, statistics: Any, x: Array, y: Array, draws: Any
    ) -> tuple[Array, Any, Any]:
        (loss, statistics), gradient = jax.value_and_grad(mean_loss, has_aux=True)(
            params, statistics, feed.prepared(x, *draws), y
        )
        if recipe.statistics_groups > 1:
            statistics = jax.lax.pmean(statistics, devices)
        return jax.lax.pmean(loss, devices), statistics, jax.lax.pmean(gradient, devices)

    return gradient_of


def _step(
    recipe: Recipe,
    feed: Feed,
    optimizer: optax.GradientTransformation,
    steps: int,
    gradient_of: Callable,
    mesh: Mesh,
    state: State,
    taken: tuple[Array, ...],
    seed: Int[Array, ""],
) -> State:
    draw = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), state.step)
    place = state.step % steps
    batch = sharded(mesh, P("data"), feed.batch(taken, place, recipe.batch_size))
    params, statistics = sharded(mesh, P(), (state.params, state.statistics))
    losses, gradients = [], []
    for i, (x, y) in enumerate(_parts(batch, recipe.accumulate, mesh)):
        draws = sharded(mesh, P("data"), feed.draws(jax.random.fold_in(draw, i), len(x)))
        loss, statistics, gradient = gradient_of(params, statistics, x, y, draws)
        losses.append(loss)
        gradients.append(gradient)
    loss, gradient = jax.tree.map(
        lambda *of_parts: sum(of_parts) / recipe.accumulate,
        *zip(losses, gradients, strict=True),
    )
    updates, moved = optimizer.update(gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    before = jnp.where(place == 0, 0, state.loss)
    return State(params, statistics, moved, state.step + 1, before + loss)


def _parts(batch: tuple[Array, ...], count: int, mesh: Mesh) -> list[tuple[Array, ...]]:
    """A batch in `count` parts; each device's images go evenly into them, and none moves."""

    @partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def split(*batch: Array) -> list[tuple[Array, ...]]:
        return [tuple(a[i::count] for a in batch) for i in range(count)]

    return split(*batch)


def _rematerialized(model: nnx.Module) -> nnx.Module:
    """A copy whose blocks, or stages, are computed again in the backward pass."""
    copied: Any = nnx.merge(*nnx.split(model), copy=True)
    for part in getattr(copied, "blocks", getattr(copied, "stages", ())):
        kind = type(part)  # the names of its variables stay as they are
        part.__class__ = type(kind.__name__, (kind,), {"__call__": nnx.remat(kind.__call__)})
    return copied


def _evaluations(
    recipe: Recipe,
    feed: Feed,
    data: Images | Records,
    model: nnx.Module,
    mesh: Mesh,
    layout: Layout,
) -> tuple[Callable, Callable]:
    """`evaluate` and `finally_evaluate` of a `Trainer`."""
    # Unitized layers keep the pixels of training, whatever the size of an image.
    example = jax.ShapeDtypeStruct((2 * recipe.statistics_groups, *feed.shape), jnp.float32)
    try:
        fixed = jaxnorm.nnx.fix_pixels(model, example)
    except ValueError as error:
        raise InputError(f"--model {recipe.model} must fit the images; {error}") from error
    frozen = nnx.view(fixed, raise_if_not_found=False, use_running_average=True)
    inference = nnx.graphdef(frozen)

    def logits(network: Any, x: Num[Array, "n h w c"]) -> Float[Array, "n classes"]:
        params, statistics = network
        model: Any = nnx.merge(inference, _cast(params, recipe), statistics)
        return model(_cast(x, recipe)).astype(jnp.float32)

    if isinstance(data, Images):
        on_arrays = evaluation.of_arrays(logits, data, mesh, together=layout.together)

        def none_of(state: State, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
            if names:
                raise InputError(f"--evaluations are of streamed data sets; {data.name} is none")
            return {}

        return lambda state: on_arrays((state.params, state.statistics)), none_of

    on_records = evaluation.of_records(logits, data, recipe, mesh, layout.workers)
    views = {
        "center": partial(imagenet.center, crop=recipe.crop),
        "crops": partial(imagenet.multi_scale_crops, crop=recipe.crop, scales=recipe.test_scales),
        "whole": partial(imagenet.whole_images, scales=recipe.test_scales),
    }

    def by_views(state: State, name: str) -> dict[str, float]:
        return on_records((state.params, state.statistics), views[name])

    return (
        lambda state: [by_views(state, "center")],
        lambda state, names: {name: by_views(state, name) for name in names},
    )


def _with_sharding(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Of an epoch counted from 0."""
    passed = sum(epoch + 1 >= drop for drop in recipe.drops)
    return recipe.learning_rate / recipe.drop_factor**passed


def _optimizer(recipe: Recipe, steps: int) -> optax.GradientTransformation:
    """Nesterov's method with the rate inside the velocity, as in the unitization paper's code."""
    rates = optax.piecewise_constant_schedule(
        -recipe.learning_rate,
        {(drop - 1) * steps: 1 / recipe.drop_factor for drop in sorted(set(recipe.drops))},
    )
    return optax.chain(
        optax.add_decayed_weights(
            recipe.weight_decay, mask=partial(jax.tree.map, lambda p: p.ndim > 1)
        ),
        optax.scale_by_schedule(rates),
        optax.trace(recipe.momentum, nesterov=recipe.momentum > 0),
    )


def _cast(tree: Any, recipe: Recipe) -> Any:
    """In the precision of the computation; statistics never are."""
    return jax.tree.map(lambda a: a.astype(recipe.precision), tree)


def _placement(mesh: Mesh, shard: bool, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
    """On all devices whole or, asked, spread along the longest axis that divides evenly."""
    whole = [k for k, n in enumerate(leaf.shape) if n % mesh.size == 0]
    if not shard or leaf.size < SHARDED or not whole:
        return NamedSharding(mesh, P())
    longest = max(whole, key=lambda k: leaf.shape[k])
    return NamedSharding(mesh, P(*("data" if k == longest else None for k in range(leaf.ndim))))
