"""Make a training step, with losses on every device, a mean gradient, and the update."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec as P
from jaxtyping import Array, Float, Int

from experiments.data.loaders import Loader, sharded
from experiments.recipes import Recipe
from jaxnorm.nnx import microbatched

Step = Callable[["State", tuple[Array, ...], Int[Array, ""]], "State"]


class State(NamedTuple):
    """The state that a step changes; `loss` is the sum of losses since the epoch began."""

    params: Any
    statistics: Any
    optimizer: Any
    step: Int[Array, "*seeds"]
    loss: Float[Array, "*seeds"]


def train_step(
    recipe: Recipe,
    loader: Loader,
    optimizer: optax.GradientTransformation,
    graph: nnx.GraphDef,
    mesh: Mesh,
    microbatches: int,
) -> Step:
    """Make a function that takes a state, the loader's arrays and a seed, and returns a state.

    Args:
      recipe: Recipe of the network.
      loader: The loader of the images of a step.
      optimizer: Optimizer; its state is part of `State`.
      graph: The network in training, without its arrays.
      mesh: A mesh with one axis, `data`, over which batches are sharded.
      microbatches: Number of parts into which a device's images are divided. Normalization uses the
        statistics of all parts together.
    """
    steps = loader.count // recipe.batch_size
    gradient_of = _gradient(recipe, loader, graph, mesh, microbatches)

    def step(state: State, arrays: tuple[Array, ...], seed: Int[Array, ""]) -> State:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), state.step)
        step_of_epoch = state.step % steps
        batch = sharded(mesh, P("data"), loader.batch(arrays, step_of_epoch, recipe.batch_size))
        params, statistics = sharded(mesh, P(), (state.params, state.statistics))
        losses, gradients = [], []
        for i, (x, y) in enumerate(_split(batch, recipe.accumulate, mesh)):
            draws = sharded(mesh, P("data"), loader.draw(jax.random.fold_in(key, i), len(x)))
            loss, statistics, gradient = gradient_of(params, statistics, x, y, draws)
            losses.append(loss)
            gradients.append(gradient)
        loss, gradient = jax.tree.map(
            lambda *parts: sum(parts) / recipe.accumulate, *zip(losses, gradients, strict=True)
        )
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        if recipe.normalization == "bounded":
            params = clip_alpha(params)
        loss = jnp.where(step_of_epoch == 0, 0, state.loss) + loss
        return State(params, statistics, optimizer_state, state.step + 1, loss)

    return step


def clip_alpha(params: Any) -> Any:
    """Clip every alpha of a unitized layer in the tree `params` to [0, 1].

    The bounds of Theorem 3.3 hold for alpha in [0, 1].
    """

    def clip(path: tuple, leaf: Array) -> Array:
        is_alpha = any(getattr(part, "key", None) == "alpha" for part in path)
        return jnp.clip(leaf, 0, 1) if is_alpha else leaf

    return jax.tree_util.tree_map_with_path(clip, params)


def cast(tree: Any, recipe: Recipe) -> Any:
    """The `tree` of parameters or images, cast to the recipe's precision."""
    return jax.tree.map(lambda a: a.astype(recipe.precision), tree)


def rematerialize(model: nnx.Module) -> nnx.Module:
    """A copy of the model that recomputes its blocks or stages in the backward pass."""
    copy: Any = nnx.merge(*nnx.split(model), copy=True)
    for part in getattr(copy, "blocks", getattr(copy, "stages", ())):
        # A module that holds the block would change the names of the variables. A subclass keeps
        # the names.
        part.__class__ = _recomputed(type(part))
    return copy


def _recomputed(kind: type[nnx.Module]) -> type[nnx.Module]:
    """A subclass of a block's class that recomputes the block in the backward pass."""

    # `nnx.remat` accepts no function with keyword arguments, and `nnx.Sequential` has keyword
    # arguments.
    @nnx.remat
    def call(self: Any, x: Array) -> Array:
        return kind.__call__(self, x)

    return type(kind.__name__, (kind,), {"__call__": call})


def cross_entropy(
    model: Callable[[Array], Array], batch: tuple[Array, Int[Array, " n"]], *, smoothing: float
) -> Float[Array, ""]:
    """The mean loss of a batch of images and labels, in float32.

    A share `smoothing` of the target is spread evenly over all classes.
    """
    x, y = batch
    logits = model(x).astype(jnp.float32)
    if smoothing == 0:
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    targets = optax.smooth_labels(jax.nn.one_hot(y, logits.shape[-1]), smoothing)
    return optax.softmax_cross_entropy(logits, targets).mean()


def _gradient(
    recipe: Recipe, loader: Loader, graph: nnx.GraphDef, mesh: Mesh, microbatches: int
) -> Callable:
    """Make a function that returns the loss, the new statistics and the gradient.

    The arguments of the function are parameters, statistics, images, labels and the random draws of
    the augmentation. Every device differentiates the mean loss of its own images. The parameters
    are cast to the recipe's precision inside the differentiated function, so the gradient is
    float32 before the average over the devices is taken.
    """
    axes = ("data",) if mesh.size > 1 else ()  # on a single device, no collectives are needed
    loss_of = partial(cross_entropy, smoothing=recipe.label_smoothing)
    if microbatches > 1:
        loss_of = microbatched(loss_of, microbatches)

    def mean_loss(
        params: Any, statistics: Any, x: Float[Array, "n h w c"], y: Int[Array, " n"]
    ) -> tuple[Array, Any]:
        model: Any = nnx.merge(graph, cast(params, recipe), statistics, copy=True)
        loss = loss_of(model, (cast(x, recipe), y))
        return loss, nnx.state(model, nnx.BatchStat)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(), P("data"), P("data"), P("data")),
        out_specs=P(),
        check_vma=False,  # with this check, `psum` refuses `axis_index_groups`
    )
    def gradient_of(
        params: Any, statistics: Any, x: Array, y: Array, draws: Any
    ) -> tuple[Array, Any, Any]:
        (loss, statistics), gradient = jax.value_and_grad(mean_loss, has_aux=True)(
            params, statistics, loader.augment(x, *draws), y
        )
        if recipe.statistics_groups > 1:
            statistics = jax.lax.pmean(statistics, axes)
        return jax.lax.pmean(loss, axes), statistics, jax.lax.pmean(gradient, axes)

    return gradient_of


def _split(batch: tuple[Array, ...], count: int, mesh: Mesh) -> list[tuple[Array, ...]]:
    """Split a batch into `count` parts with equal shares of every device's images.

    No image moves from one device to a different device.
    """

    @partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    def split(*batch: Array) -> list[tuple[Array, ...]]:
        return [tuple(a[i::count] for a in batch) for i in range(count)]

    return split(*batch)
