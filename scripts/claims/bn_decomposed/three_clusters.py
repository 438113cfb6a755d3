"""Appendix E: Theorem 11 for neurons with three clusters of equal samples, Equations 61 to 94."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.bn_decomposed.tree import negative, positive
from claims.bn_decomposed.two_clusters import unbalanced_rows
from claims.draws import generator
from geometry.claims import Cases, Claim, Values

claim = partial(Claim, "Batch Normalization Decomposed")

POINTS = 7


def _geometric_sum(n: int, layers: int) -> float:
    """The sum in the braces of Equation 61: Σⱼ aʲ bᵀ⁻¹⁻ʲ from j = 1 to T − 1."""
    a, b = ((n - 1) / n) ** 2, (2 / n) ** 2 + ((n - 2) / n) ** 2
    return math.fsum(a**j * b ** (layers - 1 - j) for j in range(1, layers))


def _bound_of_the_sum(n: int, layers: int) -> float:
    """The bound in Equation 62, divided by the factors that Equation 61 also has."""
    return (n**2 - 2 * n + 1) / (2 * n - 7) * ((n - 1) / n) ** (2 * (layers - 1))


EQUATIONS_61_AND_62 = claim(
    "Equations 61 and 62",
    "For rows of three clusters, the geometric sum of Equation 61 is at most $(n - 1)^2/(2n - 7) "
    r"\cdot ((n - 1)/n)^{2(T-1)}$",
    printed="Appendix E, Equation 62: the bound has the factor $2n - 7$, “which has a negligible "
    "exponent with respect to equation (40)”",
    corrected=r"The bound of Equation 62 holds for $n \ge 4$ samples. With three samples, the "
    "bound says nothing, because there is no pair of inner samples",
    fault="false in a case",
    why="For $n = 3$, the factor $2n - 7$ is negative, so the bound of Equation 62 is negative, "
    "but the geometric sum of Equation 61 is positive.",
)


@EQUATIONS_61_AND_62.at_most("sum ≤ bound, n = 3; T = 2, 5 and 50", form="rejected")
def _() -> Values:
    return [_geometric_sum(3, t) - _bound_of_the_sum(3, t) for t in (2, 5, 50)]


@EQUATIONS_61_AND_62.at_most("sum ≤ bound, n = 4 to 29", form="corrected")
def _() -> Values:
    return [
        _geometric_sum(n, t) - _bound_of_the_sum(n, t) for n in range(4, 30) for t in (2, 5, 50)
    ]


@EQUATIONS_61_AND_62.equal(
    "the bound is attained in the limit of many layers", tolerance=1e-9, form="corrected"
)
def _() -> Values:
    return [_geometric_sum(n, 1000) / _bound_of_the_sum(n, 1000) - 1 for n in range(4, 30)]


def gram_and_sums(key: Array) -> tuple[np.ndarray, np.ndarray]:
    """n² times the Gram matrix of the children of random neurons, and the sums A, B, C and D.

    A neuron is 0 on the first cluster of samples, and the height of the neuron is its value on the
    second cluster. A, B, C and D are sums of squared heights. The clusters of the neurons in these
    sums have the sizes (1, n − 1), (n − 1, 1), (2, n − 2) and (n − 2, 2).
    """
    c = generator(key).uniform(0.2, 2, (4, 5))
    i = np.arange(POINTS)
    groups = (i >= 1, i < POINTS - 1, i >= 2, i < POINTS - 2)
    rows = np.concatenate(
        [height[:, None] * group for height, group in zip(c, groups, strict=True)]
    )
    y = np.asarray(geometry.tree.step(jnp.asarray(rows.T)))
    return POINTS**2 * y @ y.T, np.square(c).sum(1)


def _sums(key: Array) -> np.ndarray:
    """Random numbers A, B, C, D ≥ 0 of many magnitudes, some of them zero, with B + D ≤ A + C."""
    sums = np.exp(generator(key).normal(0, 4, (2000, 4))) * (generator(key).random((2000, 4)) > 0.2)
    sums[0] = (0, 0, 1, 0)
    a, b, c, d = sums.T
    swap = b + d > a + c
    sums[swap] = sums[swap][:, [1, 0, 3, 2]]
    return sums[sums.sum(1) > 0].T


def _equation_66(sums: np.ndarray, n: int) -> np.ndarray:
    a, b, c, d = sums
    return (a + b + 4 * c + 4 * d) / ((n - 1) ** 2 * a + b + (n - 2) ** 2 * c + 4 * d)


def _equation_67(sums: np.ndarray, n: int) -> np.ndarray:
    a, b, c, d = sums
    return 4 * (a + b + c + d) / ((n - 2) ** 2 * (a + c) + b + d)


EQUATIONS_63_TO_73 = claim(
    "Equations 63 to 73",
    "Four sums $A$, $B$, $C$ and $D$ over the rows of four compositions give the norms of the "
    r"samples. The ratio of the norms is at most $\sqrt{8}/(n - 2)$",
    why="In the limit of many layers, the sums $C$ and $D$ vanish relative to $A$ and $B$. The "
    "sums $A$ and $B$ alone give the sharp bound of Theorem 11, item 3.",
)


@EQUATIONS_63_TO_73.equal("Eqs. 63 to 65, 81 and 82, n = 7", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    g, (a, b, c, d) = gram_and_sums(key)
    n = POINTS
    expected = {
        (3, 3): a + b + 4 * c + 4 * d,
        (0, 0): (n - 1) ** 2 * a + b + (n - 2) ** 2 * c + 4 * d,
        (n - 1, n - 1): a + (n - 1) ** 2 * b + 4 * c + (n - 2) ** 2 * d,
        (3, 0): b + 4 * d,
        (3, n - 1): a + 4 * c,
    }
    return [g[pair] / value - 1 for pair, value in expected.items()]


@EQUATIONS_63_TO_73.at_most("Eq. 66 ≤ Eq. 67, and that ≤ Eq. 72")
def _(key: Key[Array, ""]) -> Cases:
    sums = _sums(key)
    for n in range(4, 30):
        bound = _equation_67(sums, n)
        yield [_equation_66(sums, n) / bound - 1, bound / (8 / (n - 2) ** 2) - 1]


@EQUATIONS_63_TO_73.equal("Eq. 67 attained by C, Eq. 72 by C = D and n → ∞", tolerance=1e-5)
def _() -> Values:
    only_c, c_and_d = np.array([[0.0], [0], [1], [0]]), np.array([[0.0], [0], [1], [1]])
    return [
        _equation_67(only_c, 9) / _equation_66(only_c, 9) - 1,
        8 / 998**2 / _equation_66(c_and_d, 1000) - 1,
    ]


EQUATIONS_74_TO_80 = claim(
    "Equations 74 to 80",
    r"The norms of $x_1$, $x_2$ and $x_n$ have a ratio of at most $\sqrt{2}/(n - 1)$",
    why="Rows that separate samples 1 and 2 from all other samples decay faster. The sentence "
    "'Denote by $D(T)$ the cumulative exponent for all $(1, 1, n - 2)$ rows' is about $(n - 2, "
    "1, 1)$.",
)


@EQUATIONS_74_TO_80.equal("Eqs. 74 to 76, 89 and 90, n = 7", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    rows, ac, bd = unbalanced_rows(key)
    y = np.asarray(geometry.tree.step(jnp.asarray(rows.T)))
    g, m = POINTS**2 * y @ y.T, (POINTS - 1) ** 2
    found = [g[0, 0], g[1, 1], g[-1, -1], g[1, 0], g[1, -1]]
    return np.array(found) / [m * ac + bd, ac + bd, ac + m * bd, bd, ac] - 1


@EQUATIONS_74_TO_80.at_most("Eqs. 79, 80, 93, 94 (equal at q = 1, n → ∞)")
def _() -> Cases:
    q = np.linspace(0.01, 1, 100)
    for n in range(3, 30):
        m = (n - 1) ** 2
        yield (1 + q) / (m + q) - 2 / m
        yield 1 / np.sqrt((1 + m / q) * (1 + 1 / q)) - 1 / (math.sqrt(2) * (n - 1))


def _equation_84(sums: np.ndarray, n: int) -> np.ndarray:
    a, b, c, d = sums
    inner, first = a + b + 4 * c + 4 * d, (n - 1) ** 2 * a + b + (n - 2) ** 2 * c + 4 * d
    return (b + 4 * d) / np.sqrt(inner * first)


def _equation_85(sums: np.ndarray, n: int) -> np.ndarray:
    q = (sums[0] + sums[2]) / (sums[1] + sums[3])
    return 4 / np.sqrt((q + 1) * ((n - 2) ** 2 * q + 1))


EQUATIONS_81_TO_94 = claim(
    "Equations 81 to 91, 93 and 94",
    "The sums $A$, $B$, $C$ and $D$ give the inner products of samples, and the cosine is at "
    r"most $2\sqrt{2}/(n - 2)$",
    why="The check compares the inner products of Equations 81, 82, 89 and 90 together with the "
    "norms of Equations 63 and 74. In the limit of many layers, the sums $C$ and $D$ vanish "
    r"relative to $A$ and $B$, so the sharp bound of the cosine is $1/\sqrt{2((n - 1)^2 + "
    "1)}$ (Theorem 11, item 4). For many samples, the bound of Equation 93 is nearly equal to the "
    "sharp bound.",
)


@EQUATIONS_81_TO_94.at_most("Eq. 84 ≤ Eq. 85, Eq. 87 ≤ arccos of it")
def _(key: Key[Array, ""]) -> Cases:
    sums = _sums(key)
    sums = sums[:, sums[1] + sums[3] > 0]
    for n in range(5, 30):
        cosine = _equation_85(sums, n)
        bound = math.pi / 2 - math.sqrt(2) * math.pi / (n - 2)
        yield [_equation_84(sums, n) / cosine - 1, bound - np.arccos(np.minimum(cosine, 1))]


@EQUATIONS_81_TO_94.at_most("Eq. 84 over half of Eq. 85 at C = D, minus 1, n = 4 to 29")
def _() -> Cases:
    c_and_d = np.array([[0.0], [0], [1], [1]])
    for n in range(4, 30):
        yield _equation_84(c_and_d, n) / (_equation_85(c_and_d, n) / 2) - 1


@EQUATIONS_81_TO_94.equal("Eq. 84 = half of Eq. 85 at C = D, n → ∞", tolerance=1e-6)
def _() -> Values:
    c_and_d = np.array([[0.0], [0], [1], [1]])
    return _equation_84(c_and_d, 10_000) / (_equation_85(c_and_d, 10_000) / 2) - 1


def _cosine_with_the_last(key: Array) -> tuple[np.ndarray, float]:
    """The quotients x₂·xₙ/(‖x₂‖‖x₁‖) and x₂·xₙ/(‖x₂‖‖xₙ‖), and the right side of Equation 92."""
    rows, ac, bd = unbalanced_rows(key)
    rows = rows * np.where(rows[:, -1:] == rows[:, 1:2], 1, 2)  # the factor 2 multiplies `bd` by 4
    ac, bd = ac, 4 * bd
    y = np.asarray(geometry.tree.step(jnp.asarray(rows.T)))
    norms = np.linalg.norm(y, axis=1)
    expected = 1 / math.sqrt((1 + (POINTS - 1) ** 2 * bd / ac) * (1 + bd / ac))
    return y[1] @ y[-1] / (norms[1] * norms[[0, -1]]), expected


EQUATION_92 = claim(
    "Equation 92",
    "The printed Equation 92 gives the cosine of $x_2$ and $x_n$ from $(B + D)/(A + C)$",
    printed=r"Appendix E, Equation 92: $\langle x_2, x_n \rangle/(\|x_2\|\|x_1\|) \simeq "
    r"1/(\sqrt{1 + (n - 1)^2 q}\,\sqrt{1 + q})$ with $q = (B + D)/(A + C)$",
    corrected=r"The left side of Equation 92 must have the norm $\|x_n\|$ in place of $\|x_1\|$, "
    "as in Equation 94",
    fault="misprint",
    why="The right side of Equation 92 is the right side of Equation 91 with $x_n$ in place of "
    "$x_1$. We read Equation 92 from a text extraction of the PDF, so $x_1$ may be an error of "
    "the extraction.",
)


@EQUATION_92.equal("⟨x₂, xₙ⟩/(‖x₂‖‖x₁‖)", form="rejected")
def _(key: Key[Array, ""]) -> Values:
    left, right = _cosine_with_the_last(key)
    return left[0] / right - 1


@EQUATION_92.equal("⟨x₂, xₙ⟩/(‖x₂‖‖xₙ‖)", tolerance=1e-12, form="corrected")
def _(key: Key[Array, ""]) -> Values:
    left, right = _cosine_with_the_last(key)
    return left[1] / right - 1


def _clusters_of_children(row: list[float]) -> list[int]:
    pair = positive(jnp.asarray(row)), negative(jnp.asarray(row))
    return sorted(len(np.unique(np.asarray(child))) for child in pair)


FIGURE_8 = claim(
    "Figure 8",
    "Each row with three clusters has one child with three clusters and one child with two "
    "clusters",
    printed="Figure 8: “at every step, a three-cluster neuron always generates one three-cluster "
    "neuron and one two-cluster neuron”",
    corrected="If the middle cluster of a row is at the mean, both children of the row have two "
    "clusters",
    fault="false in a case",
    why="For example, the row $(0, 1, 2)$ has the children $(0, 0, 1)$ and $(1, 0, 0)$. Theorem "
    "11 still holds for rows with the middle cluster at the mean.",
)


@FIGURE_8.equal("the children of (0, 1, 2) have 2 and 3 clusters", form="rejected")
def _() -> Values:
    return np.array(_clusters_of_children([0.0, 1.0, 2.0])) - (2, 3)


@FIGURE_8.equal(
    "children have 2 and 3 clusters if the middle cluster is not at the mean", form="corrected"
)
def _(key: Key[Array, ""]) -> Cases:
    for row in np.sort(generator(key).normal(size=(30, 3)), axis=1):
        sizes = generator(key).integers(1, 5, 3)
        yield np.array(_clusters_of_children(np.repeat(row, sizes).tolist())) - (2, 3)
