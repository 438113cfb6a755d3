"""Sections 3.5 and 3.6: unitized batch norm of vectors and of images, Algorithms 1 and 2."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from scipy.special import hyp1f1

from geometry.claims._draws import generator, normal
from geometry.claims._types import Computed, Draws, Remark, Sampled, Statistics, Values, claims_of
from jaxnorm import BatchStatistics, batch_statistics, bessel, unitized_batch_norm
from jaxnorm._numerics import chi_mean

claim = claims_of("Unitization")

HEIGHT, WIDTH, CHANNELS = 8, 8, 16
SIZE = HEIGHT * WIDTH * CHANNELS
SHIFT = 1.0  # of every pixel, in standard deviations, up in one Gaussian and down in the other


def algorithm_1(key: Key[Array, ""]) -> Values:
    """The layer minus Algorithm 1 line by line."""
    rng = generator(key)
    x, alpha, gamma, beta = rng.normal(2, 3, (20, 5)), *rng.uniform(0, 1, (3, 5))
    y, _ = unitized_batch_norm(
        jnp.asarray(x), jnp.asarray(alpha), jnp.asarray(gamma), jnp.asarray(beta), eps=1e-3
    )
    hat = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    p = 1 / np.sqrt(np.square(hat).sum(1, keepdims=True) + 1e-3)
    return np.asarray(y) - (gamma * (p * alpha + 1 - alpha) * hat + beta)


ALGORITHM_1 = claim(
    "Algorithm 1",
    "Batch norm, then [p alpha + 1 − alpha] with p = 1/√(‖x̂‖² + eps), then the affine map",
    Computed("line by line", algorithm_1, tolerance=1e-12),
)


def mean_difference(key: Key[Array, ""]) -> Statistics:
    """How much longer images of mean +m u lie along u than images of mean −m u."""
    sign = jnp.asarray([1.0, -1.0], jnp.float32).reshape(2, 1, 1, 1, 1)
    x = sign * SHIFT + normal(key, 2, 20, HEIGHT, WIDTH, CHANNELS)
    one = jnp.ones(CHANNELS, jnp.float32)
    standard = BatchStatistics(0 * one, one, jnp.ones((), jnp.float32))

    def along(x: Array) -> Array:
        y, _ = unitized_batch_norm(x, one, statistics=standard, eps=0.0)
        return y.sum((1, 2, 3)) / SIZE**0.5

    return {"mean_difference": along(x[0]) - along(x[1])}


IMAGES = Draws(mean_difference, 2000, batch_size=100, draws_per_key=20)


def mean_cosine() -> float:
    """E cos(u, X) of X ~ N(m u, I) in R^d: (m/d) E‖z‖ ₁F₁(1/2; d/2 + 1; −m²/2), z ~ N(0, I)."""
    m = SHIFT * SIZE**0.5
    return m / SIZE * chi_mean(SIZE) * float(hyp1f1(0.5, SIZE / 2 + 1, -(m**2) / 2))


def algorithm_2(key: Key[Array, ""]) -> Values:
    """The layer minus Algorithm 2 line by line."""
    rng = generator(key)
    x, alpha = rng.normal(2, 3, (6, 4, 3, 5)), rng.uniform(0, 1, 5)
    y, _ = unitized_batch_norm(jnp.asarray(x), jnp.asarray(alpha), eps=1e-3)
    hat = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3)
    s = np.square(hat).sum((1, 2, 3), keepdims=True) / 12**2
    p = 1 / np.sqrt(s + 1e-3)
    return np.asarray(y) - (p * alpha + 1 - alpha) * hat


def norms_of_images(key: Key[Array, ""]) -> Values:
    """Norms of images at alpha 1 over HW, minus 1: Theorem 3.1 would have 1 in place of HW."""
    x = jnp.asarray(generator(key).normal(size=(7, HEIGHT, WIDTH, 3)))
    y, _ = unitized_batch_norm(x, jnp.ones(3), eps=1e-12)
    return jnp.sqrt(jnp.square(y).sum((1, 2, 3))) / (HEIGHT * WIDTH) - 1


ALGORITHM_2 = claim(
    "Algorithm 2 at alpha = 1, claimed to obey Theorem 3.1",
    "‖E g(X) − E g(Y)‖ ≤ W of 8×8×16 images X ~ N(1, I), Y ~ N(−1, I)",
    Sampled.rejected("W ≤ 2", 2.0, IMAGES, "mean_difference", side="≤"),
    Sampled.corrected(
        "‖E g(X) − E g(Y)‖ = 2HW E cos(u, X)",
        lambda: 2 * HEIGHT * WIDTH * mean_cosine(),
        IMAGES,
        "mean_difference",
    ),
    Computed("line by line", algorithm_2, tolerance=1e-12),
    Computed.corrected("every image has the norm HW", norms_of_images),
    printed="W ≤ 2",
    corrected="2HW E cos(u, X) ≤ W ≤ 2HW: line 9's n = HW gives every image the norm HW",
)


def permuted_pixels(key: Key[Array, ""]) -> Values:
    """Figure 1 (c): the layer of permuted pixels minus the permuted layer."""
    x = jnp.asarray(generator(key).normal(size=(5, 4, 4, 3)))
    alpha = jnp.asarray([0.2, 0.5, 1.0])
    y, other = (unitized_batch_norm(part, alpha)[0] for part in (x, x[:, ::-1, ::-1]))
    return other - y[:, ::-1, ::-1]


FIGURE_1 = claim(
    "Figure 1",
    "Statistics over the batch, over a pixel's channels, or over an image",
    Computed("(c) permuting pixels permutes the outputs", permuted_pixels, tolerance=1e-12),
)


def running_variance(key: Key[Array, ""]) -> Values:
    """The corrected variance minus NumPy's with n − 1."""
    x = generator(key).normal(size=(9, 3))
    statistics = batch_statistics(jnp.asarray(x))
    return np.asarray(statistics.var * bessel(statistics.count)) - x.var(0, ddof=1)


RUNNING_STATISTICS = claim(
    "Running statistics",
    "Inference uses averages of batch means and of corrected variances",
    Computed("n/(n − 1) makes the variance unbiased", running_variance, tolerance=1e-12),
    remark=Remark("over-reading", "under-specified"),
)
