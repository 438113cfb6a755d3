"""Score units (heads, channels, experts) by their weights, or by their activations for a text.

A score is one number for each unit. The units with the largest scores remain in the model. The
array `gram` is Σ x xᵀ over all tokens, where x is the input of an output projection.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import scipy.linalg
from jaxtyping import Float

from experiments.language.architecture import Architecture
from experiments.language.removal import AXES

Score = Literal["reconstruction", "wanda", "activation", "magnitude", "random"]
ON_TEXT = ("reconstruction", "wanda", "activation")
# The largest number of rounds of `reconstruction`. All rounds except the last remove equally many
# units.
ROUNDS = 8
DAMPING = 1e-3  # the ridge, divided by the mean of the Gram matrix's diagonal

Vector = Float[np.ndarray, " n"]
Matrix = Float[np.ndarray, "n n"]


def projection_scores(
    score: Score, kernel: np.ndarray, square: Vector, width: int
) -> Float[np.ndarray, " units"]:
    """The scores of an output projection's units; each unit is `width` inputs of the `kernel`.

    For each input x, `square` is Σ x² over tokens. The score `activation` is the square root of the
    sum of `square` over a unit's inputs. The score `wanda` is Σ |w| ‖x‖₂ over the weights w of a
    unit's inputs x, Sun et al. (2024).
    """
    size = np.sqrt(square)
    inputs = size**2 if score == "activation" else size * np.abs(kernel).sum(0)
    sums = inputs.reshape(-1, width).sum(1)
    return np.sqrt(sums) if score == "activation" else sums


def reconstruction(kernel: np.ndarray, gram: Matrix, width: int, remaining: int) -> np.ndarray:
    """The indices of the units to keep, with which least squares fits the outputs best.

    Units are removed in rounds. Each round removes the units whose removal increases the error
    least. If the inputs j are removed, the squared error of the outputs, after a least-squares fit,
    increases by tr(Wⱼ (H⁻¹)ⱼⱼ⁻¹ Wⱼᵀ), where H = Σ x xᵀ. After the removal, W and H⁻¹ are the
    matrices of the remaining inputs: ZipLM, Kurtic et al. (2023).

    Args:
      kernel: Kernel of an output projection, (outputs, inputs).
      gram: Gram matrix of the inputs of the projection.
      width: Number of inputs of a unit.
      remaining: The number of units that remain.
    """
    n = len(gram)
    w, remains = kernel.astype(np.float64), np.full(n // width, fill_value=True)
    damped = gram.astype(np.float64) + DAMPING * max(np.trace(gram) / n, 1e-30) * np.eye(n)
    inverse = scipy.linalg.inv(damped, assume_a="pos", overwrite_a=True)
    share = -(-(len(remains) - remaining) // ROUNDS)
    while (excess := int(remains.sum()) - remaining) > 0:
        rises = np.where(remains, rise(w, inverse, width, remains), np.inf)
        remove = np.sort(np.argsort(rises, kind="stable")[: min(share, excess)])
        j = (remove[:, None] * width + np.arange(width)).ravel()
        change = scipy.linalg.solve(inverse[np.ix_(j, j)], inverse[j], assume_a="pos")
        w -= w[:, j] @ change
        inverse -= inverse[:, j] @ change  # The rows and columns of removed inputs become zero.
        remains[remove] = False
    return np.flatnonzero(remains)


def rise(w: np.ndarray, inverse: Matrix, width: int, remains: np.ndarray) -> Vector:
    """For each unit, how much its removal increases the error; zero for units already removed."""
    if width == 1:
        return np.square(w).sum(0) / np.where(remains, np.diagonal(inverse), 1)
    found = np.zeros(len(remains))
    for unit in np.flatnonzero(remains):
        j = slice(unit * width, (unit + 1) * width)
        found[unit] = np.sum(w[:, j] * scipy.linalg.solve(inverse[j, j], w[:, j].T).T)
    return found


def magnitudes(p: Mapping[str, np.ndarray], unit: str) -> Float[np.ndarray, " indices"]:
    """For each unit of the kind `unit`, the sum of its squared weights in one layer."""
    sums = [
        np.square(array).sum(tuple(k for k in range(array.ndim) if AXES[name][k] != unit))
        for name, array in p.items()
        if array.ndim > 1 and unit in AXES[name]
    ]
    return np.sum(sums, 0)


def head_magnitudes(model: Architecture, p: Mapping[str, np.ndarray]) -> Vector:
    """For each key-value head, the norm of all weights of this head and its query heads."""
    kinds = ("queries", "keys")
    sums = [magnitudes(p, kind).reshape(model.groups, -1).sum(1) for kind in kinds]
    return np.sqrt(np.sum(sums, 0))


def readers(p: Mapping[str, np.ndarray], norm: str) -> Vector:
    """For each channel of the residual stream, the sum of |w| in the projections after `norm`."""
    prefix = "self_attn" if norm == "input_layernorm" else "mlp"
    names = [n for n in p if n.startswith(prefix) and AXES[n][-1] == "hidden" and p[n].ndim > 1]
    return np.sum([np.abs(p[name]).reshape(-1, p[name].shape[-1]).sum(0) for name in names], 0)


def largest(scores: Vector, count: int) -> np.ndarray:
    """The indices of the `count` largest scores, ascending; the first of equal scores are taken."""
    return np.sort(np.argsort(-scores, kind="stable")[:count])
