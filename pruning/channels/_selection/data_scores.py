"""Scores channels from data, by gradients (Taylor scores) or by activations (Wanda scores)."""

from collections.abc import Callable, Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnorm.internal import check_call, is_traced
from pruning._arguments import check_tuple, quote
from pruning.channels._coupling.groups import ChannelGroup, parameters_of
from pruning.channels._program.calls import Apply, Equation, Tree, evaluate_equation
from pruning.channels._removal.removal import name
from pruning.channels._repair.parameters import Fact, read_network
from pruning.channels._selection.choice import channel_scores, mean_scores


def taylor_scores(
    params: Tree,
    groups: Sequence[ChannelGroup],
    *,
    loss: Callable[[Tree, Tree], Float[Array, ""]],
    batches: Sequence[Tree],
) -> list[Float[Array, " _"]]:
    """Score a channel by the squared first-order change of the loss: the mean of (Σ w ∂L/∂w)².

    The sum runs over the weights of the filters that make the channel, and the mean is over
    `batches`.

    The score approximates the squared change of the loss if the filters of the channel are set to
    zero, Molchanov et al. (2019). To use `taylor_scores` with `prune`, pass
    `score=partial(taylor_scores, loss=loss, batches=batches)`. Do not combine `taylor_scores` and
    `resize`, because `loss` would get smaller trees.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      loss: A function that returns the loss for a tree like `params` and a batch.
      batches: One batch or more; one gradient is computed for each batch.

    Raises:
      TypeError: `loss` is not a function of two arguments.
      ValueError: `batches` is empty. `loss` fails on a batch, does not return one number, or does
        not depend on `params`.

    Example:
      >>> import numpy as np
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[2.0, 1.0], [1.0, 0.0]]), "b": np.ones((2, 1))}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 2)))
      >>> loss = lambda params, x: mlp(params, x).sum()
      >>> print(taylor_scores(params, groups, loss=loss, batches=[np.ones((2, 2))])[0])
      [36.  4.]
    """
    check_call(loss, "loss", "lambda params, batch: ...", "a tree and a batch", params, None)
    score = partial(channel_scores, criterion=lambda filters: filters.sum(1), reduce=jnp.sum)

    @jax.jit
    def squares(params: Tree, batch: Tree) -> list[Array]:
        _check_loss(loss, params, batch)
        gradient = jax.grad(loss, allow_int=True)(params, batch)
        return list(map(jnp.square, score(jax.tree.map(_product, params, gradient), groups)))

    of_batch = lambda params, groups, batch: squares(params, batch)  # noqa: E731
    scores = mean_scores(params, groups, score=of_batch, batches=batches)
    if groups and not is_traced(scores) and not any(own.any() for own in scores):
        raise ValueError("loss must depend on the params that it gets; all gradients are zero")
    return scores


def _check_loss(loss: Callable[[Tree, Tree], Array], params: Tree, batch: Tree) -> None:
    try:
        result = jax.eval_shape(loss, params, batch)
    except Exception as error:
        raise ValueError(
            f"loss(params, batch) must accept params and each of batches; got {quote(error)}"
        ) from error
    dtype, shape = getattr(result, "dtype", None), getattr(result, "shape", None)
    if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
        got = type(result).__name__ if dtype is None else f"{dtype} of shape {shape}"
        raise ValueError(f"loss(params, batch) must be one real float; got {got}")


def wanda_scores(
    params: Tree, groups: Sequence[ChannelGroup], *, apply: Apply, inputs: Sequence[Tree]
) -> list[Float[Array, " _"]]:
    """Score a channel by Σ |w| ‖x‖₂, the weights that read the channel times norms of its values.

    In the formula, w is a weight of a later layer that is removed with the channel, and x are the
    values of the channel for all samples of `inputs`. Wanda scores a weight by |w| ‖x‖₂, Sun et al.
    (2024). For a convolution, x are all pixels of the channel, also those that a stride skips. To
    use `wanda_scores` with `prune`, pass `score=partial(wanda_scores, apply=apply, inputs=[x])`.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      apply: A function that JAX can trace, as for `coupled_channels`.
      inputs: The other arguments of `apply`, with a few hundred samples.

    Raises:
      TypeError: A later layer has complex weights.
      ValueError: `apply` cannot be traced. A group is read by no convolution or product whose
        kernel is an array of `params`. Kernels inside loops and branches do not count.

    Example:
      >>> import numpy as np
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[3.0, 1.0]]), "b": np.array([[1.0], [-2.0]])}
      >>> groups = coupled_channels(mlp, params, np.ones((1, 1)))
      >>> print(wanda_scores(params, groups, apply=mlp, inputs=[np.array([[3.0], [4.0]])])[0])
      [15. 10.]
    """
    check_tuple(inputs, "inputs")
    paths = parameters_of(params, groups).paths
    products = _input_products(apply, params, inputs)
    by_path = {paths[leaf]: product for leaf, product in products.items()}
    leaves = dict(zip(paths, jax.tree.leaves(params), strict=True))

    def of_group(group: ChannelGroup) -> Array:
        for p in group.positions:
            if p.incoming and jnp.iscomplexobj(leaves[p.path]):
                raise TypeError(f"params must hold real kernels; {p.path} is complex")
        readers = [p for p in group.positions if p.incoming and p.path in by_path]
        if not readers:
            raise ValueError(
                f"the channels of {name(group)} must be read by a convolution or a product whose "
                "kernel is an array of params; there is none outside of loops and branches: "
                "exclude the layer, or choose another method"
            )
        rows = [(jnp.moveaxis(by_path[p.path], p.axis, 0), p.indices) for p in readers]
        sums = (x.sum(tuple(range(1, x.ndim)))[indices].sum(1) for x, indices in rows)
        return reduce(jnp.add, sums)

    return [of_group(group) for group in groups]


def _product(w: Array, gradient: Array) -> Array:
    """The real part of `w` times its `gradient`, or zeros for integers, which have no gradient."""
    return jnp.zeros(w.shape) if gradient.dtype == jax.dtypes.float0 else (w * gradient).real


def _input_products(apply: Apply, params: Tree, inputs: Sequence[Tree]) -> dict[int, Array]:
    """For each kernel, the products |w| ‖x‖₂ of all weights w.

    In a product, x are the activations that w multiplies. The keys of the result are the indices of
    the kernels among the leaves of `params`.
    """
    network = read_network(apply, params, inputs)

    @jax.jit
    def run(params: Tree, inputs: Sequence[Tree]) -> dict[int, Array]:
        leaves, products = list(map(jnp.asarray, jax.tree.leaves(params))), {}

        def step(fact: Fact, eqn: Equation, operands: Sequence[Array]) -> list[Array]:
            kernel = fact.kernel
            if kernel is not None and kernel.alone:
                leaf = kernel.addend.leaf
                norms = jnp.sqrt(kernel.linear.squares(operands[1 - kernel.side]))[:, :, None]
                product = jnp.abs(leaves[leaf] * kernel.kernel(norms, leaves[leaf]))
                products[leaf] = products.get(leaf, 0) + product
            return evaluate_equation(eqn, operands)

        arrays = [*leaves, *map(jnp.asarray, jax.tree.leaves(inputs))]
        network.interpret(arrays, jnp.asarray, step)
        return products

    return run(params, tuple(inputs))
