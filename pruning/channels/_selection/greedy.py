"""Scores of channels by what least squares cannot repair: the error of the kernels after them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxnorm._numerics import check_on_host
from pruning._arguments import check_values
from pruning.channels._coupling.groups import ChannelGroup, Position, parameters_of
from pruning.channels._program.calls import evaluate_equation
from pruning.channels._program.interpret import interpret, traced
from pruning.channels._removal.removal import name
from pruning.channels._repair.least_squares import Batches, check_batches
from pruning.channels._repair.moments import Moments, all_equations, merged, moments
from pruning.channels._repair.parameters import Kernel, check_solved, facts_of


def reconstruction_scores(
    params: Any,
    groups: Sequence[ChannelGroup],
    *,
    apply: Callable[..., Any],
    batches: Batches,
    ridge: int | float = 1e-4,
) -> list[Float[Array, " _"]]:
    """The error that is left by `least_squares` when a channel is removed after those before it.

    From each group channels are removed one by one, each time the one whose removal adds least to
    E = min (Σ ‖W x − y‖² + λ ‖W − W₀‖²) / Σ ‖y‖², summed over the kernels that read the group: x
    and y are their inputs and outputs in the whole network, about their means where a parameter is
    added to y, W₀ is the kernel, λ is `ridge` times the mean of Σ x². The score of a channel is E
    after its removal: it rises from the first removed to the last, so that any number of the lowest
    are those of the greedy choice. The inverse of Σ x xᵀ + λ is updated exactly, on the host in
    float64: ZipLM, Kurtic et al. (2023), for the objective of OSSCAR, Meng et al. (2024). For n
    channels with s inputs each, n (n s)² s multiplications.

    A `score` for `prune`, with `repair=partial(least_squares, batches=batches)`:
    `partial(reconstruction_scores, apply=apply, batches=batches)`; not with `resize`, for which
    `apply` would have to take smaller trees.

    Args:
      params: The tree that the groups were read from.
      groups: All or some of `coupled_channels`.
      apply: As in `coupled_channels`.
      batches: As in `least_squares`.
      ridge: Positive and finite.

    Raises:
      ValueError: `ridge` is not positive and finite; no kernel reads a group; the groups are not
        of `params`; otherwise as `least_squares`.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[1.0, -1.0, 2.0]]), "b": np.ones((3, 1))}
      >>> x = np.linspace(-1, 1, 9)[:, None]
      >>> groups = coupled_channels(mlp, params, x)
      >>> scores = reconstruction_scores(params, groups, apply=mlp, batches=[(x,)])
      >>> print(scores[0].round(2))  # relu(x) is half of relu(2 x)
      [0.  0.1 1. ]
    """
    check_on_host("reconstruction_scores", (params, batches), instead="score before compiling")
    check_values("reconstruction_scores", params, batches)
    check_batches(batches)
    if not 0 < ridge < np.inf:
        raise ValueError(f"ridge must be positive and finite; got {ridge}")
    if not groups:
        return []
    paths, shapes = parameters_of(params, groups)
    params, batches = jax.tree.map(jnp.asarray, (params, list(map(tuple, batches))))
    program, _ = traced(apply, params, batches[0])
    kernels = [fact.solved for fact in facts_of(program, shapes)]
    check_solved(groups, kernels)
    incoming = {p.path for group in groups for p in group.positions if p.incoming}
    inputs = Inputs(kernels, {i for i, path in enumerate(paths) if path in incoming})
    for batch in batches:
        inputs.read(program, jax.tree.leaves((params, batch)))
    return [jnp.asarray(_scores(group, inputs.blocks(group, paths, ridge))) for group in groups]


def _scores(group: ChannelGroup, blocks: Sequence["Block"]) -> np.ndarray:
    if not blocks:
        raise ValueError(
            f"the channels of {name(group)} must be read by a convolution or a product whose "
            "kernel is an array of params; there is none"
        )
    scores, left, error = np.zeros(group.size), np.ones(group.size, bool), 0.0
    for _ in range(group.size):
        growth = np.sum([block.growth() for block in blocks], 0)
        channel = int(np.where(left, growth, np.inf).argmin())
        error += growth[channel]
        scores[channel], left[channel] = error, False
        for block in blocks:
            block.remove(channel)
    return scores


class Inputs:
    """Second moments of the inputs and outputs of kernels in the whole network, by parameter."""

    def __init__(self, uses: Sequence[Kernel | None], wanted: set[int]):
        self.uses, self.wanted = uses, wanted
        self.kernels: dict[int, tuple[Kernel, np.ndarray]] = {}
        self.moments: dict[int, Moments] = {}

    def read(self, program: Any, arrays: Sequence[Any]) -> None:
        uses = iter(self.uses)

        def step(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
            use, results = next(uses), evaluate_equation(eqn, values)
            if use is not None and (leaf := use.addend.leaf) in self.wanted:
                part = moments(use.linear, values[1 - use.side], results[0])
                before = [self.moments[leaf]] if leaf in self.moments else []
                self.moments[leaf] = merged([*before, part])
                kernel = np.asarray(use.linear.matrix(values[use.side]), np.float64)
                self.kernels[leaf] = use, kernel
            return results

        interpret(program, arrays, lambda x: x, step)

    def blocks(self, group: ChannelGroup, paths: Sequence[str], ridge: float) -> list["Block"]:
        """Of every kernel that reads a group and each of its matrix products."""
        blocks = []
        for p in group.positions:
            if p.incoming:
                use, kernel = self.kernels[leaf := paths.index(p.path)]
                shape = group.parameters.shapes[leaf]
                xx, xy = all_equations(self.moments[leaf], None, use.shifted)
                share = np.sum(kernel * xy)  # Σ ‖y‖²
                channels = _channels(p, use, shape)
                parts = zip(kernel, xx, channels, strict=True)
                blocks += [Block(*part, group.size, ridge, share) for part in parts]
        return blocks


class Block:
    """The inverse of Σ x xᵀ + λ of the inputs that are left, and the kernel that is solved."""

    def __init__(
        self,
        kernel: np.ndarray,
        xx: np.ndarray,
        channels: np.ndarray,
        size: int,
        ridge: float,
        share: float,
    ):
        square = np.diagonal(xx)
        mean = square[square > 0].mean() if square.any() else 1.0
        self.inverse = np.linalg.inv(xx + ridge * mean * np.eye(len(xx)))
        self.kernel, self.size, self.share = kernel.copy(), size, share if share > 0 else 1.0
        self.rows = {c: np.flatnonzero(channels == c) for c in range(size)}

    def growth(self) -> np.ndarray:
        """By how much the error grows with the removal of each channel, as a share."""
        growth = np.zeros(self.size)
        rows = np.array(list(self.rows.values()))  # as many of each channel
        kernels = self.kernel[rows]
        solved = np.linalg.solve(self.inverse[rows[:, :, None], rows[:, None]], kernels)
        growth[list(self.rows)] = np.maximum(np.sum(kernels * solved, (1, 2)), 0) / self.share
        return growth

    def remove(self, channel: int) -> None:
        """Solve the kernel without a channel."""
        rows = self.rows.pop(channel)
        columns = self.inverse[:, rows]
        factor = np.linalg.solve(columns[rows], columns.T)
        self.kernel = self.kernel - factor.T @ self.kernel[rows]
        self.inverse = self.inverse - columns @ factor


def _channels(position: Position, use: Kernel, shape: tuple[int, ...]) -> np.ndarray:
    """Which channel reads each input of a kernel's matrix, (groups, inputs); −1: none."""
    numbers = np.zeros(shape[position.axis], int)
    numbers[position.indices] = np.arange(1, len(position.indices) + 1)[:, None]
    along = [-1 if k == position.axis else 1 for k in range(len(shape))]
    found: Any = -1
    for bit in range(
        int(numbers.max()).bit_length()
    ):  # exact in any dtype that kernels are cast to
        ones = (numbers.reshape(along) >> bit) & 1
        matrix = use.matrix(jnp.asarray(np.broadcast_to(ones, shape), jnp.float32))
        found = found + ((np.asarray(matrix)[..., 0] != 0) << bit)
    return found
