"""Figure 3 and the remark on the odd point, in recentered networks of infinite width."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values

claim = partial(Claim, "Batch Normalization Decomposed")


SYMMETRIC_BATCHES = claim(
    "Symmetric batches (ours)",
    r"Samples with equal norms and equal angles reach the angle $\arccos \kappa(-1/(n - 1))$",
)


@SYMMETRIC_BATCHES.equal("after one layer and after two")
def _() -> Cases:
    step = jax.jit(geometry.mean_field_step)
    for n in (3, 9):
        g = step(jnp.asarray(np.eye(n)))
        for h in (g, step(g)):
            yield math.acos(float(h[0, 1] / h[0, 0])) - geometry.odd_points.recentred_angle(n)


def _turned_odd(g: Array, layers: int) -> Array:
    """The Gram matrix of a batch after `layers` layers of infinite width, divided by its trace."""

    def layer(g: Array, _: None) -> tuple[Array, None]:
        g = geometry.mean_field_step(g)
        return g / jnp.trace(g), None

    return jax.lax.scan(layer, g, length=layers)[0]


def ends_of_batches(key: Key[Array, ""]) -> Statistics:
    """Whether one of 10 Gaussian samples becomes odd, and whether the longest sample becomes odd.

    The entry "odd" is 1 if a sample becomes odd at infinite width, and otherwise 0. If a sample
    becomes odd, "longest" is an indicator minus 0.9, where the indicator is 1 if this sample was
    the longest after recentering. The mean of "longest" is positive if more than 90 % of the odd
    samples were the longest. The entry "at_width_50" is 1 if the longest sample after recentering
    is also the longest sample after 60 layers of width 50.
    """
    batch, weights = jax.random.split(key)
    x = normal(batch, 10, 10)
    longest = jnp.argmax(jnp.linalg.norm(x - x.mean(0, keepdims=True), axis=1))
    g = _turned_odd(geometry.gram(x), 500)
    odd = geometry.is_odd(g).astype(jnp.float32)
    is_longest = (geometry.odd_point(g).index == longest).astype(jnp.float32)
    net = geometry.random_network(weights, x, depth=60, width=50, layers=(60,))
    at_width_50 = geometry.odd_point(net.statistics[0]).index == longest
    return {
        "odd": odd,
        "longest": odd * (is_longest - 0.9),
        "at_width_50": at_width_50.astype(jnp.float32),
    }


ENDS = Draws(ends_of_batches, 800, batch_size=100)


REMARK_ON_THE_ODD_POINT = claim(
    "Remark on the odd point",
    "The odd point is typically the sample of the largest norm",
    corrected="At infinite width, the odd point is the sample with the largest norm after "
    "recentering",
    remark=Remark(
        "over-reading",
        "At finite width, the random weights decide which sample becomes the odd point, unless "
        "one sample is a clear outlier. At width 50, the longest of ten Gaussian samples is also "
        "the longest sample after the last layer in a fifth of all networks. By chance alone, the "
        "longest of ten samples would remain the longest in a tenth of all networks.",
    ),
    why="At infinite width, the norms alone decide which sample becomes the odd point. If the "
    "ratio of the largest norm to the other norms exceeds $1 + 1.15/n$, the ratio grows from "
    "layer to layer. A ratio below this threshold returns to 1.",
)
REMARK_ON_THE_ODD_POINT.mean(
    "P(one turns odd) ≥ ½, n = 10, width ∞ (0.87)", 0.5, ENDS, "odd", side="≥", against=0.0
)
REMARK_ON_THE_ODD_POINT.mean(
    "in 90 % of these batches, the odd sample is the longest recentred sample",
    0.0,
    ENDS,
    "longest",
    side="≥",
    against=-0.3,
)


@REMARK_ON_THE_ODD_POINT.equal("one longer sample escapes from a known ratio on", form="corrected")
def _() -> Cases:
    ends = jax.jit(lambda g: geometry.is_odd(_turned_odd(g, 3000)))
    for n in (7, 10):
        cosine = math.cos(geometry.odd_points.recentred_angle(n))
        escape = geometry.odd_points.escape_ratio(n) - 1
        for factor in (0.9, 1.1):
            norms = np.ones(n)
            norms[2] += factor * escape
            g = np.outer(norms, norms) * np.where(np.eye(n) == 1, 1, cosine)
            yield float(ends(jnp.asarray(g))) - (factor > 1)


REMARK_ON_THE_ODD_POINT.mean(
    "P(the longest sample is the longest after 60 layers of width 50) ≥ ½",
    0.5,
    ENDS,
    "at_width_50",
    side="≥",
    form="overread",
)


FIGURE_3 = claim(
    "Figure 3",
    "One point becomes an odd point, and all other points collapse into one point",
    printed="Introduction: “after enough layers, all the data points in the batch collapse to one"
    " point, except for a single odd data point that escapes far away from the cluster in"
    " an orthogonal direction”",
    corrected="At infinite width and for at least seven points, a stable state with an odd point "
    "exists. In the stable state, the angle between two points of the cluster is not 0, and is "
    r"about $3\pi/n$ for many points. A batch with nearly equal norms does not reach the state "
    "with an odd point",
    fault="false",
    why=r"A layer multiplies the squared angle $\theta^2$ between two points of the cluster by "
    r"$\alpha(1 - 2\theta/(3\pi))$ with $\alpha = n^2/(n^2 - 2n + 2)$. The angle stops changing "
    r"when the factor $\alpha(1 - 2\theta/(3\pi))$ is 1. For 50 points, the distance of two "
    "points of the cluster is 0.0037 times the distance of the odd point from the centre of the "
    "cluster. Therefore the cluster in a figure looks like a single point.",
)


@FIGURE_3.equal("angle in the cluster of 49 = 0", tolerance=1.0, form="rejected")
def _() -> Values:
    return math.degrees(geometry.odd_points.odd_state(50).spread)


@FIGURE_3.equal(
    "angle in the cluster = 3π/n for many points", 1.0, tolerance=0.03, form="corrected"
)
def _() -> Values:
    return [geometry.odd_points.odd_state(n).spread * n / (3 * math.pi) for n in (300, 1000)]


def _gram_of_odd_state(n: int) -> np.ndarray:
    """A Gram matrix of n samples that a layer does not change; the first sample is odd."""
    state = geometry.odd_points.odd_state(n)
    norms = np.array([state.norm_ratio] + [1.0] * (n - 1))
    cosines = np.full((n, n), math.cos(state.spread))
    cosines[0], cosines[:, 0] = math.cos(state.angle), math.cos(state.angle)
    np.fill_diagonal(cosines, 1)
    return np.outer(norms, norms) * cosines


def cluster_distances(n: int) -> tuple[float, float]:
    """Two distances in a cluster, divided by the distance from the odd sample to the center.

    The first distance is between two samples of the cluster. The second distance is from a sample
    of the cluster to the cluster's center.
    """
    g = _gram_of_odd_state(n)
    pair = g[1, 1] + g[2, 2] - 2 * g[1, 2]
    centre = np.full(n, 1 / (n - 1))
    centre[0] = 0
    odd, inner = (g[i, i] - 2 * g[i] @ centre + centre @ g @ centre for i in (0, 1))
    return math.sqrt(pair / odd), math.sqrt(inner / odd)


@FIGURE_3.equal(
    "distance in the cluster of 49 = 0.0037 R", 0.0037, tolerance=5e-5, form="corrected"
)
def _() -> Values:
    return cluster_distances(50)[0]


@FIGURE_3.equal(
    "a layer does not change the odd states of 7 and 10 points", tolerance=1e-8, form="corrected"
)
def _() -> Cases:
    step, is_odd = jax.jit(geometry.mean_field_step), jax.jit(geometry.is_odd)
    for n in (7, 10):
        g = _gram_of_odd_state(n)
        after = np.asarray(step(jnp.asarray(g)))
        yield after / after[0, 0] - g / g[0, 0]
        yield not is_odd(jnp.asarray(g))
