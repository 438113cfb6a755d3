"""Theorem 11 on the angles and norms of the samples deep in the tree."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator
from geometry.claims import Cases, Claim, Remark, Values
from geometry.tree import EndBounds

claim = partial(Claim, "Batch Normalization Decomposed")


EQUATION_11 = claim("Equation 11", r"$\operatorname{angle}(x, y) = \arccos(x \cdot y/\|x\|\|y\|)$")


@EQUATION_11.equal("cosines agree", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    x = generator(key).normal(size=(30, 6))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.cos(geometry.angles(jnp.asarray(x))) - unit @ unit.T


POINTS, BATCHES = 7, 30
DEPTH = 600  # at this depth, the limits are reached up to rounding errors


class DeepTrees(NamedTuple):
    """Angles, norms and distances of samples deep in the tree, for several batches.

    Attributes:
      cosines: The cosines between the samples. The samples are sorted by their inputs.
      norms: The norms of the samples, divided by the largest norm.
      squared_gaps: The squared distances of neighboring samples, divided by the largest squared
        norm.
    """

    cosines: Array
    norms: Array
    squared_gaps: Array


@jax.jit
@jax.vmap
def deep_trees(x: Array) -> DeepTrees:
    """The `DeepTrees` of sorted batches at depth `DEPTH`."""
    tree = geometry.tree_gram(x, DEPTH)
    norms = jnp.sqrt(jnp.diagonal(tree.gram))
    # Because of rounding errors, a quotient can lie outside of [−1, 1].
    cosines = jnp.clip(tree.gram / norms[:, None] / norms[None], -1, 1)
    gaps = jnp.diagonal(tree.squared_distances, 1)
    return DeepTrees(cosines, norms / norms.max(), gaps / jnp.square(norms.max()))


def _random_batches(key: Array) -> Array:
    return jnp.asarray(np.sort(generator(key).normal(size=(BATCHES, POINTS)), axis=1))


def _first_layer(x: Array) -> np.ndarray:
    """The values of the two neurons of the tree's first layer, for each batch."""
    return np.asarray(jax.jit(jax.vmap(partial(geometry.tree.neurons, depth=1)))(x))


THEOREM_11_1 = claim(
    "Theorem 11, item 1",
    "The smallest and the largest sample are orthogonal from layer 1 on",
    why="Rows are monotone in the samples and contain zeros, so each row is 0 at the "
    "smallest or at the largest sample.",
)


@THEOREM_11_1.equal("cos(x₁, xₙ) = 0 in layers 1 and 600, n = 7")
def _(key: Key[Array, ""]) -> Values:
    x = _random_batches(key)
    y = _first_layer(x)
    return [deep_trees(x).cosines[:, 0, -1], (y[:, 0] * y[:, -1]).sum(1)]


THEOREM_11_2 = claim(
    "Theorem 11, item 2",
    "The angles between inner samples tend to 0 as the depth grows",
    corrected="The angles between inner samples fall geometrically with the depth, at a known rate",
)


@THEOREM_11_2.equal("1 − cos = 0 between inner samples in layer 600, n = 7", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    return 1 - deep_trees(_random_batches(key)).cosines[:, 1:-1, 1:-1]


@THEOREM_11_2.equal(
    "1 − cos falls like (λ₂/λ₁)ᵗ, λₚ = (p² + (n − p)²)/n²", 1.0, tolerance=0.03, form="corrected"
)
def _(key: Key[Array, ""]) -> Values:
    x = np.arange(POINTS) + generator(key).uniform(-0.2, 0.2, (BATCHES, POINTS))
    y = _first_layer(jnp.asarray(x))
    before = np.square(y[:, 1] - y[:, 2]).sum(1) / np.square(y).sum(2).max(1)
    after = deep_trees(jnp.asarray(x)).squared_gaps[:, 1]
    rates = [(p**2 + (POINTS - p) ** 2) / POINTS**2 for p in (1, 2)]
    return np.log(after / before) / (DEPTH * math.log(rates[1] / rates[0]))


def printed_end_bounds(n: int) -> EndBounds:
    """The bounds of Theorem 11 as printed; `geometry.tree.end_bounds` has sharper bounds.

    The bounds are 3/(n − 2) and π/2 − √2 π/(n − 2) for n samples. For n ≤ 5, the bound of the ratio
    is at least 1. For n ≤ 4, the bound of the angle is negative.

    Raises:
      ValueError: n is below 3.

    Example:
      >>> print(f"{printed_end_bounds(5).norm_ratio:.1f}")
      1.0
    """
    if n < 3:
        raise ValueError(
            f"n must be at least 3, because a tree with a cluster needs 3 samples; got {n}"
        )
    return EndBounds(3 / (n - 2), math.pi / 2 - 2**0.5 * math.pi / (n - 2))


def _better_ends(tree: DeepTrees) -> tuple[np.ndarray, np.ndarray]:
    """The largest norm ratio and the smallest angle between an inner sample and the better end.

    The ends are the first and the last of the sorted samples. The better end is the end for which
    the bound is easier to satisfy.
    """
    norms = np.asarray(tree.norms)
    ratios = norms[:, 1:-1, None] / norms[:, None, [0, -1]]
    angles = np.arccos(np.asarray(tree.cosines)[:, 1:-1][:, :, [0, -1]])
    return ratios.max(1).min(1), angles.min(1).max(1)


def _beyond_sharp_bounds(x: Array) -> Values:
    """For the better end, the norm ratio minus its bound, and the angle's bound minus the angle."""
    ratio, angle = _better_ends(deep_trees(x))
    sharp = geometry.tree.end_bounds(POINTS)
    return [ratio - sharp.norm_ratio, sharp.angle - angle]


THEOREM_11_3 = claim(
    "Theorem 11, item 3",
    r"For inner $i$, $\lim\,\|x_i\|/\|x_1\|$ or $\lim\,\|x_i\|/\|x_n\|$ is at most $3/(n - 2)$",
    corrected=r"The smaller limit is at most $\sqrt{2/((n - 1)^2 + 1)}$, and samples that are "
    "symmetric about their mean attain the bound",
    remark=Remark(
        "loose",
        "The printed bound of the ratio of norms is more than twice the sharp bound, which is "
        r"$\sqrt{2/((n - 1)^2 + 1)}$. For 3 to 5 samples, the printed bound is 1 or more.",
    ),
    why="In the limit, only rows count that separate the smallest or the largest sample from all "
    r"other samples. The two ratios of norms are $\sqrt{(1 + r)/(m + r)}$ and $\sqrt{(1 + r)/(1 + "
    "mr)}$ with $m = (n - 1)^2$. The smaller ratio is largest at $r = 1$.",
)


@THEOREM_11_3.at_most("ratio ≤ bound (found: at most half of it)")
def _(key: Key[Array, ""]) -> Values:
    ratio, _ = _better_ends(deep_trees(_random_batches(key)))
    return ratio - printed_end_bounds(POINTS).norm_ratio


@THEOREM_11_3.equal("constants of items 3 and 4: Eqs. 72 and 85", tolerance=1e-5)
def _() -> Cases:
    for n in (1000, 10_000):
        printed = printed_end_bounds(n)
        ratio = math.sqrt(8 / ((n - 2) ** 2 + 1))
        cosine = 4 / math.sqrt(2 * ((n - 2) ** 2 + 1))
        yield printed.norm_ratio * (n - 2) / math.ceil(ratio * (n - 2)) - 1
        yield (math.pi / 2 - printed.angle) / (math.pi / 2 * cosine) - 1


@THEOREM_11_3.at_most("sharp constants of items 3 and 4", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    return _beyond_sharp_bounds(_random_batches(key))


@THEOREM_11_3.equal("attained by symmetric samples", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    x = _random_batches(key)
    return _beyond_sharp_bounds(x - x[:, ::-1])


THEOREM_11_4 = claim(
    "Theorem 11, item 4, Equation 12",
    "One of the limit angles between an inner sample and the smallest or largest sample is at "
    r"least $\pi/2 - \sqrt{2}\,\pi/(n - 2)$",
    corrected=r"The cosines of the two limit angles are exactly $r/\sqrt{(1 + r)(m + r)}$ and "
    r"$1/\sqrt{(1 + r)(1 + mr)}$ with $m = (n - 1)^2$",
    remark=Remark(
        "loose",
        "For 3 and 4 samples, the printed lower bound of the limit angle is negative. For six "
        "samples, the printed bound is 26°, but the angle is at least 82°.",
    ),
    why=r"The larger limit angle is at least $\arccos(1/\sqrt{2(m + 1)})$. Samples that are "
    "symmetric about their mean attain the bound, because $r = 1$.",
)


@THEOREM_11_4.at_most("bound ≤ angle (found: above by 20° and more)")
def _(key: Key[Array, ""]) -> Values:
    _, angle = _better_ends(deep_trees(_random_batches(key)))
    return printed_end_bounds(POINTS).angle - angle


@THEOREM_11_4.equal("limits by r = lim ‖xₙ − xₙ₋₁‖²/‖x₂ − x₁‖²", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    tree = deep_trees(_random_batches(key))
    r = tree.squared_gaps[:, -1] / tree.squared_gaps[:, 0]
    limits = jax.jit(jax.vmap(lambda r: geometry.tree.limits(POINTS, r)))(r)
    ratios = np.asarray(tree.norms)[:, 1:-1, None] / tree.norms[:, None, [0, -1]]
    cosines = tree.cosines[:, 1:-1][:, :, [0, -1]]
    return [ratios - limits.norm_ratios[:, None], cosines - jnp.cos(limits.angles)[:, None]]


SEVERAL_COORDINATES = claim(
    "Remark on several coordinates",
    "Theorem 11 holds if one pair of samples is extreme in every coordinate",
)


@SEVERAL_COORDINATES.equal("ends orthogonal, others merged, d = 3")
def _(key: Key[Array, ""]) -> Values:
    x = np.stack([generator(key).uniform(-1, 1, (6, 3))] * 2)
    x[:, -1] = (2.0, 3.0, 4.0), (2.0, -3.0, 4.0)
    x[:, 0] = -x[:, -1]
    g = np.asarray(jax.jit(jax.vmap(lambda x: geometry.tree_gram(x, 600).gram))(jnp.asarray(x)))
    norms = np.sqrt(np.diagonal(g, axis1=1, axis2=2))
    cosines = g / norms[:, :, None] / norms[:, None]
    return [1 - cosines[:, 1:-1, 1:-1], cosines[:, 0, -1]]
