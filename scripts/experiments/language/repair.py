"""Fit the kernels of the smaller decoder to the outputs of the whole decoder by least squares.

The whole and the smaller decoder read the same text. Layer by layer, a kernel W of the smaller
decoder minimizes Σ ‖W x̃ − y‖² + λ ‖W − W₀‖². In the sum over tokens, x̃ is the input of the kernel
after earlier layers are fitted, y is the target, and W₀ is the kernel after the removal of units
and before the fit. The ridge λ is the penalty. If the kernel writes to the stream, the target y is
the whole decoder's stream after the kernel, minus the smaller decoder's stream before the kernel.
For other kernels, and for all kernels of Gemma, y is the output of the kernel in the whole decoder.
The least-squares fit follows Luo et al. (2017), ThiNet.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

RIDGES = (1e-3, 1e-2, 1e-1)
HELD_OUT = 4  # one sequence in 4 is used to choose the ridge


class Equations(NamedTuple):
    """The sums Σ x̃ x̃ᵀ and Σ x̃ yᵀ over tokens, where x̃ is a kernel's input and y its target."""

    xx: Float[np.ndarray, "n n"]
    xy: Float[np.ndarray, "n outputs"]

    def plus(self, other: "Equations") -> "Equations":
        """The sums over all tokens of both `self` and `other`."""
        return Equations(self.xx + other.xx, self.xy + other.xy)


def solve(
    kernel: Float[np.ndarray, "outputs n"], train: Equations, held_out: Equations
) -> Float[np.ndarray, "outputs n"]:
    """Fit the kernel to `train` and `held_out` together, with the best penalty (ridge).

    To find the best ridge, the kernel is fitted to `train` alone with each ridge, and the errors on
    `held_out` are compared. Each ridge is a value in `RIDGES` times the mean over inputs of Σ x̃²,
    where x̃ is one input and the sum is over tokens.
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

    The penalty is the squared distance from `start`, times `ridge`, times the mean over inputs of Σ
    x̃².
    """
    xx, xy = (part.astype(np.float64) for part in equations)
    mean = max(np.trace(xx) / len(xx), np.finfo(np.float32).tiny)
    factor = scipy.linalg.cho_factor(xx + ridge * mean * np.eye(len(xx)), overwrite_a=True)
    return start + scipy.linalg.cho_solve(factor, xy - xx @ start)
