"""Sections 3.5 and 3.6, with Algorithms 1 and 2: unitized batch norm of vectors and images."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from scipy.special import hyp1f1

from claims.draws import generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from jaxnorm import (
    BatchStatistics,
    batch_norm,
    batch_statistics,
    bessel,
    shift,
    unitized_batch_norm,
)
from jaxnorm.internal import chi_mean

claim = partial(Claim, "Unitization")

HEIGHT, WIDTH, CHANNELS = 8, 8, 16
SIZE = HEIGHT * WIDTH * CHANNELS
# This number of standard deviations is added to every pixel of one set of images, and subtracted
# from every pixel of the other set.
SHIFT = 1.0


ALGORITHM_1 = claim(
    "Algorithm 1",
    r"Algorithm 1 computes batch norm, multiplies by $[p\,\alpha + 1 - \alpha]$ with $p = "
    r"1/\sqrt{\|\hat{x}\|^2 + \varepsilon}$, and applies the affine map",
)


@ALGORITHM_1.equal("line by line", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    x, (alpha, gamma, beta) = rng.normal(2, 3, (20, 5)), rng.uniform(0, 1, (3, 5))
    other = batch_statistics(jnp.asarray(rng.normal(1, 2, (9, 5))))
    for given, mean, var in ((None, x.mean(0), x.var(0)), (other, other.mean, other.var)):
        a, scale, bias = map(jnp.asarray, (alpha, gamma, beta))
        y, _ = unitized_batch_norm(jnp.asarray(x), a, scale, bias, given, eps=1e-3)
        hat = (x - np.asarray(mean)) / np.sqrt(np.asarray(var) + 1e-3)
        p = 1 / np.sqrt(np.square(hat).sum(1, keepdims=True) + 1e-3)
        yield np.asarray(y) - (gamma * (p * alpha + 1 - alpha) * hat + beta)


@ALGORITHM_1.equal("at alpha = 0, the initial value, the layer is batch norm")
def _(key: Key[Array, ""]) -> Values:
    x = jnp.asarray(generator(key).normal(2, 3, (20, 5)))
    return unitized_batch_norm(x, jnp.zeros(5))[0] - batch_norm(x)[0]


def mean_difference(key: Key[Array, ""]) -> Statistics:
    """How far apart, along u, the outputs for images with mean m u and with mean −m u are.

    An image has d elements, u is (1, …, 1)/√d, and m is `SHIFT` √d.
    """
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
    """The mean cosine between u and X ~ N(m u, I) in d dimensions.

    The mean is (m/d) E‖z‖ ₁F₁(1/2; d/2 + 1; −m²/2), where z ~ N(0, I).
    """
    m = SHIFT * SIZE**0.5
    return m / SIZE * chi_mean(SIZE) * float(hyp1f1(0.5, SIZE / 2 + 1, -(m**2) / 2))


def _normalized(x: np.ndarray) -> np.ndarray:
    """Normalize `x` by moments over batch and pixels (Algorithm 2, line 5, and Figure 1 (a))."""
    return (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3)


def _unitized_images(key: Key[Array, ""], alpha: float) -> Array:
    """The outputs of unitized batch norm for an image and its negative."""
    x = jnp.asarray(generator(key).normal(size=(1, HEIGHT, WIDTH, 3)))
    return unitized_batch_norm(jnp.concatenate([x, -x]), jnp.full(3, alpha), eps=1e-12)[0]


ALGORITHM_2 = claim(
    "Algorithm 2",
    r"For images, $s = \sum \hat{x}^2/(nHW)$ is summed over all pixels and channels of "
    "an image, with $n = HW$ by default",
    printed=r"Algorithm 2, line 9: $s \leftarrow s/(nHW)$, with $n$ set to $HW$ by default",
    corrected=r"At $\alpha = 1$, the bound of the distance of images with $HW$ pixels is $2HW$, "
    "and the bound is attained",
    remark=Remark(
        "over-reading",
        "Theorem 3.1 assumes outputs of norm 1, but line 9 of Algorithm 2 divides an image $x$ by "
        r"$\|x\|/(HW)$, where $HW$ is the number of pixels. At $\alpha = 1$, an image has the norm "
        "$HW$, so the bound of the distance between two sets of images is $2HW$, not 2. For batch "
        r"norm and $C$ channels, the bound is $2\sqrt{C\,HW}$, which is smaller than $2HW$ if $HW "
        "> C$.",
    ),
    why=r"The sum in Algorithm 2 is $\sum \hat{x}^2 = HW\,n\,s$, and therefore $\|p\,\hat{x}\| = "
    r"\sqrt{n\,HW}$.",
)


@ALGORITHM_2.equal("line by line", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    x, (alpha, gamma, beta) = rng.normal(2, 3, (6, 4, 3, 5)), rng.uniform(0, 1, (3, 5))
    for pixels, n in ((None, 12), (3, 3)):
        a, scale, bias = map(jnp.asarray, (alpha, gamma, beta))
        y, _ = unitized_batch_norm(jnp.asarray(x), a, scale, bias, eps=1e-3, pixels=pixels)
        s = np.square(_normalized(x)).sum((1, 2, 3), keepdims=True) / (n * 12)
        p = 1 / np.sqrt(s + 1e-3)
        yield np.asarray(y) - (gamma * (p * alpha + 1 - alpha) * _normalized(x) + beta)


ALGORITHM_2.mean(
    "W ≤ 2 at alpha = 1 of images N(1, I) and N(−1, I)",
    2.0,
    IMAGES,
    "mean_difference",
    side="≤",
    form="overread",
)
ALGORITHM_2.mean(
    "‖E g(X) − E g(Y)‖ = 2HW E cos(u, X)",
    lambda: 2 * HEIGHT * WIDTH * mean_cosine(),
    IMAGES,
    "mean_difference",
    form="corrected",
)


@ALGORITHM_2.equal("every image has the norm HW", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    y = _unitized_images(key, 1.0)
    return jnp.sqrt(jnp.square(y).sum((1, 2, 3))) / (HEIGHT * WIDTH) - 1


@ALGORITHM_2.equal("W of an image and its negative is 2HW, at alpha = 0 2√(C HW)", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    unitized, normalized = (
        shift.emd(y[:1], y[1:]) for y in (_unitized_images(key, a) for a in (1.0, 0.0))
    )
    pixels = HEIGHT * WIDTH
    return [unitized / (2 * pixels) - 1, normalized / (2 * (3 * pixels) ** 0.5) - 1]


def _ratios_of_pixels(key: Key[Array, ""], *, per_pixel: bool) -> np.ndarray:
    x = generator(key).normal(size=(5, 4, 4, 3))
    alpha = jnp.asarray([0.2, 0.5, 1.0])
    y, _ = unitized_batch_norm(jnp.asarray(x), alpha, eps=1e-3, per_pixel=per_pixel)
    factor = np.asarray(y) / _normalized(x)
    return factor / factor[:, :1, :1] - 1


FIGURE_1 = claim(
    "Figure 1",
    "In Figure 1, moments are taken over the batch and all pixels (a), and norms over the "
    "channels of a pixel (b) or over an image (c)",
    why="Part (b) of Figure 1 shows an algorithm that divides each pixel by the norm of the "
    "pixel. The paper rejects this algorithm, because the division changes the ratios between "
    "pixels.",
)


@FIGURE_1.equal("(a) moments of each channel", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(2, 3, (5, 4, 3, 6))
    found = batch_statistics(jnp.asarray(x))
    return [
        np.asarray(found.mean) - x.mean((0, 1, 2)),
        np.asarray(found.var) - x.var((0, 1, 2)),
        float(found.count) - 5 * 4 * 3,
    ]


@FIGURE_1.equal("(b) the norm of each pixel", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(2, 3, (5, 4, 3, 6))
    y, _ = unitized_batch_norm(jnp.asarray(x), jnp.ones(6), eps=1e-3, per_pixel=True)
    square = np.square(_normalized(x)).sum(-1, keepdims=True)
    return np.asarray(y) - _normalized(x) / np.sqrt(square + 1e-3)


@FIGURE_1.equal("(c) ratios of pixels of a channel remain")
def _(key: Key[Array, ""]) -> Values:
    return _ratios_of_pixels(key, per_pixel=False)


@FIGURE_1.equal("(b) ratios of pixels of a channel remain", tolerance=0.01, form="overread")
def _(key: Key[Array, ""]) -> Values:
    return _ratios_of_pixels(key, per_pixel=True)


RUNNING_STATISTICS = claim(
    "Section 3.5, running statistics",
    "Inference uses running averages of batch means and of unbiased variances, as "
    "Ioffe and Szegedy do",
    printed=r"Section 3.5: “The moments $\mu$ and $\sigma^2$ in inference is computed in the same "
    "way [6]”",
    why="The paper does not state the weights of the running averages. Our layers use the "
    "exponential average of Flax.",
)


@RUNNING_STATISTICS.equal("n/(n − 1) makes the average variance unbiased", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(2, 3, (6, 4))
    batches = jnp.asarray([x[list(part)] for part in itertools.combinations(range(6), 3)])
    found = jax.vmap(batch_statistics)(batches)
    variances = np.asarray(found.var) * np.asarray(bessel(found.count))[:, None]
    return [np.asarray(found.mean).mean(0) - x.mean(0), variances.mean(0) - x.var(0, ddof=1)]
