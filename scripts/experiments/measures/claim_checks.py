"""Theorems checked by Monte Carlo, and the odd point drawn, as parts of `results.json`."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import geometry
from experiments.measures import claim_results
from geometry.claims import ALL, Claim, check_all, name_of

# What compiles and runs within seconds; scripts/check_theorems.py has all.
DRAWS = {"three_filters", "next_layer", "lemma_3", "norm_ratios", "figure_1"}
DRAWS |= {"in_the_first_cell", "radial_transport", "mean_difference"}
PRECISION = 1.5
POINTS, WIDTH, DEPTH = 50, 500, 100
TREE_POINTS = 16


def claims(seed: int) -> list[dict[str, Any]]:
    """Claims of `geometry.claims` that few draws decide, in printed and in corrected form."""
    verdicts = check_all(_sampled(), jax.random.key(seed), precision=PRECISION)
    return [claim_results.described(verdict) for verdict in verdicts]


def _sampled() -> list[Claim]:
    """Claims that are wrong as printed, with those checks alone that read the chosen draws."""
    trimmed = (
        replace(claim, checks=tuple(part for part in claim.checks if name_of(part) in DRAWS))
        for claim in ALL
    )
    return [claim for claim in trimmed if any(part.form == "rejected" for part in claim.checks)]


def odd_point(seed: int) -> dict[str, Any]:
    """The odd point of a random network of recentering and ReLU, and of the recentering tree."""
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
    """Coordinates of the rows of `x` in the plane of their largest variance."""
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :2] * s[:2]


def _tree(x: Float[Array, " n"]) -> dict[str, Any]:
    x = jnp.sort(x)
    gram = jax.jit(geometry.tree_gram, static_argnums=1)(x, DEPTH).gram
    found = jax.jit(geometry.odd_point)(gram)
    norms = jnp.sqrt(jnp.diagonal(gram))
    cosine = gram[0, -1] / (norms[0] * norms[-1])
    return {
        "points": len(x),
        "depth": DEPTH,
        "norms": (norms / norms.max()).tolist(),
        "inputs": x.tolist(),
        "index": int(found.index),
        "norm_ratio": float(found.norm_ratio),
        "angle_ends_degrees": float(jnp.degrees(jnp.arccos(jnp.clip(cosine, -1, 1)))),
    }
