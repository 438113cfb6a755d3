"""The compiled parts of training: placed on a mesh of devices, the same numbers on any of them.

A state holds everything that a step changes, and its own number: batches, crops and flips follow
from the seed and that number alone, so that a run that goes on from any state ends with the same
bits. The training images lie on the devices; every batch is a slice of a permutation of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, Key

import recipes
from command import InputError
from data import Images
from recipes import Recipe

EVALUATED = 512  # images at a time
PAD = 4  # pixels around an image, from which a crop is taken
SHARDED = 2**12  # numbers from which on an array is worth spreading over devices


Data = tuple[Float[Array, "n h w c"], Int[Array, " n"]]


class State(NamedTuple):
    """What a step changes; `loss` is the sum over the steps of the epoch that have passed."""

    params: Any
    statistics: Any
    optimizer: Any
    step: Int[Array, ""]
    loss: Float[Array, ""]


class Trainer(NamedTuple):
    """Compiled functions on one mesh.

    Attributes:
      start: The state before the first step, of a seed.
      order: Indices of the training images in an epoch, of a seed.
      advance: `count` steps of one epoch: state, order, seed, count -> state.
      evaluate: Number of test images that are classified rightly, of all.
      steps: Steps of an epoch; images that fill no batch wait for another epoch's order.
      parameters: Number of trained numbers.
      lowered: The program of one step, before it is compiled.
    """

    start: Callable[[int], State]
    order: Callable[[int, int], Int[Array, " n"]]
    advance: Callable[[State, Int[Array, " n"], int, int], State]
    evaluate: Callable[[State], int]
    steps: int
    parameters: int
    lowered: Callable[[], jax.stages.Lowered]


def mesh_of(devices: int | None = None) -> Mesh:
    """All devices of all processes, or the first `devices`, in one row.

    Raises:
      InputError: There are not as many.
    """
    every = jax.devices()
    if devices is not None and not 1 <= devices <= len(every):
        raise InputError(f"--devices must be from 1 to {len(every)}; got {devices}")
    chosen = np.array(every[:devices])
    return Mesh(chosen, ("data",), axis_types=(AxisType.Auto,))


def trainer(recipe: Recipe, images: Images, mesh: Mesh, *, shard_state: bool = False) -> Trainer:
    """Compile a recipe for a data set and a mesh.

    Args:
      recipe: What to train, checked.
      images: On the host; every process has all of them.
      mesh: Of one axis, `data`, over which batches are spread.
      shard_state: Spread parameters and optimizer state too, instead of a copy on each device.

    Raises:
      InputError: A batch cannot be spread evenly, or is larger than the data set.
    """
    count, parts = len(images.x_train), mesh.size * recipe.accumulate
    if recipe.batch_size % parts:
        raise InputError(
            f"--batch-size must be a multiple of devices times --accumulate, {parts}; got "
            f"{recipe.batch_size}"
        )
    if recipe.batch_size > count:
        raise InputError(
            f"--batch-size must be at most the {count} training images; got {recipe.batch_size}"
        )
    everywhere, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    train, test = (
        tuple(
            jax.make_array_from_process_local_data(everywhere, np.asarray(a), a.shape) for a in pair
        )
        for pair in ((images.x_train, images.y_train), _padded(images, mesh.size))
    )
    build = partial(
        recipes.network,
        classes=images.classes,
        channels=images.x_train.shape[-1],
        size=int(np.prod(images.x_train.shape[1:])),
    )
    steps = count // recipe.batch_size
    optimizer = _optimizer(recipe, steps)
    begin = partial(_begin, recipe, build, optimizer)
    shapes = jax.eval_shape(begin, jax.random.key(0))
    placed = jax.tree.map(partial(_placement, mesh, shard_state), shapes)
    begin = jax.jit(begin, out_shardings=placed)
    model = nnx.eval_shape(lambda: build(recipe, key=jax.random.key(0)))
    step = partial(_step, recipe, nnx.graphdef(model), optimizer, steps, spread)

    @partial(jax.jit, donate_argnums=0, out_shardings=placed, static_argnums=4)
    def several(
        state: State, data: Data, order: Int[Array, " n"], seed: Int[Array, ""], count: int
    ) -> State:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        if count == 1:
            return step(state, data, order, key)
        return jax.lax.scan(lambda s, _: (step(s, data, order, key), None), state, length=count)[0]

    def advance(state: State, order: Int[Array, " n"], seed: int, count: int) -> State:
        if _platform(mesh) != "cpu":
            return several(state, train, order, jnp.int32(seed), count)
        for _ in range(
            count
        ):  # XLA's CPU back end runs convolutions in a scan 4 to 17 times slower
            state = several(state, train, order, jnp.int32(seed), 1)
        return state

    @partial(jax.jit, out_shardings=everywhere)
    def order(seed: int, epoch: int) -> Int[Array, " n"]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), epoch)
        return jax.random.permutation(key, count)

    chunk = _chunk(len(images.x_test), mesh.size)
    right = jax.jit(partial(_right, recipe, _inference(model), chunk, spread))

    def evaluate(state: State) -> int:
        return sum(map(int, [right(state, test, i) for i in range(0, len(test[1]), chunk)]))

    return Trainer(
        lambda seed: begin(jax.random.key(seed)),
        order,
        advance,
        evaluate,
        steps,
        sum(leaf.size for leaf in jax.tree.leaves(shapes.params)),
        lambda: several.lower(shapes, train, order(0, 0), jnp.int32(0), 1),
    )


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def _begin(
    recipe: Recipe,
    build: Callable[..., nnx.Module],
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
) -> State:
    model = build(recipe, key=key)
    # Every network starts from batch norm's kernels, whatever its layers drew for themselves.
    shared = build(recipes.replace(recipe, normalization="batch_norm"), key=key)
    kernels = nnx.to_flat_state(nnx.state(shared, nnx.Param))
    own = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    nnx.update(model, nnx.from_flat_state([(path, v) for path, v in kernels if path in own]))
    _, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    return State(params, statistics, optimizer.init(params), jnp.int32(0), jnp.float32(0))


def _step(
    recipe: Recipe,
    training: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    steps: int,
    spread: NamedSharding,
    state: State,
    data: Data,
    order: Int[Array, " n"],
    key: Key[Array, ""],
) -> State:
    def mean_loss(
        params: Any, statistics: Any, x: Float[Array, "n h w c"], y: Int[Array, " n"]
    ) -> tuple[Array, Any]:
        model: Any = nnx.merge(training, _cast(params, recipe), statistics, copy=True)
        logits = model(_cast(x, recipe)).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), nnx.state(model, nnx.BatchStat)

    size, place = recipe.batch_size, state.step % steps
    index = jax.lax.dynamic_slice(order, (place * size,), (size,))
    losses, gradients, statistics = [], [], state.statistics
    for i, part in enumerate(jnp.split(index, recipe.accumulate)):
        x, y = (jax.lax.with_sharding_constraint(a[part], spread) for a in data)
        if recipe.augment:
            draw = jax.random.fold_in(jax.random.fold_in(key, state.step), i)
            x = jax.lax.with_sharding_constraint(augmented(draw, x), spread)
        (loss, statistics), gradient = jax.value_and_grad(mean_loss, has_aux=True)(
            state.params, statistics, x, y
        )
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


def _inference(model: nnx.Module) -> nnx.GraphDef:
    frozen = nnx.view(model, raise_if_not_found=False, use_running_average=True)
    return nnx.graphdef(frozen)


def _right(
    recipe: Recipe,
    inference: nnx.GraphDef,
    chunk: int,
    spread: NamedSharding,
    state: State,
    data: Data,
    start: Int[Array, ""],
) -> Int[Array, ""]:
    """How many of a chunk of test images are classified as they are labelled."""
    model: Any = nnx.merge(inference, _cast(state.params, recipe), state.statistics)
    x, y = (jax.lax.dynamic_slice_in_dim(a, start, chunk) for a in data)
    logits = model(_cast(jax.lax.with_sharding_constraint(x, spread), recipe))
    return jnp.sum(jnp.argmax(logits, -1) == y)


def augmented(key: Key[Array, ""], x: Float[Array, "n h w c"]) -> Float[Array, "n h w c"]:
    """Each image moved by up to 4 pixels on either axis, zeros coming in; half are flipped."""
    n, height, width, _ = x.shape
    at, turn = jax.random.split(key)
    offsets = jax.random.randint(at, (n, 2), 0, 2 * PAD + 1)
    padded = jnp.pad(x, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    rows = offsets[:, :1] + jnp.arange(height)[None]
    columns = offsets[:, 1:] + jnp.arange(width)[None]
    flipped = jnp.where(jax.random.bernoulli(turn, shape=(n, 1)), columns[:, ::-1], columns)
    return padded[jnp.arange(n)[:, None, None], rows[:, :, None], flipped[:, None, :]]


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


def _chunk(count: int, devices: int) -> int:
    """Images evaluated at a time: a multiple of the devices."""
    return -(-min(EVALUATED, count) // devices) * devices


def _padded(images: Images, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Test images up to whole chunks; the label of padding is -1, which no network answers."""
    x, y = images.x_test, images.y_test
    missing = -len(x) % _chunk(len(x), devices)
    return (
        np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]),
        np.concatenate([y, np.full(missing, -1, y.dtype)]),
    )
