"""Theorem 14 on one layer near the invariant representation, and on the stability of the latter."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.bn_decomposed.invariance import CASES, LAYER, SPREAD, WIDTH, invariant_batch
from claims.bn_decomposed.odd_points import cluster_distances
from claims.draws import generator
from geometry.claims import Cases, Claim, Remark, Values
from jaxnorm import recenter

claim = partial(Claim, "Batch Normalization Decomposed")


def _radius(n: int) -> float:
    return float(jax.jit(geometry.odd_points.next_layer)(invariant_batch(n)).radius)


HYPOTHESES_OF_THEOREM_14 = claim(
    "Theorem 14, hypotheses",
    "In some invariant representation, the odd sample has a distance $R > n/(n - 1)$ from the "
    r"mean $\nu$ of the other samples",
    printed=r"Theorem 14 is about a batch $x_1, \ldots, x_n$. This batch must “be an invariant "
    r"representation such that” $\|x_1 - \nu\| = R > n/(n - 1)$, and $\|x_i - \nu\| < 1/n^2$ “for "
    r"all $2 \leq i \leq n$”. Here $\nu$ is the mean of $x_2, \ldots, x_n$",
    corrected=r"Let $R$ be the distance of $x_1$ to the mean $\nu$ of all other samples. For "
    "squared norms, items 1 to 3 of Theorem 14 hold for any batch with $R > 0$, and item 4 holds "
    "for any batch with $R > n/(n - 1)$",
    fault="false",
    why=r"By Definition 12, an invariant representation has $R = \sqrt{n^2 - 2n + 2}/(n - 1)$, "
    "which is smaller than $n/(n - 1)$, so no batch satisfies the hypotheses of Theorem 14.",
)


@HYPOTHESES_OF_THEOREM_14.at_most("n/(n − 1) − R ≤ 0, n = 2, 3 and 20", form="rejected")
def _() -> Values:
    return [n / (n - 1) - _radius(n) for n in (2, 3, 20)]


@HYPOTHESES_OF_THEOREM_14.equal("R² = (n² − 2n + 2)/(n − 1)²", form="corrected")
def _() -> Values:
    return [_radius(n) ** 2 * (n - 1) ** 2 / (n**2 - 2 * n + 2) - 1 for n in (2, 3, 20)]


def expected_norm() -> float:
    """The mean norm E‖x₁′‖ of the first sample after a layer, if the gain makes E‖x₁′‖² equal 1."""
    return geometry.mean_field.expected_norm_factor(WIDTH)


def norm_of_a_wider_layer() -> float:
    """`expected_norm` for one more neuron, which is a wrong number that the checks must reject."""
    return geometry.mean_field.expected_norm_factor(WIDTH + 1)


THEOREM_14_1 = claim(
    "Theorem 14, item 1",
    r"After a layer, the odd sample has the mean norm 1, $\operatorname{E}\|x_1'\| = 1$ (checked "
    "at width $d = 5$)",
    printed="Theorem 14, “the following relations hold”, item 1: "
    r"$\operatorname{E}[\|x_1^{(t+1)}\|] = 1$",
    corrected=r"The mean squared norm of the odd sample is $\operatorname{E}\|x_1'\|^2 = 1$. The "
    "mean norm of the odd sample is $1 - 5/(8d) + O(d^{-2})$",
    fault="false",
    why="The norm of the output varies with the weights, so the mean norm is below the root mean "
    "square of the norm. We read Theorem 14 from a text extraction of the PDF, in which the "
    "formula of item 1 is damaged, but item 2 supports our reading of item 1.",
)
THEOREM_14_1.mean("E‖x₁′‖ = 1", 1.0, LAYER, "norm", form="rejected")
THEOREM_14_1.mean(
    "E‖x₁′‖ = 1 − 5/(8d) + …",
    expected_norm,
    LAYER,
    "norm",
    against=norm_of_a_wider_layer,
    form="corrected",
)


THEOREM_14_2 = claim(
    "Theorem 14, item 2",
    r"The output $\hat\nu$ of a layer for the mean of the cluster has the mean norm "
    r"$\operatorname{E}\|\hat\nu\| = 1/(n - 1)$ (checked at width $d = 5$)",
    printed=r"Theorem 14, “the following relations hold”, item 2: $\operatorname{E}[\|\hat\nu\|] ="
    " 1/(n - 1)$",
    corrected=r"The mean squared norm of the output $\hat\nu$ is $\operatorname{E}\|\hat\nu\|^2 = "
    "1/(n - 1)^2$",
    fault="false",
    why="The proof of item 2 of Theorem 14 computes squared norms, not norms.",
)
THEOREM_14_2.mean("(n − 1) E‖ν̂‖ = 1", 1.0, LAYER, "cluster_norm", form="rejected")
THEOREM_14_2.mean(
    "(n − 1) E‖ν̂‖ = 1 − 5/(8d) + …",
    expected_norm,
    LAYER,
    "cluster_norm",
    against=norm_of_a_wider_layer,
    form="corrected",
)


def _images(key: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs x₁′ and ν̂ of a random layer, and the mean of the outputs x₂′ to xₙ′.

    The arrays have a row for each of many random batches. The vector ν̂ is the output for the mean
    ν of x₂ to xₙ.
    """
    rng = generator(key)
    x = np.asarray(recenter(jnp.asarray(rng.normal(size=(CASES, 6, 4))), axis=1))
    w = rng.normal(size=(4, 30))
    y = np.maximum(x @ w, 0)
    return y[:, 0], np.maximum(x[:, 1:].mean(1) @ w, 0), y[:, 1:].mean(1)


THEOREM_14_3 = claim(
    "Theorem 14, item 3",
    r"$x_1' \cdot \hat\nu = 0$ for all weights",
    remark=Remark(
        "over-reading",
        r"The vector $\hat\nu$ is the output for the mean of the cluster. The output $x_1'$ is "
        r"orthogonal to $\hat\nu$, but not to the mean of the outputs for the samples of the "
        "cluster. Therefore the batch after a layer is not an invariant representation, and "
        "Theorem 14 does not apply to the next layer.",
    ),
    why=r"The recentred vectors satisfy $\tilde x_1 = -(n - 1)\tilde\nu$, so no neuron is "
    r"active at $\tilde x_1$ and at $\tilde\nu$.",
)


@THEOREM_14_3.equal("x₁′ · ν̂ = 0", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    odd, image_of_centre, _ = _images(key)
    return (odd * image_of_centre).sum(1)


@THEOREM_14_3.equal("expected: 0, and items 1 and 2 squared", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(size=(CASES, 6, 4)))
    g = jax.jit(jax.vmap(geometry.odd_points.next_layer))(x).gram
    return [g[:, 0, -1], g[:, 0, 0] - 1, g[:, -1, -1] - 1 / 25]


@THEOREM_14_3.equal("x₁′ · ν′, of the centre of the next layer", form="overread")
def _(key: Key[Array, ""]) -> Values:
    odd, _, centre = _images(key)
    return (odd * centre).sum(1)


def _cluster_at(radius: float, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move the first sample of each batch in `x` to a distance of `radius` from the cluster.

    The cluster consists of all other samples of a batch, and the distance is to the cluster's mean.
    """
    direction = rng.normal(size=(len(x), x.shape[2]))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    x = x.copy()
    x[:, 0] = x[:, 1:].mean(1) + radius * direction
    return x


def _growth_of_distances(x: np.ndarray) -> np.ndarray:
    """The factor by which a layer multiplies ‖xᵢ − xⱼ‖², for samples and centroid of a cluster."""
    extended = np.concatenate([x, x[:, 1:].mean(1, keepdims=True)], 1)
    square = np.square(extended[:, :, None] - extended[:, None]).sum(-1)
    g = np.asarray(jax.jit(jax.vmap(geometry.odd_points.next_layer))(jnp.asarray(x)).gram)
    norms = np.diagonal(g, axis1=1, axis2=2)
    after = norms[:, :, None] + norms[:, None] - 2 * g
    i, j = np.triu_indices(x.shape[1], 1)
    return (after[:, 1:, 1:] / np.where(square > 0, square, 1)[:, 1:, 1:])[:, i, j]


def distance_after_a_layer() -> float:
    """The expected squared distance after a layer between samples 2 and 3 of `SPREAD`."""
    g = geometry.odd_points.next_layer(jnp.asarray(SPREAD)).gram
    return float(g[1, 1] + g[2, 2] - 2 * g[1, 2])


THEOREM_14_4 = claim(
    "Theorem 14, item 4, Equations 112 to 117",
    r"$\operatorname{E}\|x_i' - x_j'\|^2 < \|x_i - x_j\|^2$ in the cluster, for $R > "
    "n/(n - 1)$",
    why=r"$\operatorname{E}\|x_i' - x_j'\|^2 = \alpha(\|x_i - x_j\|^2 - 2(K(\tilde x_i, \tilde "
    r"x_j) - \tilde x_i \cdot \tilde x_j))$, with $K \ge \tilde x_i \cdot \tilde x_j$. Equations "
    r"114 to 116 leave out an expectation before the second norm. Theorem 14 requires $x_i' \ne "
    r"x_j'$, but the last strict inequality in the proof of item 4 needs $\alpha < 1$ and $x_i "
    r"\ne x_j$. The inequality before the last inequality is not strict, because positively "
    "parallel recentred samples give equality.",
)


# The computed growth of squared distances has an error of about 1e-11, because rounding errors are
# 1e-16 and the smallest squared distances are about 1e-5.
@THEOREM_14_4.at_most("growth ≤ α = n²/((n − 1)²R²)", tolerance=1e-10)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for factor in (1.0, 1.5, 3.0):
        x = _cluster_at(factor * 6 / 5, rng.normal(size=(CASES, 6, 3)) / 36, rng)
        yield _growth_of_distances(x) - factor**-2


@THEOREM_14_4.equal("= α, attained by parallel samples", tolerance=1e-6)
def _(key: Key[Array, ""]) -> Values:
    x = np.zeros((CASES, 6, 3))
    x[:, 1:, 0] = generator(key).uniform(-0.05, 0.05, (CASES, 5))
    x[:, 0, 0] = x[:, 1:, 0].mean(1) - 6 / 5
    return _growth_of_distances(x) - 1


THEOREM_14_4.mean("E‖x₂′ − x₃′‖² of a spread cluster", distance_after_a_layer, LAYER, "distance")


def _relative_spread(g: np.ndarray) -> float:
    """The cluster's squared radius over the squared distance from its center to the odd sample."""
    n = len(g)
    weights = np.full(n, 1 / (n - 1))
    weights[0] = 0
    centre = weights @ g @ weights
    square = np.diag(g) - 2 * g @ weights + centre
    return float(square[1:].mean() / square[0])


def _squared_distances(g: np.ndarray) -> float:
    """The sum of the squared distances between the samples of all ordered pairs in the cluster."""
    lengths = np.diag(g)[1:]
    return float((lengths[:, None] + lengths[None] - 2 * g[1:, 1:]).sum())


def _growths_of_spread(key: Array) -> list[tuple[int, float]]:
    """For each of several batch sizes n, the factor by which a layer changes a tiny spread."""
    step, growths = jax.jit(geometry.mean_field_step), []
    for n in (4, 20):
        x = np.array(invariant_batch(n))
        x[1:] += 1e-4 * generator(key).normal(size=(n - 1, 3)) / n
        g = x @ x.T
        spreads = [_relative_spread(np.asarray(h)) for h in (g, step(jnp.asarray(g)))]
        growths.append((n, spreads[1] / spreads[0]))
    return growths


STABILITY = claim(
    "Stability, before Theorem 14",
    "If a batch is near an invariant representation, a layer brings the batch closer to an "
    "invariant representation in expectation",
    printed="Section III, before Theorem 14: “when starting from a representation somewhat "
    "similar to an invariant representation, the next layer brings us closer to an "
    "invariant representation in expectation”",
    corrected="With the variance of Theorem 13, a layer multiplies small squared distances in the "
    r"cluster by $\alpha = n^2/(n^2 - 2n + 2)$, which is above 1. For many samples, the cluster "
    r"stops growing when the angle between two samples is about $3\pi/n$",
    fault="false",
    why=r"By Equation 111, $\operatorname{E}\|x_i' - x_j'\|^2 = \alpha(\|x_i - x_j\|^2 - 2(K - "
    r"\tilde x_i \cdot \tilde x_j))$, where $K$ is the kernel of the samples $\tilde x_i$ and "
    r"$\tilde x_j$. The term $K - \tilde x_i \cdot \tilde x_j$ is of third order in the angle "
    "between the samples, but the squared distance is of second order. For small angles, the term "
    r"of third order is negligible, so the squared distance grows by the factor $\alpha > 1$. "
    "Theorem 14 assumes $R > n/(n - 1)$, which is false after a layer.",
)


@STABILITY.at_most("squared distances in the cluster do not grow, minus 1", form="rejected")
def _(key: Key[Array, ""]) -> Cases:
    for n in (10, 50):
        x = np.array(invariant_batch(n))
        x[1:] += 1e-5 * generator(key).normal(size=(n - 1, 3))
        g = jnp.asarray(x @ x.T)
        # In Theorem 13, the weights have the variance 2α/d with α = n²/(n² − 2n + 2).
        after = n**2 / (n**2 - 2 * n + 2) * geometry.mean_field_step(g)
        spreads = [_squared_distances(np.asarray(h)) for h in (g, after)]
        yield spreads[1] / spreads[0] - 1


@STABILITY.equal("distance over 3πR/(√2 n²), many points", 1.0, tolerance=0.01, form="corrected")
def _() -> Values:
    return [cluster_distances(n)[1] * math.sqrt(2) * n**2 / (3 * math.pi) for n in (300, 1000)]


@STABILITY.equal(
    "the squared spread of a tiny cluster grows by n²/(n² − 2n + 2)",
    1.0,
    tolerance=5e-3,
    form="corrected",
)
def _(key: Key[Array, ""]) -> Values:
    return [growth / geometry.odd_points.cluster_growth(n) for n, growth in _growths_of_spread(key)]
