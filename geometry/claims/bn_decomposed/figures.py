"""Figures 2, 3, 5 and 6, and the discussion."""

import math
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator, normal
from geometry.claims._types import Computed, Remark, Values, claims_of
from jaxnorm import rescale_rms, standardize

claim = claims_of("Batch Normalization Decomposed")

FIGURE_2 = claim(
    "Figure 2",
    "Accuracy and rank of networks with batch norm, with He's start and without",
    reason="trains networks: docs/results/geometry has it, by scripts/reproduce_geometry.py",
)


def spread_of_the_odd_state(key: Key[Array, ""]) -> Values:
    """Angle inside the cluster of 49 points, in degrees."""
    return math.degrees(geometry.odd_points.odd_state(50).spread)


def spread_over_its_limit(key: Key[Array, ""]) -> Values:
    """Angle inside the cluster over 3π/n: tends to 1."""
    return [geometry.odd_points.odd_state(n).spread * n / (3 * math.pi) for n in (300, 1000)]


FIGURE_3 = claim(
    "Figure 3",
    "One point turns odd, the others collapse into one",
    Computed.rejected("angle in the cluster of 49 = 0", spread_of_the_odd_state, tolerance=1.0),
    Computed.corrected(
        "angle in the cluster = 3π/n for many points",
        spread_over_its_limit,
        predicted=1.0,
        tolerance=0.03,
    ),
    printed="the cluster is a point",
    corrected="it keeps a spread that tends to 3π/n, in radians",
)


def angle_of_figure_5(key: Key[Array, ""]) -> Values:
    """With both parts of batch norm, degrees at infinite width, 100 samples."""
    step = jax.jit(geometry.mean_field.standardize_step)
    g = jnp.asarray(np.eye(100))
    for _ in range(5):
        g = step(g)
    return [math.degrees(math.acos(float(g[0, 1] / g[0, 0])))]


FIGURE_5_RECENTRED = claim(
    "Figure 5, with recentering",
    "Angles after 30 layers are 75 degrees",
    Computed.rejected(
        "75 degrees within 2, n = 100", angle_of_figure_5, predicted=75.0, tolerance=2.0
    ),
    Computed.corrected(
        "71.74 degrees, n = 100", angle_of_figure_5, predicted=71.74, tolerance=0.01
    ),
    printed="75°",
    corrected="arccos κ(−1/(n − 1)): 71.44° for many samples, 75° for nine",
)


def angle_without_recentering(key: Key[Array, ""]) -> Values:
    """With rescaling about zero alone: the fixed point, in degrees."""
    step = jax.jit(geometry.mean_field.rms_cosine_step)
    cosine = jnp.asarray(0.3)
    for _ in range(40):
        cosine = step(cosine)
    return [math.degrees(math.acos(float(cosine))), math.degrees(geometry.mean_field.rms_angle())]


FIGURE_5_NOT_RECENTRED = claim(
    "Figure 5, without recentering",
    "Angles after 30 layers are 60 degrees",
    Computed.rejected(
        "60 degrees within 1", angle_without_recentering, predicted=60.0, tolerance=1.0
    ),
    Computed.corrected(
        "58.753 degrees about zero", angle_without_recentering, predicted=58.753, tolerance=1e-3
    ),
    printed="60°",
    corrected="58.75° for rescaling about zero; about the mean angles collapse",
)


def answering_neurons(key: Key[Array, ""]) -> Values:
    """Share of neurons that answer 90 % of inputs with recentering, and its excess over without."""
    shares = [_always(_network_of_figure_6(part)) for part in (standardize, rescale_rms)]
    return [shares[0], shares[0] - shares[1] + 0.005]


def zeros_of_neurons(key: Key[Array, ""]) -> Values:
    """Share of activities that are 0."""
    return float((_network_of_figure_6(standardize) == 0).mean())


def _always(y: np.ndarray) -> float:
    """Share of neurons above a tenth of their maximum for 90 % of inputs."""
    return float(((y > 0.1 * y.max(0)).mean(0) > 0.9).mean())


@cache
def _network_of_figure_6(normalization: Callable[[Array], Array]) -> np.ndarray:
    inputs, weights = jax.random.split(jax.random.key(6))
    run = partial(
        geometry.random_network,
        depth=30,
        width=400,
        normalization=normalization,
        homogeneous=False,
        layers=(30,),
    )
    return np.asarray(jax.jit(run)(weights, normal(inputs, 50, 50)).x)


FIGURE_6 = claim(
    "Figure 6",
    "Recentering makes neurons answer few inputs",
    Computed("no neuron answers 90 % of inputs, some do without", answering_neurons, "inequality"),
    Computed.corrected(
        "half the activities are 0", zeros_of_neurons, predicted=0.5, tolerance=0.02
    ),
    printed="negligible for most inputs",
    corrected="half of the activities are 0, the others half-Gaussian",
    remark=Remark("loose", "loose"),
)


def one_neuron_a_point(key: Key[Array, ""]) -> Values:
    """ReLU(xW + b) − I of points on a sphere."""
    x = generator(key).normal(size=(12, 4))
    x = jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
    w, b = geometry.networks.neuron_per_point(x)
    return jax.nn.relu(x @ w + b[None]) - jnp.eye(12)


ONE_NEURON_A_POINT = claim(
    "Discussion, one neuron per data point",
    "Neurons can be chosen so that each fires for one data point only",
    Computed("ReLU(xW + b) = I", one_neuron_a_point),
    remark=Remark("hypothesis", "feasible for vertices of the hull"),
)
