"""Earth mover distances of all features together, exact or by projections on random directions."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from jaxnorm.internal import (
    auto_sharded,
    check_key,
    check_positive,
    check_whole,
    chi_mean,
    flat_rows,
    host_only,
    matmul,
    norm,
)
from jaxnorm.shift._emd_1d import emd_1d
from jaxnorm.shift._samples import check_pair, check_weights, vectors

# Costs are computed in blocks of at most `_BLOCK` costs, or of one row if a row is longer. The
# linear program has at most `_UNKNOWNS` unknowns.
_BLOCK, _UNKNOWNS = 2**23, 1_000_000


@host_only("emd_1d or emd_sliced")
def emd(
    x: Float[Array, "n *features"],
    y: Float[Array, "m *features"],
    *,
    x_weights: Float[Array, " n"] | None = None,
    y_weights: Float[Array, " m"] | None = None,
) -> float:
    """The exact earth mover distance W₁ of two samples in any dimension, in the unit of `x`.

    `emd` runs on the host; under `jit` use `emd_1d` and `emd_sliced`. For equal numbers n of
    samples, SciPy's assignment solver matches the samples one to one. JAX computes the n² costs in
    float64, some rows at a time. 4,096 samples of 3,072 features take about ten seconds and 1 GB.
    If the numbers of samples differ or weights are given, SciPy solves a linear program with n m
    unknowns for n and m samples, as in `transport_plan`.

    The distance between two samples of one distribution is also above zero. For n samples of d ≥ 3
    features, this distance decreases like n^(−1/d). To judge a distance, compare it with the
    distance between two halves of one sample.

    Args:
      x: Samples on the first axis; each sample is flattened to a vector.
      y: Samples of the same features.
      x_weights: The weight of each sample of `x`; by default all weights are equal.
      y_weights: The weight of each sample of `y`; by default all weights are equal.

    Raises:
      ValueError: A sample is empty or not finite. The numbers of features differ, or weights and
        samples differ in number. The numbers of samples differ or weights are given, and n m
        exceeds 1,000,000. Weights are negative, not finite, or all zero.
      TypeError: An argument is traced.

    Example:
      >>> square = jnp.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
      >>> print(round(emd(square, square + 3.0), 4))
      4.2426
    """
    a, b, moves = _cheapest(x, y, x_weights, y_weights)
    # Differences are computed directly, because the expanded square of a difference loses digits if
    # points nearly coincide.
    return float(moves.mass @ np.linalg.norm(a[moves.start] - b[moves.end], axis=1))


@host_only()
def transport_plan(
    x: Float[Array, "n *features"],
    y: Float[Array, "m *features"],
    *,
    x_weights: Float[Array, " n"] | None = None,
    y_weights: Float[Array, " m"] | None = None,
) -> Float[np.ndarray, "n m"]:
    """The transport plan of `emd`: the mass that moves from sample i of `x` to sample j of `y`.

    Row i sums to weight i of `x_weights` divided by the sum of `x_weights`, and column j sums to
    weight j of `y_weights` divided by the sum of `y_weights`. Without weights, equal numbers of
    samples are matched one to one. With weights or unequal numbers, SciPy's HiGHS solves a linear
    program in float64: a million unknowns take about ten seconds. If several plans have the same
    cost, the result is one of them. Arguments and errors are the same as for `emd`.

    Example:
      >>> x, y = jnp.array([[0.0], [1.0], [5.0]]), jnp.array([[0.0], [5.0]])
      >>> print(transport_plan(x, y, y_weights=jnp.array([2.0, 1.0])).round(3))
      [[0.333 0.   ]
       [0.333 0.   ]
       [0.    0.333]]
    """
    a, b, moves = _cheapest(x, y, x_weights, y_weights)
    plan = np.zeros((len(a), len(b)))
    plan[moves.start, moves.end] = moves.mass
    return plan


class Moves(NamedTuple):
    """The masses that a transport plan moves, each with its row in `a` and its row in `b`."""

    start: np.ndarray
    end: np.ndarray
    mass: np.ndarray


def _cheapest(
    x: Array, y: Array, x_weights: Array | None, y_weights: Array | None
) -> tuple[np.ndarray, np.ndarray, Moves]:
    """The samples as vectors in float64, and the cheapest moves between the two samples."""
    check_pair(x, y)
    check_weights(x_weights, x, "x_weights")
    check_weights(y_weights, y, "y_weights")
    a, b = (np.asarray(flat_rows(sample), np.float64) for sample in (x, y))
    if x_weights is None and y_weights is None and len(a) == len(b):
        return a, b, _match(a, b)
    return a, b, _plan(a, b, _masses(x_weights, a), _masses(y_weights, b))


def _masses(weights: Array | None, rows: np.ndarray) -> np.ndarray:
    masses = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)
    if not masses.any():
        raise ValueError("weights must not all be zero; their sum is 0")
    masses = masses / masses.max()  # the sum of large weights would overflow
    return masses / masses.sum()


def _match(a: np.ndarray, b: np.ndarray) -> Moves:
    """The cheapest one-to-one assignment of the rows of `a` and `b`."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(_costs(a, b))
    return Moves(rows, columns, np.full(len(a), 1 / len(a)))


def _plan(a: np.ndarray, b: np.ndarray, p: np.ndarray, q: np.ndarray) -> Moves:
    """The cheapest moves from masses `p` at the rows of `a` to masses `q` at the rows of `b`."""
    if len(a) * len(b) > _UNKNOWNS:
        raise ValueError(
            f"samples of different sizes or with weights must have at most {_UNKNOWNS:,} pairs; "
            f"got {len(a):,} times {len(b):,}: use samples of equal size without weights, or "
            "emd_sliced"
        )
    from scipy.optimize import linprog  # this import takes a second, so it is not at the top
    from scipy.sparse import eye_array, kron, vstack

    ones = np.ones((1, len(a))), np.ones((1, len(b)))
    sums = vstack([kron(eye_array(len(a)), ones[1]), kron(ones[0], eye_array(len(b)))])
    costs = _costs(a, b).ravel()
    costs /= costs.max() or 1  # HiGHS ignores cost differences below 1e-7, so costs are scaled
    solved = linprog(costs, A_eq=sums.tocsr(), b_eq=np.concatenate([p, q]), method="highs-ds")
    # The linear program has a solution, because the plan p qᵀ satisfies all constraints and no cost
    # is negative.
    assert solved.status == 0, solved.message
    plan = np.maximum(solved.x, 0).reshape(len(a), len(b))
    start, end = np.nonzero(plan)
    return Moves(start, end, plan[start, end])


def _costs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The distances between all rows of `a` and of `b`, computed in blocks of rows."""
    center = (a.mean(0) + b.mean(0)) / 2
    a, b = a - center, b - center
    block = max(1, _BLOCK // len(b))
    costs = np.empty((len(a), len(b)))
    with jax.enable_x64(True):
        other = jnp.asarray(b)
        for i in range(0, len(a), block):
            costs[i : i + block] = _euclidean(jnp.asarray(a[i : i + block]), other)
    return costs


@jax.jit
def _euclidean(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> Float[Array, "n m"]:
    product = matmul(a, b.T)
    square = jnp.square(a).sum(1)[:, None] - 2 * product + jnp.square(b).sum(1)[None]
    return jnp.sqrt(jnp.maximum(square, 0))


class Sliced(NamedTuple):
    """The mean projected distance, its standard error, and the largest projected distance."""

    distance: Float[Array, ""]
    stderr: Float[Array, ""]
    largest: Float[Array, ""]


@auto_sharded
def emd_sliced(
    key: Key[Array, ""],
    x: Float[Array, "n *features"],
    y: Float[Array, "m *features"] | None = None,
    *,
    projections: int = 128,
) -> Sliced:
    """The mean earth mover distance W₁ of random projections, with its standard error.

    The samples are projected on random directions. The W₁ of every projection is a lower bound of
    the exact W₁, and the field `largest` is the largest lower bound. For d features, the mean
    divided by `mean_projection(d)` is also a lower bound, up to the standard error. If `y` is a
    translation of `x`, the mean divided by `mean_projection(d)` equals W₁ up to the standard error.
    `emd_sliced` works under `jit`, `vmap` and `grad`. If the distances of all projections are
    equal, the gradient of the standard error is zero. With a single projection, the standard error
    is NaN.

    Args:
      key: The random key for the directions.
      x: Samples on the first axis; each sample is flattened to a vector.
      y: Samples with the same features; the number of samples can differ.
      projections: The number of random directions.

    Raises:
      TypeError: The key is missing or is not a random key.
      ValueError: `projections` is below 1, or `emd_1d` would raise an error for the samples.

    Example:
      >>> x = jax.random.normal(jax.random.key(0), (100, 3))
      >>> sliced = emd_sliced(jax.random.key(1), x, x + 1.0, projections=2000)
      >>> print(f"{sliced.distance / mean_projection(3):.1f} {sliced.largest <= 3**0.5}")
      1.7 True
    """
    check_key(key)
    if y is None:
        raise TypeError("y must be given: emd_sliced takes key, x and y")
    check_pair(x, y)
    check_whole(projections=projections)
    if projections < 1:
        raise ValueError(f"projections must be at least 1; got {projections}")
    a, b = vectors(x), vectors(y)
    directions = jax.random.normal(key, (a.shape[1], projections), a.dtype)
    directions = directions / jnp.linalg.norm(directions, axis=0, keepdims=True)
    center = a.mean(0, keepdims=True)
    a, b = (matmul(part - center, directions) for part in (a, b))
    distances = emd_1d(a, b)
    mean = distances.mean()
    # `norm` has a finite gradient even if all projections are equal, and does not square large
    # numbers.
    deviation = norm(distances - mean)[0]
    # With one projection, the standard error is 0 / 0, which is NaN.
    stderr = deviation / (projections * (projections - 1)) ** 0.5
    return Sliced(mean, stderr, distances[distances.argmax()])


@host_only()
def mean_projection(dims: int) -> float:
    """The mean |θ₁| of a random direction θ in d dimensions: Γ(d/2) / (√π Γ((d+1)/2)).

    `mean_projection` runs on the host. For large d, the result is about √(2/(π d)).

    Raises:
      ValueError: `dims` is below 1, or not finite.

    Example:
      >>> print(f"{mean_projection(1):.3f} {mean_projection(3):.3f}")
      1.000 0.500
    """
    check_positive(dims, "dims")
    if dims < 1:
        raise ValueError(f"dims must be at least 1; got {dims}")
    return (2 / math.pi) ** 0.5 / chi_mean(dims)
