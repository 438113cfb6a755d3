"""Appendix D: Theorem 11 for neurons with two clusters of equal samples, Equations 36 to 60."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.bn_decomposed.tree import negative, positive
from claims.draws import generator
from geometry.claims import Cases, Claim, Values

claim = partial(Claim, "Batch Normalization Decomposed")

POINTS, LAYERS = 7, 6


def two_clusters(key: Key[Array, ""]) -> Cases:
    """Yield the heights of the children of two-valued neurons, minus the expected heights.

    All heights are in units of the parent's height. The expected height of a child is m/n if the
    child is zero on m of n samples.
    """
    for zeros in range(1, POINTS):
        x = jnp.asarray([0.0] * zeros + [1.5] * (POINTS - zeros))
        yield float(positive(x).max()) / 1.5 - zeros / POINTS
        yield float(negative(x).max()) / 1.5 - (POINTS - zeros) / POINTS


def _descendants(rows: np.ndarray) -> np.ndarray:
    """The descendants, after `LAYERS` layers, of the neurons `rows`; each is a column."""
    run = jax.jit(partial(geometry.tree.neurons, depth=LAYERS))
    return np.asarray(run(jnp.asarray(np.atleast_2d(rows).T)))


EQUATIONS_36_TO_38 = claim(
    "Equations 36 to 38, Figure 7",
    r"A child of a two-cluster row of height $c$ has the height $(z/n)\,c$, where $z$ is the "
    "number of zeros in the child",
)
EQUATIONS_36_TO_38.equal("heights of both children", tolerance=1e-12)(two_clusters)


@EQUATIONS_36_TO_38.equal("heights of all after 6 layers, Eq. 38", tolerance=1e-12)
def _() -> Cases:
    for zeros in range(1, POINTS):
        x = np.repeat([0.0, 1.5], [zeros, POINTS - zeros])
        heights = _descendants(x).max(0)
        share = zeros / POINTS
        expected = [
            1.5 * share**k * (1 - share) ** (LAYERS - k)
            for k in range(LAYERS + 1)
            for _ in range(math.comb(LAYERS, k))
        ]
        yield np.sort(heights) / np.sort(expected) - 1


EQUATIONS_39_AND_40 = claim(
    "Equations 39 and 40",
    r"$\sum c^2$ over $T$ layers of descendants is "
    r"$c^2 ((n - m)/n)^2 \{((n - m)/n)^2 + (m/n)^2\}^{T-1}$",
)


@EQUATIONS_39_AND_40.equal("n = 7, T = 6, every composition", tolerance=1e-12)
def _() -> Cases:
    for high in range(1, POINTS):
        x = np.repeat([0.0, 1.5], [POINTS - high, high])
        squares = np.square(_descendants(x)).sum(1)
        for size, found in ((high, squares[-1]), (POINTS - high, squares[0])):
            share = size / POINTS
            rate = (share**2 + (1 - share) ** 2) ** (LAYERS - 1)
            sum_39 = sum(
                math.comb(LAYERS - 1, k) * (1 - share) ** (2 * (LAYERS - k)) * share ** (2 * k)
                for k in range(LAYERS)
            )
            total = (1 - share) ** 2 * rate
            yield [found / (1.5**2 * total) - 1, sum_39 / total - 1]


def _share_of_unbalanced_rows(key: Array, i: int, j: int) -> float:
    """How often samples i and j, two of 6 samples, are in one cluster of a neuron in layer 9.

    Only neurons that separate one sample from the other 5 samples are counted, and the result is a
    share of these neurons.
    """
    x = jnp.asarray(np.sort(generator(key).normal(size=6)))
    rows = np.asarray(geometry.tree.neurons(x, depth=9)).T
    jumps = np.diff(rows, axis=1) != 0
    unbalanced = rows[(jumps.sum(1) == 1) & (jumps[:, 0] | jumps[:, -1])]
    return float((unbalanced[:, i - 1] == unbalanced[:, j - 1]).mean())


EQUATIONS_41_TO_43 = claim(
    "Equations 41 to 43",
    "If a row separates one sample from all other samples, the samples $2$ to $n - 1$ are in one "
    "cluster of the row",
    printed=r"Appendix D, after Equation 42: the samples $i$ and $j$ are in one cluster, “so that "
    r"$L_{ij}^{(t)} = L^{(t)}$ for every $i, j \in \{2, \ldots, n\}$”",
    corrected=r"The indices must be $i, j \in \{2, \ldots, n - 1\}$, as in the sentence before "
    "Equation 42",
    fault="misprint",
    why=r"The printed indices $\{2, \ldots, n\}$ include $n$. If a row separates sample $n$ from "
    "all other samples, the samples 2 and $n$ are in different clusters.",
)


@EQUATIONS_41_TO_43.equal("samples 2 and n are in one cluster", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    return 1 - _share_of_unbalanced_rows(key, 2, 6)


@EQUATIONS_41_TO_43.equal(
    "any two inner samples are in one cluster, layer 9, n = 6", form="corrected"
)
def _(key: Key[Array, ""]) -> Values:
    return [1 - _share_of_unbalanced_rows(key, i, j) for i, j in ((2, 3), (2, 5), (3, 4), (4, 5))]


def unbalanced_rows(key: Array) -> tuple[np.ndarray, float, float]:
    """Two-valued neurons that separate sample 1 or n, and the sum of squared heights for each."""
    rng = generator(key)
    c = rng.uniform(0.2, 2, (4, 5))
    one, last = np.eye(POINTS)[0], np.eye(POINTS)[-1]
    rows = [c[0, :, None] * one, c[1, :, None] * (1 - one)]
    rows += [c[2, :, None] * last, c[3, :, None] * (1 - last)]
    squares = np.square(c).sum(1)
    return np.concatenate(rows), float(squares[:2].sum()), float(squares[2:].sum())


def _unbalanced_gram(key: Array) -> tuple[np.ndarray, float, float]:
    """The Gram matrix of descendants, divided by the factor of Equations 45 to 54, and sums Σc².

    The function `unbalanced_rows` makes the neurons and the sums of squared heights c.
    """
    rows, s1, s2 = unbalanced_rows(key)
    y = _descendants(rows)
    rate = (1 / POINTS) ** 2 + (1 - 1 / POINTS) ** 2
    return POINTS**2 * y @ y.T / rate ** (LAYERS - 1), s1, s2


EQUATIONS_44_TO_60 = claim(
    "Equations 44 to 55 and 57 to 60",
    "Rows with clusters of 1 and $n - 1$ samples determine norms, inner products and angles",
    why="The heights of each row are multiplied as in Eq. 38. From Eq. 46 on, the composition "
    "$(1, n - 1)$ has the sample of lower index first, whereas Eq. 36 has the zeros first. "
    "Appendix D names Appendix A three times and means Appendix E.",
)


@EQUATIONS_44_TO_60.equal("Eqs. 45 to 47, 53 and 54", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    g, s1, s2 = _unbalanced_gram(key)
    m = (POINTS - 1) ** 2
    ends = [g[0, 0] / (m * s1 + s2), g[-1, -1] / (s1 + m * s2), g[1, 0] / s2, g[1, -1] / s1]
    return [g[1:-1, 1:-1] / (s1 + s2) - 1, np.array(ends) - 1]


@EQUATIONS_44_TO_60.equal("Eqs. 49, 50, 57 and 58", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    g, s1, s2 = _unbalanced_gram(key)
    m, ends = (POINTS - 1) ** 2, [0, -1]
    q = np.array([s2 / s1, s1 / s2])
    ratios, cosines = g[1, 1] / g[ends, ends], g[1, ends] / np.sqrt(g[1, 1] * g[ends, ends])
    return [ratios - (1 + q) / (m + q), cosines - 1 / np.sqrt((1 / q + 1) * (m / q + 1))]


@EQUATIONS_44_TO_60.at_most("bounds of Eqs. 51, 52, 59 and 60")
def _() -> Cases:
    q = np.linspace(0.01, 1, 100)
    for n in range(3, 30):
        m = (n - 1) ** 2
        yield (1 + q) / (m + q) - 2 / m
        angle = np.arccos(1 / np.sqrt((1 / q + 1) * (m / q + 1)))
        yield math.acos(1 / (math.sqrt(2) * (n - 1))) - angle
        yield math.pi / 2 - math.pi / (2 * math.sqrt(2) * (n - 1)) - angle


@EQUATIONS_44_TO_60.equal("attained for q = 1 and many samples", tolerance=2e-6)
def _() -> Values:
    sharp = geometry.tree.end_bounds(1000)
    return [2 / 999**2 / sharp.norm_ratio**2 - 1, 1 / (2**0.5 * 999) / math.cos(sharp.angle) - 1]


def _beside_equation_56(key: Array) -> tuple[float, float, float]:
    """The cosine of an inner sample and x₁, its numerator (Equation 53), and its denominator."""
    g, s1, s2 = _unbalanced_gram(key)
    below = math.sqrt((s1 + s2) * ((POINTS - 1) ** 2 * s1 + s2))
    return float(g[1, 0] / math.sqrt(g[1, 1] * g[0, 0])), s2, below


EQUATION_56 = claim(
    "Equation 56",
    "The printed Equation 56 gives the angle between an inner sample and $x_1$ from sums of "
    "squared heights $c$",
    printed=r"Appendix D, Equation 56: the angle is the $\arccos$ of $\sqrt{\sum_{L_2} c^2}/"
    r"(\sqrt{\sum_{L_1} c^2 + \sum_{L_2} c^2}\,\sqrt{(n - 1)^2 \sum_{L_1} c^2 + \sum_{L_2} c^2})$",
    corrected=r"The numerator of the cosine must be $\sum_{L_2} c^2$, without the square root, as "
    "in Equations 53 and 57",
    fault="misprint",
    why="In the printed cosine, the numerator has the unit of $c$, and the denominator has the "
    "unit of $c^2$, so the cosine depends on the unit. We read Equation 56 from a text extraction "
    "of the PDF, so the square root may be an error of the extraction.",
)


@EQUATION_56.equal("arccos √S₂/√((S₁ + S₂)((n − 1)²S₁ + S₂))", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    cosine, s2, below = _beside_equation_56(key)
    return math.sqrt(s2) / below - cosine


@EQUATION_56.equal("arccos S₂/√((S₁ + S₂)((n − 1)²S₁ + S₂))", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    cosine, s2, below = _beside_equation_56(key)
    return s2 / below - cosine
