"""Compute exact earth mover distances for many pairs of discrete distributions.

A list of points with equal weights is a distribution. The exact distance between two lists of
points has no sampling error, so theorems must hold without tolerance.
"""

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Key

from claims.draws import generator

CASES, POINTS, FEATURES = 300, 12, 4


def pairs(key: Key[Array, ""]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of heavy-tailed samples at scales from 0.01 to 100, and pairs of opposite points.

    Some points of the heavy-tailed samples are exactly 0.
    """
    rng = generator(key)
    scale = 10 ** rng.uniform(-2, 2, (2, CASES, 1, 1))
    x, y = rng.standard_t(2.1, (2, CASES, POINTS, FEATURES)) * scale
    x[::3] += 3 * rng.normal(size=x[::3, :1].shape)
    y[::7, 0] = 0
    x[:20], y[:20] = opposite(np.geomspace(1e-3, 1e6, 20), 0)
    return x, y


def opposite(lengths: np.ndarray, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of two points at R and −R along one feature, for each R in `lengths`."""
    x = np.zeros((len(lengths), 1, FEATURES))
    x[:, 0, feature] = lengths
    return x, -x


def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The exact earth mover distance of each pair of samples; NaN if a point is not finite."""
    return np.array([_distance(*pair) for pair in zip(x, y, strict=True)])


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    cost = np.linalg.norm(x[:, None] - y[None], axis=-1)
    if not np.isfinite(cost).all():
        return math.nan
    return float(cost[scipy.optimize.linear_sum_assignment(cost)].mean())


def distances_of_outputs(
    x: np.ndarray,
    y: np.ndarray,
    transform: Callable[[Array], Array],
    other: Callable[[Array], Array] | None = None,
) -> np.ndarray:
    """For each pair, the exact earth mover distance between the outputs of `transform`.

    If `other` is given, `other` transforms the second sample of each pair.
    """
    outputs = transform(jnp.asarray(x)), (other or transform)(jnp.asarray(y))
    return distances(*map(np.asarray, outputs))


def excess(distance: np.ndarray, bound: np.ndarray) -> np.ndarray:
    return (distance - bound) / np.maximum(bound, 1e-300)


def bounds_of(bound: Callable, *arguments: np.ndarray) -> np.ndarray:
    """Evaluate the function `bound` for every pair, along the first axis of the arguments."""
    return np.asarray(_vectorized(bound)(*map(jnp.asarray, arguments)))


def bounds_at(bound: Callable, alpha: Array, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Evaluate the function `bound` for every pair of samples, with one alpha."""
    return np.asarray(_vectorized_at(bound)(alpha, jnp.asarray(x), jnp.asarray(y)))


@cache
def _vectorized(bound: Callable) -> Callable[..., Array]:
    return jax.jit(jax.vmap(bound))


@cache
def _vectorized_at(bound: Callable) -> Callable[..., Array]:
    return jax.jit(jax.vmap(bound, in_axes=(None, 0, 0)))


def dual(x: np.ndarray, y: np.ndarray, *, pinned: bool = False, slope: float = 1.0) -> float:
    """sup E f(X) − E f(Y) over functions f with slope ≤ `slope` (Equation 3).

    If `pinned` is true, only functions with f(0) = 0 are allowed.
    """
    z = np.concatenate([x, y, np.zeros((1, x.shape[1]))])
    i, j = np.nonzero(~np.eye(len(z), dtype=bool))
    differences = np.zeros((len(i), len(z)))
    differences[np.arange(len(i)), i], differences[np.arange(len(i)), j] = 1, -1
    weights = np.concatenate([-np.ones(len(x)) / len(x), np.ones(len(y)) / len(y), [0]])
    bounds = [(None, None)] * (len(z) - 1) + [(0, 0) if pinned else (None, None)]
    limits = slope * np.linalg.norm(z[i] - z[j], axis=1)
    if not pinned:
        bounds[0] = (0, 0)  # one value of f is fixed, because f is determined only up to a constant
    return -scipy.optimize.linprog(weights, differences, limits, bounds=bounds).fun
