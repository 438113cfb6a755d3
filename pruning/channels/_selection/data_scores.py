"""Scores of channels from data: gradients (Taylor) and activations (Wanda) beside the weights."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pruning.channels._coupling.groups import ChannelGroup, described
from pruning.channels._program.calls import evaluate_equation, program_of
from pruning.channels._program.interpret import interpret, traced
from pruning.channels._removal.removal import name
from pruning.channels._selection.choice import channel_scores


def taylor_scores(
    params: Any,
    groups: Sequence[ChannelGroup],
    *,
    loss: Callable[[Any, Any], Float[Array, ""]],
    batches: Sequence[Any],
) -> list[Float[Array, " _"]]:
    """The mean over `batches` of (Σ w ∂L/∂w)², the sum over the filters that make a channel.

    The square of what the loss changes by to first order when they are set to zero, Molchanov et
    al. (2019). A `score` for `prune` is `partial(taylor_scores, loss=loss, batches=batches)`; not
    with `resize`, for which `loss` would have to take smaller trees.

    Args:
      params: The tree that the groups were read from.
      groups: All or some of `coupled_channels`.
      loss: A function of such a tree and a batch.
      batches: One or more; each has its own gradient.

    Raises:
      ValueError: There is no batch.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[2.0, 1.0], [1.0, 0.0]]), "b": np.ones((2, 1))}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 2)))
      >>> loss = lambda params, x: mlp(params, x).sum()
      >>> print(taylor_scores(params, groups, loss=loss, batches=[np.ones((2, 2))])[0])
      [36.  4.]
    """
    if not batches:
        raise ValueError("batches must hold at least one batch; got none")
    score = partial(channel_scores, criterion=lambda filters: filters.sum(1), reduce=jnp.sum)

    def changes(params: Any, batch: Any) -> list[Array]:
        gradient = jax.grad(loss, allow_int=True)(params, batch)
        return score(jax.tree.map(_product, params, gradient), groups)

    compiled = jax.jit(changes)
    squares = [[jnp.square(change) for change in compiled(params, batch)] for batch in batches]
    return [jnp.stack(group).mean(0) for group in zip(*squares, strict=True)]


def wanda_scores(
    params: Any,
    groups: Sequence[ChannelGroup],
    *,
    apply: Callable[..., Any],
    inputs: Sequence[Any],
) -> list[Float[Array, " _"]]:
    """Σ |w| ‖x‖₂ over the weights that read a channel, x what they multiply in all of `inputs`.

    Wanda's score of a weight, Sun et al. (2024), summed over what is removed with the channel from
    the layers after it. The norm of a map is over samples and pixels. A `score` for `prune`:
    `partial(wanda_scores, apply=apply, inputs=[x])`.

    Args:
      params: The tree that the groups were read from.
      groups: All or some of `coupled_channels`.
      apply: As in `coupled_channels`.
      inputs: What else `apply` is called with: some hundred samples.

    Raises:
      ValueError: `apply` cannot be traced, or a group is read by no convolution or product whose
        kernel is an array of `params`, or by one inside a loop.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[3.0, 1.0]]), "b": np.array([[1.0], [-2.0]])}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 1)))
      >>> print(wanda_scores(params, groups, apply=mlp, inputs=[np.array([[3.0], [4.0]])])[0])
      [15. 10.]
    """
    products = _input_products(apply, params, inputs)
    paths = described(params).paths
    by_path = {paths[leaf]: product for leaf, product in products.items()}

    def of_group(group: ChannelGroup) -> Array:
        readers = [p for p in group.positions if p.incoming and p.path in by_path]
        if not readers:
            raise ValueError(
                f"the channels of {name(group)} must be read by a convolution or a product whose "
                "kernel is an array of params; there is none outside of loops"
            )
        return reduce(jnp.add, (_along(by_path[p.path], p.axis)[p.indices].sum(1) for p in readers))

    return [of_group(group) for group in groups]


def _product(w: Array, gradient: Array) -> Array:
    """Zeros for integers, which have no gradient."""
    return jnp.zeros(w.shape) if gradient.dtype == jax.dtypes.float0 else w * gradient


def _along(x: Array, axis: int) -> Array:
    return x.sum([k for k in range(x.ndim) if k != axis])


class Operand(NamedTuple):
    """An array of the program; a kernel, whose axis k is `axes[k]` of a leaf of `params`."""

    array: Any
    leaf: int | None = None
    axes: tuple[int, ...] = ()


def _input_products(
    apply: Callable[..., Any], params: Any, inputs: Sequence[Any]
) -> dict[int, Array]:
    """By leaf, |w| ‖x‖₂ of every weight of the kernels that multiply activations x."""
    program = traced(apply, params, inputs)[0]

    @jax.jit
    def run(params: Any, inputs: Sequence[Any]) -> dict[int, Array]:
        products: dict[int, Array] = {}

        def step(eqn: Any, operands: Sequence[Any]) -> list[Any]:
            if (inner := program_of(eqn)) is not None:
                return interpret(inner, operands, Operand, step)
            reader = READERS.get(eqn.primitive.name)
            for kernel, other in (operands, operands[::-1]) if reader else ():
                if reader and kernel.leaf is not None and other.leaf is None:
                    norms = jnp.sqrt(reader(eqn, kernel is operands[0], jnp.square(other.array)))
                    product = jnp.abs(kernel.array) * norms
                    product = product.transpose(np.argsort(kernel.axes))
                    products[kernel.leaf] = products.get(kernel.leaf, 0) + product
            return _evaluated(eqn, operands)

        leaves = [
            Operand(leaf, i, tuple(range(np.ndim(leaf))))
            for i, leaf in enumerate(map(jnp.asarray, jax.tree.leaves(params)))
        ]
        values = [*leaves, *map(Operand, map(jnp.asarray, jax.tree.leaves(inputs)))]
        interpret(program, values, Operand, step)
        return products

    return run(params, tuple(inputs))


def _evaluated(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """The results; a kernel that is cast or transposed remains one."""
    results = evaluate_equation(eqn, [x.array for x in operands])
    first = operands[0] if operands else Operand(None)
    if first.leaf is not None and eqn.primitive.name in ("convert_element_type", "copy"):
        return [Operand(results[0], first.leaf, first.axes)]
    if first.leaf is not None and eqn.primitive.name == "transpose":
        axes = tuple(first.axes[k] for k in eqn.params["permutation"])
        return [Operand(results[0], first.leaf, axes)]
    return [Operand(result) for result in results]


def _squares_of_product(eqn: Any, kernel_first: bool, squares: Array) -> Array:
    """Σ x² of what each axis that is summed over multiplies, shaped to act on the kernel."""
    contracted, batched = eqn.params["dimension_numbers"]
    kernel, other = (0, 1) if kernel_first else (1, 0)
    axes = dict(zip(contracted[other], contracted[kernel], strict=True))
    axes |= dict(zip(batched[other], batched[kernel], strict=True))
    sums = squares.sum([k for k in range(squares.ndim) if k not in axes])
    of_kernel = [axes[k] for k in sorted(axes)]
    sums = sums.transpose(np.argsort(of_kernel))
    shape = eqn.invars[kernel].aval.shape
    return sums.reshape([n if k in of_kernel else 1 for k, n in enumerate(shape)])


def _squares_of_convolution(eqn: Any, kernel_first: bool, squares: Array) -> Array:
    """Σ x² of each map, shaped to act on the kernel; groups read maps of their own."""
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    shape = eqn.invars[1].aval.shape
    outputs, maps, *_ = numbers.rhs_spec
    sums = _along(squares, numbers.lhs_spec[1]).reshape(groups, shape[maps])
    sums = jnp.repeat(sums, shape[outputs] // groups, 0)
    sums = sums if outputs < maps else sums.T
    return sums.reshape([n if k in (outputs, maps) else 1 for k, n in enumerate(shape)])


READERS = {
    "dot_general": _squares_of_product,
    "conv_general_dilated": _squares_of_convolution,
}
