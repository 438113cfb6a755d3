"""Fits the kernels of the smaller decoder to the outputs of the whole decoder by least squares.

The whole and the smaller decoder read the same text. Layer by layer, a kernel W of the smaller
decoder minimizes Σ ‖W x̃ − y‖² + λ ‖W − W₀‖². In the sum, x̃ is the input of the kernel after the
earlier layers are fitted, and W₀ is the kernel without the removed units. If the kernel writes to
the stream, the target y is the whole decoder's stream after the kernel, minus the smaller decoder's
stream before the kernel. For other kernels, and for all kernels of Gemma, y is the output of the
kernel in the whole decoder. The least-squares fit follows Luo et al. (2017), ThiNet.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

RIDGES = (1e-3, 1e-2, 1e-1)
HELD_OUT = 4  # one sequence in 4 is used to choose the ridge


class Equations(NamedTuple):
    """The sums Σ x̃ x̃ᵀ and Σ x̃ yᵀ over tokens, for inputs x̃ and targets y of a kernel."""

    xx: Float[np.ndarray, "n n"]
    xy: Float[np.ndarray, "n outputs"]

    def plus(self, other: "Equations") -> "Equations":
        """The sums over the tokens of `self` and of `other`."""
        return Equations(self.xx + other.xx, self.xy + other.xy)


def solve(
    kernel: Float[np.ndarray, "outputs n"], train: Equations, held_out: Equations
) -> Float[np.ndarray, "outputs n"]:
    """The kernel that is fitted to `train` and `held_out` together, with the best ridge.

    The best ridge is the one whose fit to `train` alone has the smallest error on `held_out`. The
    ridges are the values in `RIDGES` times the mean of Σ x̃² over inputs.
    """
    start = kernel.T.astype(np.float64)

    def error(ridge: float) -> float:
        w = solution(start, train, ridge)
        return float(np.sum(w * (held_out.xx @ w - 2 * held_out.xy)))

    best = min(RIDGES, key=error)
    found = solution(start, train.plus(held_out), best).T
    return found.astype(np.float32)


def solution(start: np.ndarray, equations: Equations, ridge: float) -> np.ndarray:
    """The kernel (n, outputs) that minimizes the squared error plus a penalty.

    The penalty is the squared distance from `start`, times `ridge` and the mean of Σ x̃² over
    inputs.
    """
    xx, xy = (part.astype(np.float64) for part in equations)
    mean = max(np.trace(xx) / len(xx), np.finfo(np.float32).tiny)
    factor = scipy.linalg.cho_factor(xx + ridge * mean * np.eye(len(xx)), overwrite_a=True)
    return start + scipy.linalg.cho_solve(factor, xy - xx @ start)
