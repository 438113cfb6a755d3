"""Scores channels by the error that their removal causes in the outputs of the next layers.

The kernels of the next layers are first fitted again to the remaining channels.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pruning.channels._coupling.groups import ChannelGroup, Position, parameters_of
from pruning.channels._program.calls import Apply, Equation, Leaf, Tree, evaluate_equation
from pruning.channels._removal.removal import Keep, along_axis, check_keep, name
from pruning.channels._repair.least_squares import Batches, read_batches
from pruning.channels._repair.moments import Moments, all_equations, merge, moments
from pruning.channels._repair.parameters import Fact, Kernel, Network, check_solved, read_network

# The margin, relative and absolute, by which a swap must lower the error. The margin exceeds
# rounding errors, so that two swaps cannot reverse each other again and again.
SWAP_MARGIN = 1e-9


def reconstruction_scores(
    params: Tree,
    groups: Sequence[ChannelGroup],
    *,
    apply: Apply,
    batches: Batches,
    ridge: int | float = 1e-4,
) -> list[Float[Array, " _"]]:
    """Score a channel by the error of the next layers after a greedy algorithm removed the channel.

    The algorithm removes one channel of a group at a time, and always removes the channel whose
    removal increases the error E least. The error is E = min (Σ ‖W x − y‖² + λ ‖W − W₀‖²) / Σ ‖y‖²,
    where the minimum is over the new kernel W, as in `least_squares`. The error E is summed over
    all kernels W₀ that read the group. Here x and y are the inputs and outputs of the kernel in the
    network before pruning. If the program adds a parameter to y, the means of x and y are
    subtracted from x and y. The penalty λ is `ridge` times the mean of Σ x² over the inputs that
    are not always zero. The score of a channel is the error E after the channel is removed. From
    the first removed channel to the last, scores never decrease. Therefore the channels with the
    lowest scores are the channels that the algorithm removes first. The computation runs on the
    host in float64. The algorithm is ZipLM, Kurtic et al. (2023). The objective is from OSSCAR,
    Meng et al. (2024). If each of n channels corresponds to s inputs of a kernel, the algorithm
    needs n (n s)² s multiplications.

    To use `reconstruction_scores` with `prune`, pass `score=partial(reconstruction_scores,
    apply=apply, batches=batches)` and `repair=partial(least_squares, batches=batches)`. Do not
    combine `reconstruction_scores` and `resize`, because `apply` would get smaller trees.

    Args:
      params: The tree from which the groups were read.
      groups: All or some groups of `coupled_channels`.
      apply: A function that JAX can trace, as for `coupled_channels`.
      batches: The other arguments of `apply`, one tuple for each batch, as for `least_squares`.
      ridge: The strength of the penalty λ, positive and finite.

    Raises:
      ValueError: `ridge` is not positive and finite. No kernel reads a group. The groups were not
        read from `params`. `least_squares` would raise an error.

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
    blocks = _blocks("reconstruction_scores", apply, params, groups, batches, ridge)
    return [jnp.asarray(_scores(g.size, own)) for g, own in zip(groups, blocks, strict=True)]


def swap_channels(
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    keep: Keep,
    *,
    batches: Batches,
    ridge: int | float = 1e-4,
) -> list[Bool[np.ndarray, " _"]]:
    """Exchange kept and removed channels until no exchange lowers the error of the next layers.

    The error is E of `reconstruction_scores`, with kernels fitted by least squares. In each group,
    the function tries each kept channel in turn, and swaps the kept channel with the removed
    channel that lowers the error most. If no swap lowers the error, the kept channel remains. The
    number of kept channels does not change. Each swap exchanges one pair of channels, as in the
    local search of OSSCAR, Meng et al. (2024). The search can start from the channels that any
    criterion chose.

    To use `swap_channels` with `prune`, pass `refine=partial(swap_channels, batches=batches)`.
    `prune` calls `refine` after `select`.

    The arguments are the same as for `least_squares`, and `ridge` is the strength of the penalty,
    as for `reconstruction_scores`.

    Raises:
      ValueError: `reconstruction_scores` or `remove_channels` would raise an error for these
        arguments.

    Example:
      >>> from pruning import coupled_channels
      >>> def mlp(params, x):
      ...     return jax.nn.relu(x @ params["a"]) @ params["b"]
      >>> params = {"a": np.array([[1.0, -1.0, 2.0]]), "b": np.ones((3, 1))}
      >>> x = np.linspace(-1, 1, 9)[:, None]
      >>> groups, keep = coupled_channels(mlp, params, x), [np.array([True, False, True])]
      >>> print(swap_channels(mlp, params, groups, keep, batches=[(x,)])[0])  # relu(-x) is needed
      [False  True  True]
    """
    check_keep(groups, keep)
    blocks = _blocks("swap_channels", apply, params, groups, batches, ridge)
    return [_swap(own, np.array(mask)) for own, mask in zip(blocks, keep, strict=True)]


def _blocks(
    caller: str,
    apply: Apply,
    params: Tree,
    groups: Sequence[ChannelGroup],
    batches: Batches,
    ridge: int | float,
) -> Iterator[list["Block"]]:
    """The least-squares problems of each group, before any channel is removed.

    Each matrix product that reads the group gives the group one problem, a `Block`. A grouped
    convolution has one matrix product for each feature group.
    """
    instead = "choose channels before compiling"
    arrays, batches = read_batches(caller, params, batches, instead=instead)
    if not 0 < ridge < np.inf:
        raise ValueError(f"ridge must be positive and finite; got {ridge}")
    if not groups:
        return
    paths, params = parameters_of(params, groups).paths, arrays
    network = read_network(apply, params, batches[0])
    check_solved(groups, network)
    incoming = {p.path for group in groups for p in group.positions if p.incoming}
    inputs = Inputs(network, {i for i, path in enumerate(paths) if path in incoming})
    for batch in batches:
        inputs.read(jax.tree.leaves((params, batch)))
    for group in groups:
        if not (own := inputs.blocks(group, paths, ridge)):
            raise ValueError(
                f"the channels of {name(group)} must be read by a convolution or a product whose "
                "kernel is an array of params; there is none: exclude the layer, or choose another "
                "score"
            )
        yield own


def _scores(size: int, blocks: Sequence["Block"]) -> np.ndarray:
    scores, left, error = np.zeros(size), np.ones(size, bool), 0.0
    for _ in range(size):
        losses = np.sum([block.losses(left) for block in blocks], 0)
        channel = int(np.where(left, losses, np.inf).argmin())
        error += losses[channel]
        scores[channel], left[channel] = error, False
        for block in blocks:
            block.remove(channel)
    return scores


def _swap(blocks: Sequence["Block"], left: np.ndarray) -> np.ndarray:
    """The mask of kept channels after all swaps that lower errors by more than `SWAP_MARGIN`."""
    for block in blocks:
        for channel in np.flatnonzero(~left).tolist():
            block.remove(channel)
    helped = not left.all()
    while helped:
        helped = False
        for channel in np.flatnonzero(left).tolist():
            loss = np.sum([block.losses(left) for block in blocks], 0)[channel]
            gains = np.sum([block.gains(channel, left) for block in blocks], 0)
            other = int(np.where(left, -np.inf, gains).argmax())
            if gains[other] > loss * (1 + SWAP_MARGIN) + SWAP_MARGIN:
                helped, left[channel], left[other] = True, False, True
                for block in blocks:
                    block.remove(channel)
                    block.add(other)
    return left


class Inputs:
    """Second moments of the inputs and outputs of kernels in the whole network.

    The keys of `kernels` and `moments` are the indices of the kernels among the leaves of `params`.
    """

    def __init__(self, network: Network, wanted: set[int]):
        self.network, self.wanted = network, wanted
        self.kernels: dict[int, tuple[Kernel, np.ndarray]] = {}
        self.moments: dict[int, Moments] = {}

    def read(self, arrays: Sequence[Leaf]) -> None:
        def step(fact: Fact, eqn: Equation, values: Sequence[Leaf]) -> Sequence[Leaf]:
            use, results = fact.solved, evaluate_equation(eqn, values)
            if use is not None and (leaf := use.addend.leaf) in self.wanted:
                part = moments(use.linear, values[1 - use.side], results[0])
                before = [self.moments[leaf]] if leaf in self.moments else []
                self.moments[leaf] = merge([*before, part])
                kernel = np.asarray(use.linear.matrix(values[use.side]), np.float64)
                self.kernels[leaf] = use, kernel
            return results

        self.network.interpret(arrays, lambda x: x, step)

    def blocks(self, group: ChannelGroup, paths: Sequence[str], ridge: float) -> list["Block"]:
        """A `Block` for each feature group of each kernel that reads the channels of `group`."""
        blocks = []
        for p in group.positions:
            if p.incoming and (leaf := paths.index(p.path)) in self.kernels:
                use, kernel = self.kernels[leaf]
                shape = group.parameters.shapes[leaf]
                xx, xy = all_equations(self.moments[leaf], None, use.shifted)
                share = np.sum(kernel * xy)  # the sum Σ ‖y‖² over outputs y of the kernel
                channels = _channels(p, use, shape)
                parts = zip(kernel, xx, channels, strict=True)
                blocks += [Block(*part, group.size, ridge, share) for part in parts]
        return blocks


class Block:
    """The least-squares problem for the kernel of one matrix product after inputs were removed.

    With G = Σ x xᵀ + λ I, the old kernel W₀ and the remaining inputs S, the new kernel is G_SS⁻¹ (G
    W₀)_S. The attributes `kernel` and `inverse` are the new kernel and G_SS⁻¹, with zeros in the
    rows and columns of removed inputs.
    """

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
        self.gram = xx + ridge * mean * np.eye(len(xx))
        self.inverse, self.kernel = np.linalg.inv(self.gram), kernel.copy()
        self.target = self.gram @ kernel
        self.size, self.share = size, share if share > 0 else 1.0
        # For each input channel of the kernel, the indices of the rows that multiply this channel.
        # All channels have the same number of rows.
        rows = {c: np.flatnonzero(channels == c) for c in range(size)}
        self.rows = {c: found for c, found in rows.items() if found.size}
        self.missing: Missing | None = None  # computed when it is needed

    def losses(self, left: np.ndarray) -> np.ndarray:
        """For each remaining channel, the increase of the error that its removal would cause.

        The increases are divided by Σ ‖y‖².
        """
        channels = [c for c in self.rows if left[c]]
        losses = np.zeros(self.size)
        if channels:
            rows = np.array([self.rows[c] for c in channels])
            inverses = self.inverse[rows[:, :, None], rows[:, None]]
            losses[channels] = self._shares(self.kernel[rows], inverses)
        return losses

    def gains(self, channel: int, left: np.ndarray) -> np.ndarray:
        """For each removed channel, how much smaller the error is with `channel` removed instead.

        For kept channels, the result is zero.
        """
        gains = np.zeros(self.size)
        if all(left[c] for c in self.rows):
            return gains
        if self.missing is None:
            self.missing = self._missing(left)
        others, rows, crossed, schur, residual = self.missing
        if (own := self.rows.get(channel)) is not None:
            # shape of `cross`: (inputs of `channel`, removed channels, inputs of a removed channel)
            cross = crossed[own][:, rows]
            solved = np.linalg.solve(self.inverse[np.ix_(own, own)], cross.reshape(len(own), -1))
            solved = solved.reshape(cross.shape)
            schur = schur + np.einsum("irs,irt->rst", cross, solved)
            residual = residual + np.einsum("irs,io->rso", solved, self.kernel[own])
        gains[others] = self._shares(residual, schur)
        return gains

    def _missing(self, left: np.ndarray) -> "Missing":
        others = [c for c in self.rows if not left[c]]
        rows = np.array([self.rows[c] for c in others])
        crossed = self.inverse @ self.gram
        explained = np.einsum("nrs,nrt->rst", self.gram[:, rows], crossed[:, rows])
        schur = self.gram[rows[:, :, None], rows[:, None]] - explained
        return Missing(others, rows, crossed, schur, (self.target - self.gram @ self.kernel)[rows])

    def _shares(self, vectors: np.ndarray, matrices: np.ndarray) -> np.ndarray:
        """For each matrix m and its vectors v, the share tr(vᵀ m⁻¹ v) / Σ ‖y‖² of the outputs."""
        solved = np.linalg.solve(matrices, vectors)
        return np.maximum(np.sum(vectors * solved, (1, 2)), 0) / self.share

    def remove(self, channel: int) -> None:
        """Update the best kernel after one further channel is removed."""
        if (rows := self.rows.get(channel)) is None:
            return
        columns, self.missing = self.inverse[:, rows], None
        factor = np.linalg.solve(columns[rows], columns.T)
        self.kernel = self.kernel - factor.T @ self.kernel[rows]
        self.inverse = self.inverse - columns @ factor
        self.kernel[rows] = self.inverse[rows] = self.inverse[:, rows] = 0

    def add(self, channel: int) -> None:
        """Update the best kernel after a removed channel is added again."""
        if (rows := self.rows.get(channel)) is None:
            return
        change, self.missing = self.inverse @ self.gram[:, rows], None
        schur = self.gram[np.ix_(rows, rows)] - self.gram[rows] @ change
        residual = self.target[rows] - self.gram[rows] @ self.kernel
        change[rows] = -np.eye(len(rows))
        self.kernel = self.kernel - change @ np.linalg.solve(schur, residual)
        self.inverse = self.inverse + change @ np.linalg.solve(schur, change.T)


class Missing(NamedTuple):
    """Matrices from which `Block.gains` computes the effect of adding a removed channel.

    If a channel is added, the error times Σ ‖y‖² decreases by tr Rᵀ A⁻¹ R, with the matrices A and
    R below. The docstring of `Block` defines G, W₀ and S, and W is the attribute `kernel` of the
    block.

    Attributes:
      channels: The removed channels among the inputs of the kernel.
      rows: The inputs J of each removed channel, of shape (channels, inputs of one channel).
      crossed: The matrix G_SS⁻¹ G_S:.
      schur: The Schur complements A = G_JJ − G_JS G_SS⁻¹ G_SJ, one for each channel.
      residual: The residuals R = (G W₀)_J − G_JS W_S of the normal equations of the inputs J, one
        for each channel.
    """

    channels: list[int]
    rows: np.ndarray
    crossed: np.ndarray
    schur: np.ndarray
    residual: np.ndarray


def _channels(position: Position, use: Kernel, shape: tuple[int, ...]) -> np.ndarray:
    """For each input of a kernel, the number of its channel, (groups of the convolution, inputs).

    The number is −1 if the input belongs to no channel of `position`.
    """
    numbers = np.zeros(shape[position.axis], int)
    numbers[position.indices] = np.arange(1, len(position.indices) + 1)[:, None]
    numbers, found = along_axis(numbers, position.axis, len(shape)), np.array(-1)
    # The channel numbers pass through `use.matrix` one bit at a time, because 0 and 1 are exact in
    # every dtype.
    for bit in range(int(numbers.max()).bit_length()):
        ones = (numbers >> bit) & 1
        matrix = use.matrix(jnp.asarray(np.broadcast_to(ones, shape), jnp.float32))
        found = found + ((np.asarray(matrix)[..., 0] != 0) << bit)
    return found
