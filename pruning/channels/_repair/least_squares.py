"""Fits kernels that read removed channels to data, to restore accuracy without gradient steps.

The whole network and the pruned network, in which removed channels are zero, are evaluated on the
same inputs. Layer by layer, a linear least-squares problem gives a new kernel of the pruned
network. The inputs of the problem are computed by the pruned network, whose earlier layers already
have new kernels. The targets of the problem are the layer's outputs in the whole network. The fit
follows ThiNet, Luo et al. (2017), and He et al. (2017).
"""

from collections.abc import Callable, Sequence, Sized
from functools import partial
from itertools import islice
from operator import length_hint

import jax
import jax.numpy as jnp
import numpy as np

from jaxnorm.internal import check_on_host
from pruning._arguments import check_tuple, check_values
from pruning.channels._coupling.groups import ChannelGroup, describe
from pruning.channels._program.calls import Apply, Equation, Leaf, Tree, evaluate_equation
from pruning.channels._removal.removal import (
    Keep,
    KeepMasks,
    keep_masks,
    mask_channels,
    removed_elements,
)
from pruning.channels._repair.moments import Moments, merge, moments, ridge_solution, scale_outputs
from pruning.channels._repair.parameters import (
    Addend,
    Fact,
    Kernel,
    Network,
    check_solved,
    read_network,
)

Batches = Sequence[Sequence[Tree]]
Solver = Callable[[np.ndarray, Moments, Moments | None, bool], np.ndarray]
Arrays = list[Leaf]
"""The values of one variable for all batches, first in the whole, then in the pruned network."""

RIDGE = tuple(10.0**k for k in range(-8, 1))


def least_squares(
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    keep: Keep,
    batches: Batches,
    *,
    ridge: Sequence[int | float] = RIDGE,
) -> Tree:
    """Fit the kernels that read removed channels to data. Call `remove_channels` afterwards.

    The function fits every convolution and every product with a kernel whose inputs change, in the
    order of the program. The new kernel W minimizes Σ ‖W x̃ − y‖² + λ ‖W − W₀‖² over all positions.
    In the sum, W₀ is the old kernel, x̃ are the kernel's inputs in the network repaired so far, and
    y are the kernel's outputs in the whole network. If the program adds a bias to the outputs or
    subtracts a running mean, the bias or the running mean is changed by the mean error of the
    outputs. The penalty λ is one value of `ridge` times the mean of Σ x̃² over the inputs that are
    not always zero. The value of `ridge` is chosen by the error on the last quarter of the batches
    (at least one batch), and W is computed from all batches.

    Kernels are computed by Cholesky factorization on the host in float64, with one factorization
    for each group of a grouped convolution. The second moments of inputs and outputs are computed
    on the devices that hold the batches. In both networks, the activations of all batches are in
    memory until no later equation needs them.

    The arguments `apply`, `params`, `groups` and `keep` are the same as for `fold_constants`.

    Args:
      batches: The other arguments of `apply`, one tuple for each batch; all batches have the same
        shapes. A few hundred images in all batches together are enough.
      ridge: The numbers that are tried as the strength of the penalty λ.

    Returns:
      A tree of the same shapes as `params`. Elements at removed channels are zero or unchanged.

    Raises:
      ValueError: `ridge` is empty or has a negative number. `batches` is empty, or has only one
        batch although there are several values of `ridge`. The shapes of batches differ. A kernel
        with removed inputs is computed from other parameters, is read more than once, or is read
        inside a loop, a branch or a `shard_map`. Second moments are not finite, or there are too
        few rows for a `ridge` of zero. `apply` cannot be traced at the given arguments.
        `mask_channels` would raise an error.
      TypeError: `mask_channels` would raise a TypeError.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[1.0, 2.0]]), "b": np.array([[3.0], [4.0]])}
      >>> x = np.linspace(0, 1, 8)[:, None]
      >>> groups, keep = coupled_channels(mlp, params, x), [np.array([True, False])]
      >>> repaired = least_squares(mlp, params, groups, keep, [(x[:4],), (x[4:],)])
      >>> print(repaired["b"][0].round(3))  # relu(2 x) = 2 relu(x)
      [11.]
    """
    if not ridge or min(ridge) < 0:
        raise ValueError(f"ridge must hold one or more nonnegative numbers; got {tuple(ridge)}")
    if len(ridge) > 1 and length_hint(batches) == 1:
        raise ValueError(
            "batches must hold at least two batches if ridge holds several numbers, because the "
            "last batches are used to choose among them; got 1 batch: split it into two"
        )
    solver = partial(ridge_solution, ridge=ridge)
    return _repair("least_squares", apply, params, groups, keep, batches, solver)


def rescale(
    apply: Apply, params: Tree, groups: Sequence[ChannelGroup], keep: Keep, batches: Batches
) -> Tree:
    """Fit one scale for each output of the kernels that read removed channels.

    Each output of a kernel is multiplied by the number a that minimizes Σ (a w·x̃ − y)². Here w·x̃
    is the output in the smaller network, and y is the output in the whole network. If the program
    adds a bias to the output or subtracts a running mean, `rescale` also fits a shift. Arguments
    and errors are the same as for `least_squares`, but without `ridge`.
    """
    return _repair("rescale", apply, params, groups, keep, batches, scale_outputs)


def _repair(
    name: str,
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    keep: Keep,
    batches: Batches,
    solver: Solver,
) -> Tree:
    check_on_host(name, keep, instead="repair before compiling")
    params, batches = read_batches(name, params, batches, instead="repair before compiling")
    masked = mask_channels(params, groups, keep)
    cut = [(g, v) for g, v in zip(groups, map(np.asarray, keep), strict=True) if not v.all()]
    if not cut:
        return params
    network = read_network(apply, params, batches[0])
    check_solved([group for group, _ in cut], network)
    repair = Repair(params, masked, keep_masks(*zip(*cut, strict=True)), solver)
    repair.run(network, batches)
    return jax.tree.unflatten(jax.tree.structure(params), repair.leaves)


def read_batches(
    name: str, params: Tree, batches: Batches, *, instead: str
) -> tuple[Tree, list[tuple[Tree, ...]]]:
    """The checked parameters and batches, converted to arrays of JAX.

    Error messages name the function `name`.
    """
    if not isinstance(batches, Sized):
        raise TypeError(
            "batches must be a list of tuples, because the batches are read several times; got "
            f"{type(batches).__name__}"
        )
    check_on_host(name, (params, batches), instead=instead)
    check_values(name, params, batches)
    if not len(batches):
        raise ValueError("batches must hold at least one batch; got none")
    for batch in batches:
        check_tuple(batch, "a batch")
    shapes = list(dict.fromkeys(str(jax.tree.map(np.shape, tuple(batch))) for batch in batches))
    if len(shapes) > 1:
        raise ValueError(f"all batches must have the same shape; got {shapes[0]} and {shapes[1]}")
    return jax.tree.map(jnp.asarray, (params, list(map(tuple, batches))))


class Repair:
    """Evaluates both networks on all batches at once, and repairs kernels of the pruned network."""

    def __init__(self, params: Tree, masked: Tree, masks: KeepMasks, solver: Solver):
        self.paths, self.masks, self.solver = describe(params).paths, masks, solver
        changed = {path for path, _ in masks}
        self.whole = jax.tree.leaves(params)
        triples = zip(self.paths, self.whole, jax.tree.leaves(masked), strict=True)
        self.leaves = [pruned if path in changed else whole for path, whole, pruned in triples]

    def run(self, network: Network, batches: Batches) -> None:
        self.count = len(batches)
        pairs = zip(self.whole, self.leaves, strict=True)
        values = [[whole] * self.count + [pruned] * self.count for whole, pruned in pairs]
        columns = zip(*map(jax.tree.leaves, batches), strict=True)
        values += [list(column) * 2 for column in columns]
        network.interpret(values, lambda x: [x] * (2 * self.count), self.step)

    def step(self, fact: Fact, eqn: Equation, values: Sequence[Arrays]) -> Sequence[Arrays]:
        if (kernel := fact.solved) is not None and self.differs(values[1 - kernel.side]):
            return self.solve(eqn, kernel, values)
        results = self.results(eqn, values)
        if fact.once and fact.shift is not None and self.differs(results[0]):
            return [self.shift(fact.shift, results[0])]
        return results

    def differs(self, arrays: Arrays) -> bool:
        pairs = zip(arrays[: self.count], arrays[self.count :], strict=True)
        return any(whole is not pruned for whole, pruned in pairs)

    def results(self, eqn: Equation, values: Sequence[Arrays]) -> list[Arrays]:
        """The results of an equation in both networks, computed once if operands are the same."""
        found: dict[tuple[int, ...], list[Leaf]] = {}
        rows = []
        for arrays in zip(*values, strict=True) if values else [()] * (2 * self.count):
            if (key := tuple(map(id, arrays))) not in found:
                found[key] = evaluate_equation(eqn, arrays)
            rows.append(found[key])
        return list(map(list, zip(*rows, strict=True)))

    def solve(self, eqn: Equation, use: Kernel, values: Sequence[Arrays]) -> list[Arrays]:
        """The outputs of both networks, after the kernel of the pruned network is fitted."""

        def outputs(x: Leaf, kernel: Leaf) -> Leaf:
            operands = (x, kernel) if use.side == 1 else (kernel, x)
            return evaluate_equation(eqn, operands)[0]

        x, kernels, leaf = values[1 - use.side], values[use.side], use.addend.leaf
        inputs, kernel = x[self.count :], kernels[-1]
        whole = [outputs(a, kernels[0]) for a in x[: self.count]]
        old = np.asarray(use.linear.matrix(kernel), np.float64)
        difference = self.solution(use, old, inputs, whole) - old
        change = use.kernel(difference, self.leaves[leaf])
        change = jnp.where(self.removed(leaf), 0, change)
        self.leaves[leaf] = self.leaves[leaf] + change
        kernel = kernel + use.addend.spread(change)
        return [whole + [outputs(a, kernel) for a in inputs]]

    def solution(
        self, use: Kernel, kernel: np.ndarray, inputs: Sequence[Tree], whole: Sequence[Leaf]
    ) -> np.ndarray:
        parts = (moments(use.linear, x, y) for x, y in zip(inputs, whole, strict=True))
        first = merge(islice(parts, self.count - max(1, self.count // 4) or 1))
        held = merge(parts) if self.count > 1 else None
        path = self.paths[use.addend.leaf]
        try:
            return self.solver(kernel, first, held, use.shifted)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                f"batches must hold more rows or ridge must be larger; {first.rows} rows are too "
                f"few for the {kernel.shape[1]} inputs of {path}"
            ) from error

    def shift(self, addend: Addend, results: Arrays) -> Arrays:
        """The sums of activations and a parameter, after the parameter is changed.

        The change of the parameter is the mean of the sum in the whole network minus the mean of
        the sum in the pruned network.
        """
        whole, pruned = results[: self.count], results[self.count :]
        leaf = self.leaves[addend.leaf]
        means = [addend.mean(a - b, leaf) for a, b in zip(whole, pruned, strict=True)]
        change = jnp.where(self.removed(addend.leaf), 0, sum(means) / self.count)
        self.leaves[addend.leaf] = leaf + change
        return whole + [y + addend.spread(change) for y in pruned]

    def removed(self, leaf: int) -> np.ndarray:
        return removed_elements(self.leaves[leaf], self.paths[leaf], self.masks)
