"""Measure how stable Gram matrices are under random recentering layers, for eight activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.measures.odd_certificate import certificate
from geometry import mean_field, odd_points

# Each activation function, with the points at which its slope or another derivative jumps.
ACTIVATIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[float, ...]]] = {
    "ReLU": (jax.nn.relu, (0.0,)),
    "leaky ReLU, slope 0.1": (partial(jax.nn.leaky_relu, negative_slope=0.1), (0.0,)),
    "absolute value": (jnp.abs, (0.0,)),
    "ELU": (jax.nn.elu, (0.0,)),
    "GELU": (partial(jax.nn.gelu, approximate=False), ()),
    "SiLU": (jax.nn.silu, ()),
    "softplus": (jax.nn.softplus, ()),
    "tanh": (jnp.tanh, ()),
}
SIZES = (6, 7, 10, 30)
ANGLES = np.linspace(0.0, np.pi, 61)
# Each of DRAWS random networks has the width WIDTH, LAYERS layers and a batch of DRAWN samples.
WIDTH, LAYERS, DRAWS, DRAWN = 1000, 400, 4, 10


def measure(name: str) -> dict[str, Any]:
    """Measure one activation's kernel map, the stability of its batches, and random networks."""
    function, kinks = ACTIVATIONS[name]
    with jax.enable_x64(True):
        kernel = jax.jit(mean_field.kernel_map, static_argnums=(0, 1))(function, kinks)
        point = jax.jit(mean_field.fixed_point)(kernel)
        found = {
            "angles": np.arccos(np.clip(jax.jit(kernel)(jnp.cos(ANGLES)), -1, 1)),
            "slope": float(kernel.slope),
            "cubic": float(mean_field.cubic_term(kernel)),
            "tail": float(kernel.tail),
            "fixed_point": {key: float(x) for key, x in point._asdict().items()},
        }
    batches = {str(n): batch(n, name) for n in SIZES}
    return found | {"batches": batches, "network": networks(function)}


def batch(n: int, name: str) -> dict[str, Any]:
    """The stability of two Gram matrices of n samples, one with an odd sample and one symmetric."""
    function, kinks = ACTIVATIONS[name]
    odd = odd_points.odd_stability(n, function, kinks)
    walk = odd_points.spread_distribution(n, WIDTH, function, kinks)
    confirmed = None if odd is None else certificate(name, n, odd.state)
    return {
        "odd": None if odd is None else _plain(odd),
        "certificate": None if confirmed is None else confirmed._asdict(),
        "symmetric": _plain(odd_points.symmetric_stability(n, function, kinks)),
        "expansion": odd_points.cluster_spread(n, function, kinks),
        "walk": None if walk is None else walk._asdict(),
    }


def networks(function: Callable) -> dict[str, Any]:
    """Measure random networks of finite width after their last layer.

    In the input, the first sample is four times as long as the other samples. The result has, for
    each quantity of the odd point, the mean over networks and its standard error.
    """
    rng = np.random.default_rng(0)
    ends = [_network(function, rng) for _ in range(DRAWS)]
    return {
        key: {"mean": float(np.mean(values)), "stderr": float(np.std(values, ddof=1) / DRAWS**0.5)}
        for key, values in zip(("norm_ratio", "angle", "spread"), np.transpose(ends), strict=True)
    }


def _network(function: Callable, rng: np.random.Generator) -> list[float]:
    x = rng.standard_normal((DRAWN, DRAWN))
    x[0] *= 4
    gram, run = x @ x.T, jax.jit(function)
    for _ in range(LAYERS):
        h = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
        values, vectors = np.linalg.eigh(h * DRAWN / np.trace(h))
        root = vectors * np.sqrt(np.maximum(values, 0))
        z = root @ rng.standard_normal((DRAWN, WIDTH))
        h = np.asarray(run(jnp.asarray(z, jnp.float32)), float)
        gram = h @ h.T / WIDTH
    odd = _odd_point(jnp.asarray(gram, jnp.float32))
    return [float(odd.norm_ratio), float(odd.angle), float(odd.spread)]


_odd_point = jax.jit(odd_points.odd_point)


def _plain(found: odd_points.Stability) -> dict[str, Any]:
    return found._asdict() | {"state": found.state._asdict()}
