"""Measure the odd point (the longest sample) in a random network and in the recentering tree."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import geometry

POINTS, WIDTH, DEPTH = 50, 500, 100
TREE_POINTS = 16


def odd_point(seed: int) -> dict[str, Any]:
    """The odd points of a random network with recentering and ReLU, and of the recentering tree."""
    inputs, weights, tree = jax.random.split(jax.random.key(seed), 3)
    return {
        "network": _network(weights, jax.random.normal(inputs, (POINTS, POINTS))),
        "tree": _tree(jax.random.normal(tree, (TREE_POINTS,))),
    }


def _network(key: Array, x: Float[Array, "n k"]) -> dict[str, Any]:
    batch = geometry.random_network(key, x, depth=DEPTH, width=WIDTH)
    last = jax.jit(geometry.odd_point)(batch.statistics[-1])
    norms = jnp.sqrt(jnp.diagonal(batch.statistics, axis1=1, axis2=2))
    odd = norms[:, last.index]
    others = (norms.sum(1) - odd) / (POINTS - 1)
    angle, spread = (float(jnp.degrees(a)) for a in (last.angle, last.spread))
    return {
        "points": POINTS,
        "width": WIDTH,
        "depth": DEPTH,
        "index": int(last.index),
        "projection": _principal_plane(np.asarray(batch.x, np.float64)).tolist(),
        "norm_ratio": (odd / others).tolist(),
        "angle_degrees": angle,
        "spread_degrees": spread,
        "is_odd": bool(float(last.norm_ratio) >= (POINTS - 1) / 2 and angle >= 80 and spread <= 45),
    }


def _principal_plane(x: np.ndarray) -> np.ndarray:
    """The first two principal components of the rows of `x`."""
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :2] * s[:2]


def _tree(x: Float[Array, " n"]) -> dict[str, Any]:
    x = jnp.sort(x)
    gram = jax.jit(geometry.tree_gram, static_argnums=1)(x, DEPTH).gram
    odd = jax.jit(geometry.odd_point)(gram)
    norms = jnp.sqrt(jnp.diagonal(gram))
    cosine = gram[0, -1] / (norms[0] * norms[-1])
    return {
        "points": len(x),
        "depth": DEPTH,
        "norms": (norms / norms.max()).tolist(),
        "inputs": x.tolist(),
        "index": int(odd.index),
        "norm_ratio": float(odd.norm_ratio),
        "angle_ends_degrees": float(jnp.degrees(jnp.arccos(jnp.clip(cosine, -1, 1)))),
    }
