"""Theorems 2 and 3 in Section 3.2 of the pruning paper, on sums of norms and squared norms."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import LAYER_DIMS, LAYER_FILTERS, LAYERS, layer_spearman, norm_cv2
from claims.draws import exponent, generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from jaxnorm.internal import chi_mean
from pruning.gaussian import RatioVariances

claim = partial(Claim, "CWDA")


THEOREM_2 = claim(
    "Equations 4 and 5, Theorem 2",
    "The Fermat point of Gaussian filters is 0, and so is the centroid",
    corrected="In a layer of $N$ filters, the Fermat point $F$ and the centroid $G$ have the "
    "variance $c^2/N$ in every coordinate",
    remark=Remark(
        "hypothesis",
        "For Gaussian filters, the Fermat point is 0 only in expectation. In a layer of $N$ "
        r"filters, the Fermat point and the centroid are at a distance of about $c\sqrt{d/N}$ "
        r"from 0, which is $1/\sqrt N$ of the length of a filter. In Theorem 2, the covariance is "
        r"$\sigma I$ in the main text and $\sigma^2I$ in the appendix.",
    ),
    why=r"The mean distance $E\|F - v\|$ is convex in $F$ and has equal values at $F$ and $-F$, "
    "so the minimum of the mean distance is at 0. The convexity argument holds for any "
    "distribution that is symmetric about 0.",
)


@THEOREM_2.at_most("E‖F − v‖ grows with ‖F‖")
def _() -> Values:
    lengths = jnp.linspace(0, 40, 81)
    distance = jax.jit(jax.vmap(pruning.gaussian.expected_distance, (0, None, None)))
    return [-np.diff(distance(lengths, 1.3, dims)) for dims in (1.0, 9.0, 576.0)]


@THEOREM_2.equal("E‖F − v‖ by quadrature, from F = 0 on", tolerance=1e-7)
def _() -> Cases:
    distance = jax.jit(pruning.gaussian.expected_distance)
    for length, std, dims in ((0.0, 1.7, 9), (2.0, 1.7, 9), (3.0, 0.5, 4)):
        shift = (length / std) ** 2 + 1e-12

        def integrand(r: float, dims: int = dims, shift: float = shift) -> float:
            return 2 * r**2 * float(scipy.stats.ncx2.pdf(r**2, dims, shift))

        integral = scipy.integrate.quad(integrand, 0, 40, limit=200)[0]
        yield float(distance(length, std, float(dims))) / (std * integral) - 1


THEOREM_2.mean(
    "F = 0 in a layer of 64 filters", 0.0, LAYERS, "squared_norm_of_median", form="overread"
)
THEOREM_2.mean(
    "G = 0 in a layer of 64 filters", 0.0, LAYERS, "squared_norm_of_centroid", form="overread"
)
THEOREM_2.mean(
    "E‖F‖² = d q/N",
    lambda: LAYER_DIMS * (1 + norm_cv2(LAYER_DIMS)) / LAYER_FILTERS,
    LAYERS,
    "squared_norm_of_median",
    within=2 * LAYER_DIMS / LAYER_FILTERS**2,
    form="corrected",
)
THEOREM_2.mean(
    "E‖G‖² = d/N", LAYER_DIMS / LAYER_FILTERS, LAYERS, "squared_norm_of_centroid", form="corrected"
)
THEOREM_2.add(layer_spearman("E Sp(l2, Fermat) = 0.978", "l2", "fermat", form="corrected"))


SUM_VECTORS, SUM_DIMS = 10, 9


def norm_sums(key: Key[Array, ""]) -> Statistics:
    """The ratios F₁/F₂ and F₂/F₁, where F₁ = Σr and F₂ = Σr² are divided by their means.

    Each r is the norm of a filter with standard deviation c = 10.
    """
    norms = jnp.linalg.norm(10 * normal(key, 500, SUM_VECTORS, SUM_DIMS), axis=2)
    f1 = norms.sum(1) / (10 * SUM_VECTORS * chi_mean(SUM_DIMS))
    f2 = jnp.square(norms).sum(1) / (100 * SUM_VECTORS * SUM_DIMS)
    return {"f1_over_f2": f1 / f2, "f2_over_f1": f2 / f1}


SUMS = Draws(norm_sums, 100_000, batch_size=10_000, draws_per_key=500)


def exact() -> RatioVariances:
    """The exact variances of the ratios F₁/F₂ and F₂/F₁ that `norm_sums` draws."""
    return pruning.gaussian.norm_sum_ratio_variance(SUM_VECTORS, SUM_DIMS)


THEOREM_3 = claim(
    "Theorem 3, Equation 6",
    r"For large $k$ and small $c$, $\operatorname{Var}(F_1/F_2) \approx "
    r"\operatorname{Var}(F_2/F_1) \approx 1/(2nk)$",
    corrected="The exact variance is known for every $n$ and $k$, and does not depend on $c$",
    remark=Remark(
        "hypothesis",
        "Theorem 3 does not need a small standard deviation $c$. Let $F_1$ be the sum of norms "
        "and $F_2$ the sum of squared norms, each divided by its mean. The ratio $F_1/F_2$ does "
        "not depend on $c$.",
    ),
    why=r"The ratio $\sum r/\sqrt{\sum r^2}$ is independent of $\sum r^2$, because the direction "
    "of a Gaussian vector is independent of the length of the vector. Therefore "
    r"$\operatorname{Var}(F_1/F_2) = k(n - 1 + q)/(nk - 2) - (nk/(nk - 1))^2$ with $q = "
    r"E\,r^2/(E\,r)^2$.",
)


@THEOREM_3.rate("2nk Var → 1 like 1/k", -1.0, tolerance=0.1)
def _() -> Values:
    dims = np.array([50, 100, 200, 400])
    variances = np.array([pruning.gaussian.norm_sum_ratio_variance(10, int(k)) for k in dims])
    return [exponent(dims, 20 * dims * variance - 1) for variance in variances.T]


@THEOREM_3.equal("2nk Var = 1 but for 1/k, n = 64, k = 576", tolerance=1e-3)
def _() -> Values:
    variances = pruning.gaussian.norm_sum_ratio_variance(64, 576)
    printed = pruning.gaussian.norm_sum_ratio_variance_limit(64, 576)
    return [exact / first - 1 for exact, first in zip(variances, printed, strict=True)]


THEOREM_3.variance(
    "Var(F₁/F₂), exact, n = 10, k = 9, c = 10",
    lambda: exact().direct,
    SUMS,
    "f1_over_f2",
    against=lambda: exact().inverse,
    form="corrected",
)
THEOREM_3.variance(
    "Var(F₂/F₁), exact, c = 10",
    lambda: exact().inverse,
    SUMS,
    "f2_over_f1",
    against=lambda: exact().direct,
    form="corrected",
)


SHARED_VECTORS, SHARED_DIMS = 20, 100


def sums_of_a_shared_point(key: Key[Array, ""]) -> Statistics:
    """F₁/F₂ and F₂, where F₁ sums one vector's distances to others, and F₂ squares; means are 1."""
    v = normal(key, 20, SHARED_VECTORS + 1, SHARED_DIMS)
    norms = jnp.linalg.norm(v[:, :1] - v[:, 1:], axis=2)
    f1 = norms.sum(1) / (SHARED_VECTORS * 2**0.5 * chi_mean(SHARED_DIMS))
    f2 = jnp.square(norms).sum(1) / (2 * SHARED_VECTORS * SHARED_DIMS)
    return {"f1_over_f2": f1 / f2, "f2": f2}


SHARED = Draws(sums_of_a_shared_point, 30_000, batch_size=2000, draws_per_key=20)


def limit(*, shared: bool = False) -> float:
    """The leading term of Var(F₁/F₂) in Theorem 3 or, if `shared`, for distances to one point."""
    variances = pruning.gaussian.norm_sum_ratio_variance_limit
    return variances(SHARED_VECTORS, SHARED_DIMS, shared=shared).direct


EQUATION_8 = claim(
    "Equation 8, by Theorem 3",
    "Theorem 3 applies to the differences $a_i = P - v_i$ of a filter $P$ and all filters $v_i$, "
    "so the sum of distances and the sum of squared distances rank the filters $P$ alike",
    printed="Section 3.2 (3), before Equation 8: “According to the analysis in Section 3.2 (1) "
    "and Theorem 3, we have”; Theorem 3: “For n random variables ai ∈ Rk follow N(0, c2 ·"
    " Ik).”",
    corrected="Equation 8 is true: the two sums rank the filters alike. If each sum is divided by "
    "its mean, the ratio of the two sums has the variance $(1 + 3/n)/(8k)$, which does not tend "
    "to 0 as the number $n$ of vectors grows",
    fault="false in a case",
    why="All vectors $a_i = P - v_i$ contain the filter $P$, but the proof of Theorem 3 assumes "
    "independent vectors. The sum of distances and the sum of squared distances increase with "
    r"$\|P\|$, so the two sums rank the filters alike. The relative increase of the sum of "
    "squared distances is twice the relative increase of the sum of distances, so the ratio of "
    r"the two sums varies with $\|P\|$ for every $n$.",
)


def ranks_of_both_sums(key: Key[Array, ""]) -> Statistics:
    """Spearman's ρ between two scores of filters, sums of distances and of squared distances."""
    v = normal(key, 64, 144)
    squares = jnp.square(v[:, None] - v[None]).sum(2)
    sums = pruning.spearman(jnp.sqrt(squares).sum(1), squares.sum(1))
    return {"spearman": sums.astype(jnp.float32)}


EQUATION_8.mean(
    "Eq. 8: Sp of both sums of 64 filters in 144 dimensions is at least 0.999",
    0.999,
    Draws(ranks_of_both_sums, 200, batch_size=20),
    "spearman",
    side="≥",
    against=0.99,
)
EQUATION_8.variance(
    "Var(F₁/F₂) = 1/(2nk), n = 20, k = 100", limit, SHARED, "f1_over_f2", form="rejected"
)
EQUATION_8.variance(
    "Var(F₁/F₂) = (1 + 3/n)/(8k) to first order in 1/k",
    lambda: limit(shared=True),
    SHARED,
    "f1_over_f2",
    within=lambda: 2 * limit(shared=True) / SHARED_DIMS,
    form="corrected",
)
EQUATION_8.variance(
    "Var F₂ = (1 + 3/n)/(2k), four times as large",
    lambda: 4 * limit(shared=True),
    SHARED,
    "f2",
    form="corrected",
)


def _transitive_bound(r: np.ndarray) -> float:
    """The lower bound r₁₂r₂₃ − √((1 − r₁₂²)(1 − r₂₃²)) on the correlation r₁₃."""
    return r[0, 1] * r[1, 2] - math.sqrt((1 - r[0, 1] ** 2) * (1 - r[1, 2] ** 2))


EQUATIONS_9_AND_10 = claim(
    "Equations 9 and 10, transitivity",
    r"$\ell_1 \cong \ell_2 \cong \text{Fermat} \cong \text{GM}$ by transitivity",
    corrected=r"If two pairs of criteria have $\mathrm{Sp} = 0.93$, only $\mathrm{Sp} \ge 0.73$ "
    "is guaranteed for the third pair. For Gaussian filters, the values of all six pairs are "
    "known",
    remark=Remark(
        "over-reading",
        "Similarity of criteria is not transitive. If two of three pairs of criteria have "
        r"$\mathrm{Sp} = 0.93$, only an $\mathrm{Sp}$ of at least 0.73 is guaranteed for the "
        "third pair. In Equation 9, $k + 1$ is the number $N$ of filters.",
    ),
    why=r"Spearman's $\rho$ is a correlation of ranks. A correlation is the cosine of an angle, "
    "and the angle of the third pair is at most the sum of the angles of the other two pairs. "
    r"Subtracting the constant $\sum\|G - v_i\|^2$ keeps the ranks but changes the variance of "
    r"the ratio, by which Section 3.2 defines $\cong$.",
)


@EQUATIONS_9_AND_10.at_most("r₁₃ ≥ r₁₂r₂₃ − √((1 − r₁₂²)(1 − r₂₃²))")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    for tilt in np.linspace(0, 1.5, 60):
        base = rng.normal(size=(3, 30))
        noise = base[1] * math.sin(tilt)
        triple = np.stack([base[0] + noise, base[0], base[0] - noise])
        r = np.corrcoef(scipy.stats.rankdata(triple, axis=1))
        yield _transitive_bound(r) - r[0, 2]


@EQUATIONS_9_AND_10.equal("the bound is attained by x + n, x and x − n", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Cases:
    base = generator(key).normal(size=(30, 2))
    x, noise = np.linalg.qr(base - base.mean(0))[0].T
    for size in np.linspace(0, 2, 20):
        r = np.corrcoef(np.stack([x + size * noise, x, x - size * noise]))
        yield _transitive_bound(r) - r[0, 2]


@EQUATIONS_9_AND_10.at_most("r₁₃ ≥ r₁₂ and r₂₃ within 0.1", tolerance=0.1, form="overread")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    x, noise = rng.normal(size=(2, 2000))
    triple = np.stack([x + 0.4 * noise, x, x - 0.4 * noise])
    r = np.corrcoef(scipy.stats.rankdata(triple, axis=1))
    yield min(r[0, 1], r[1, 2]) - r[0, 2]


EQUATIONS_9_AND_10.add(layer_spearman("E Sp(l1, GM)", "l1", "gm", form="corrected"))
EQUATIONS_9_AND_10.add(layer_spearman("E Sp(l1, Fermat)", "l1", "fermat", form="corrected"))
EQUATIONS_9_AND_10.add(layer_spearman("E Sp(l2, GM)", "l2", "gm", form="corrected"))
EQUATIONS_9_AND_10.add(layer_spearman("E Sp(Fermat, GM)", "fermat", "gm", form="corrected"))
