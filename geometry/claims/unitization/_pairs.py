"""Exact earth mover distances of many pairs of discrete distributions.

A list of points of equal weight is a distribution: theorems must hold exactly of its exact earth
mover distance, with no error of sampling.
"""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array

CASES, POINTS, FEATURES = 300, 12, 4


@cache
def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Heavy-tailed pairs at scales from 0.01 to 100, with exact zeros, and opposite points."""
    rng = np.random.default_rng(0)
    scale = 10 ** rng.uniform(-2, 2, (2, CASES, 1, 1))
    x, y = rng.standard_t(2.1, (2, CASES, POINTS, FEATURES)) * scale
    x[::3] += 3 * rng.normal(size=x[::3, :1].shape)
    y[::7, 0] = 0
    # Every point of one at R e₁ and of the other at −R e₁: where bounds are attained.
    x[:20] = 0
    x[:20, :, 0] = np.geomspace(1e-3, 1e6, 20)[:, None]
    y[:20] = -x[:20]
    return x, y


def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Exact earth mover distances, by assignment."""
    costs = np.linalg.norm(x[:, :, None] - y[:, None], axis=-1)
    return np.array([cost[scipy.optimize.linear_sum_assignment(cost)].mean() for cost in costs])


def distances_of_outputs(
    transform: Callable[[Array], Array], other: Callable[[Array], Array] | None = None
) -> np.ndarray:
    """Exact distances of the pairs after `transform`, or the second ones after `other`."""
    x, y = map(jnp.asarray, pairs())
    return distances(np.asarray(transform(x)), np.asarray((other or transform)(y)))


def excess(distance: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """By how much the distance exceeds the bound, over the bound."""
    return (distance - bound) / np.maximum(bound, 1e-300)


def bounds_of(bound: Callable, *arguments: np.ndarray) -> np.ndarray:
    """`bound` of every pair: vectorized over the first axis of the arguments."""
    return np.asarray(jax.jit(jax.vmap(bound))(*map(jnp.asarray, arguments)))


def dual(x: np.ndarray, y: np.ndarray, *, pinned: bool = False) -> float:
    """sup E f(X) − E f(Y) over 1-Lipschitz f, with f(0) = 0 if pinned: Eq. 3."""
    z = np.concatenate([x, y, np.zeros((1, x.shape[1]))])
    i, j = np.nonzero(~np.eye(len(z), dtype=bool))
    differences = np.zeros((len(i), len(z)))
    differences[np.arange(len(i)), i], differences[np.arange(len(i)), j] = 1, -1
    weights = np.concatenate([-np.ones(len(x)) / len(x), np.ones(len(y)) / len(y), [0]])
    bounds = [(None, None)] * (len(z) - 1) + [(0, 0) if pinned else (None, None)]
    limits = np.linalg.norm(z[i] - z[j], axis=1)
    if not pinned:
        bounds[0] = (0, 0)  # f is determined up to a constant
    return -scipy.optimize.linprog(weights, differences, limits, bounds=bounds).fun
