"""Computes second moments of the inputs and outputs of kernels, and fits kernels to the moments.

Moments about the mean of a batch are computed on the device, in at least float32. The moments of
several batches are merged on the host in float64. The shapes are the shapes of
`pruning.channels._program.linear`, with the axis of groups first.
"""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxnorm.internal import auto_sharded, promote_to_float32
from pruning.channels._program.linear import Linear


class Moments(NamedTuple):
    """The number of rows, and the means and sums of products of inputs x and target outputs y.

    Each row is an input x and its output y.

    Attributes:
      rows: The number of rows.
      x: The mean of x, (groups, inputs).
      y: The mean of y, (groups, outputs).
      xx: The sums Σ x xᵀ about the mean, (groups, inputs, inputs).
      xy: The sums Σ x yᵀ about the means, (groups, inputs, outputs).
    """

    rows: int
    x: np.ndarray
    y: np.ndarray
    xx: np.ndarray
    xy: np.ndarray

    def about(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sums Σ x xᵀ and Σ x yᵀ about the point (x, y) instead of the means."""
        dx, dy = self.x - x, self.y - y
        xx = self.xx + self.rows * dx[:, :, None] * dx[:, None, :]
        return xx, self.xy + self.rows * dx[:, :, None] * dy[:, None, :]


def moments(linear: Linear, x: Array, y: Array) -> Moments:
    """The moments of a batch, from the operand x and the result y of an equation."""
    rows, *sums = auto_sharded(partial(_sums, linear))(x, y)
    return Moments(int(rows), *(np.asarray(s, np.float64) for s in sums))


@partial(jax.jit, static_argnames="linear")
def _sums(linear: Linear, x: Array, y: Array) -> tuple[Array, ...]:
    x, y = promote_to_float32(linear.inputs(x)), promote_to_float32(linear.outputs(y))
    mean_x, mean_y = x.mean(1), y.mean(1)
    x, y = x - mean_x[:, None], y - mean_y[:, None]
    product = partial(jnp.einsum, "gri,grj->gij", precision="highest")
    return jnp.asarray(x.shape[1]), mean_x, mean_y, product(x, x), product(x, y)


def merge(parts: Iterable[Moments]) -> Moments:
    """The moments of all rows together, from the moments of several sets of rows.

    The merging formula is from Chan et al. (1979).
    """
    return reduce(_both, parts)


def _both(a: Moments, b: Moments) -> Moments:
    rows = a.rows + b.rows
    x, y = ((a.rows * u + b.rows * v) / rows for u, v in ((a.x, b.x), (a.y, b.y)))
    sums = (u + v for u, v in zip(a.about(x, y), b.about(x, y), strict=True))
    return Moments(rows, x, y, *sums)


Equations = tuple[np.ndarray, np.ndarray]
"""The matrices Σ x xᵀ and Σ x yᵀ of the normal equations."""


def equations(rows: Moments, center: Moments | None) -> Equations:
    """The normal equations, after the means of `center` are subtracted if `center` is given."""
    if center is None:
        return rows.about(np.zeros_like(rows.x), np.zeros_like(rows.y))
    return rows.about(center.x, center.y)


def ridge_solution(
    kernel: np.ndarray,
    first: Moments,
    held: Moments | None,
    shifted: bool,
    *,
    ridge: Sequence[int | float],
) -> np.ndarray:
    """The kernel W that minimizes Σ ‖W x − y‖² + λ ‖W − kernel‖² over all rows.

    If `shifted` is true, the means of x and y are subtracted from x and y. The penalty λ is a
    number of `ridge` times the mean of Σ x² over the inputs that are not always zero. To choose λ,
    W is computed for each number of `ridge` from the rows `first` only. The number whose W has the
    smallest error on the rows `held` is chosen.
    """
    normal = all_equations(first, held, shifted)
    if held is None or len(ridge) == 1:
        return _solve(kernel, normal, ridge[0])
    center = first if shifted else None
    xx, xy = equations(held, center)

    def error(r: int | float) -> float:
        try:
            w = _solve(kernel, equations(first, center), r)
        except np.linalg.LinAlgError:
            return np.inf
        return float(np.sum(w * (xx @ w - 2 * xy)))

    return _solve(kernel, normal, min(ridge, key=error))


def scale_outputs(
    kernel: np.ndarray, first: Moments, held: Moments | None, shifted: bool
) -> np.ndarray:
    """The kernel after each output is multiplied by its best factor.

    The factor a minimizes Σ (a w·x − y)² over all rows, with x and y as in `ridge_solution`.
    """
    xx, xy = all_equations(first, held, shifted)
    square = np.sum(kernel * (xx @ kernel), 1, keepdims=True)
    product = np.sum(kernel * xy, 1, keepdims=True)
    return kernel * np.where(square > 0, product / np.where(square > 0, square, 1), 1)


def all_equations(first: Moments, held: Moments | None, shifted: bool) -> Equations:
    """The normal equations of all rows; if `shifted` is true, the means are subtracted first."""
    rows = first if held is None else merge((first, held))
    if not (np.isfinite(rows.xx).all() and np.isfinite(rows.xy).all()):
        raise ValueError("second moments must be finite; they have NaN or inf")
    return equations(rows, rows if shifted else None)


def _solve(kernel: np.ndarray, normal: Equations, ridge: int | float) -> np.ndarray:
    """The kernel for one number `ridge`, by Cholesky factorization.

    If Σ x² of an input is zero in `normal`, the row of the kernel for this input does not change.
    """
    import scipy.linalg  # this import is slow, and only repairs need it

    solution = kernel.copy()
    for w, xx, xy in zip(solution, *normal, strict=True):
        square = np.diagonal(xx)
        used = np.flatnonzero(square > 0)
        if used.size:
            matrix = xx[np.ix_(used, used)]
            factor = scipy.linalg.cho_factor(
                matrix + ridge * square[used].mean() * np.eye(used.size)
            )
            w[used] += scipy.linalg.cho_solve(factor, xy[used] - matrix @ w[used])
    return solution
