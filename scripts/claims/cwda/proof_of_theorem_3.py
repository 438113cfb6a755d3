"""Claims in Appendix D of the pruning paper after Lemma 3; Appendix D proves Theorem 3."""

import itertools
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import norm_cv2
from claims.cwda.lemmas import LEMMA_3, C, K, mean_ratio
from claims.draws import exponent, generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values

claim = partial(Claim, "CWDA")


EQUATION_34 = claim(
    "Equation 34",
    r"$2\|X\|\|Y\| \gg (\|X\|^2 - \|Y\|^2)^2$ for large $k$ and small $c$",
    corrected=r"For norms $x$ and $y$, $(x - y)^2 \ll 2xy$ holds instead, because the ratio of "
    "the two sides falls like $1/(2k)$ at every $c$",
    remark=Remark(
        "unit",
        "The two sides of Equation 34 have the units $c^2$ and $c^4$. The proof of Theorem 3 "
        r"needs the inequality $(\|X\| - \|Y\|)^2 \ll 2\|X\|\|Y\|$ instead, which is true "
        "for large $k$ and every $c$.",
    ),
    why=r"Norms $x$ and $y$ have $E\,(x - y)^2/(2xy) = 1/(2k) + \dots$ for any $c$, so a "
    "large $k$ alone is enough.",
)
EQUATION_34.mean(
    "at c = 0.05, k = 20 the ratio is 2c² + c²/k + … = 0.0051",
    lambda: C**2 * mean_ratio(K),
    LEMMA_3,
    "ratio_at_small_c",
)
EQUATION_34.mean(
    "k large makes it small: at most 0.1 at c = 1", 0.1, LEMMA_3, "ratio", side="≤", form="overread"
)
EQUATION_34.mean(
    "E (x − y)²/(2xy) = 2R²/(k − 1) − 1",
    lambda: mean_ratio(K) / 2 - 1,
    LEMMA_3,
    "squared_gap_over_b",
    form="corrected",
)


def _lagrange(key: Array, power: int) -> Cases:
    for a in generator(key).uniform(size=(50, 7)):
        pairs = sum((x**power - y**power) ** 2 for x, y in itertools.combinations(a, 2))
        left = 7 * (a @ a)
        yield float((left - a.sum() ** 2 - pairs) / left)


def _squared_sum(key: Array, factor: int) -> Cases:
    """Yield ((Σa)² − Σa² − `factor` Σab)/(Σa)² for random numbers a; Σab is over pairs (a, b)."""
    for a in generator(key).uniform(size=(50, 7)):
        products = sum(x * y for x, y in itertools.combinations(a, 2))
        yield float(1 - (a @ a + factor * products) / a.sum() ** 2)


LAGRANGE_IDENTITY = claim(
    "Lagrange's identity in the proof of Theorem 3",
    r"Lagrange's identity for $n$ norms is $n\sum a^2 = (\sum a)^2 + \sum(a^2 - b^2)^2$, and the "
    "last sum is over pairs of norms $a$ and $b$",
    printed=r"Appendix D, before Equation 37: “According to Lagrange’s identity, we have” "
    r"$(\sum\|a_i\|^2)(\sum 1) = (\sum\|a_i\|)^2 + "
    r"\sum(\|a_i\|^2 - \|a_j\|^2)^2 = \sum\|a_i\|^2 + \sum\|a_i\|\|a_j\| + "
    r"2\sum(\|a_i\|^2 - \|a_j\|^2)^2$, with pairs $i < j$. The next line begins with “Since "
    "Eq. (34)”",
    corrected=r"The last sum of Lagrange's identity must have $(\|a_i\| - \|a_j\|)^2$ in place of "
    r"$(\|a_i\|^2 - \|a_j\|^2)^2$. The factor 2 must be before the products $\|a_i\|\|a_j\|$",
    fault="false",
    why="The printed form of Lagrange's identity adds terms of the units $c^2$ and $c^4$. "
    r"Lagrange's identity for the sequences $\|a_i\|$ and 1 contains the squares $(\|a_i\| - "
    r"\|a_j\|)^2$. The next line of the proof of Theorem 3 drops the last sum of the identity, "
    r"because Equation 34 says that $(\|X\|^2 - \|Y\|^2)^2$ is much smaller than $2\|X\|\|Y\|$.",
)


@LAGRANGE_IDENTITY.equal("as printed", tolerance=1e-6, form="rejected")
def _(key: Key[Array, ""]) -> Cases:
    return _lagrange(key, 2)


@LAGRANGE_IDENTITY.equal("nΣa² = (Σa)² + Σ(a − b)²", tolerance=1e-12, form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    return _lagrange(key, 1)


@LAGRANGE_IDENTITY.equal("(Σa)² = Σa² + Σab, the second line", tolerance=1e-6, form="rejected")
def _(key: Key[Array, ""]) -> Cases:
    return _squared_sum(key, 1)


@LAGRANGE_IDENTITY.equal("(Σa)² = Σa² + 2Σab", tolerance=1e-12, form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    return _squared_sum(key, 2)


CHAIN_VECTORS, CHAIN_DIMS = 50, 10


def theorem_3_chain(key: Key[Array, ""]) -> Statistics:
    """The ratios Σr/Σr², n/Σr, Σr²/Σr and Σr/n, where r are n norms at c = 1, divided by √k."""
    norms = jnp.linalg.norm(normal(key, 200, CHAIN_VECTORS, CHAIN_DIMS), axis=2) / CHAIN_DIMS**0.5
    s1, s2 = norms.sum(1), jnp.square(norms).sum(1)
    return {
        "s1_over_s2": s1 / s2,
        "n_over_s1": CHAIN_VECTORS / s1,
        "s2_over_s1": s2 / s1,
        "s1_over_n": s1 / CHAIN_VECTORS,
    }


CHAIN = Draws(theorem_3_chain, 100_000, batch_size=4000, draws_per_key=200)


def _f1_over_f2() -> float:
    return pruning.gaussian.norm_sum_ratio_variance(CHAIN_VECTORS, CHAIN_DIMS).direct


def _f2_over_f1() -> float:
    return pruning.gaussian.norm_sum_ratio_variance(CHAIN_VECTORS, CHAIN_DIMS).inverse


def _q() -> float:
    """The ratio q = E r²/(E r)², where r is the norm of a filter with `CHAIN_DIMS` weights."""
    return 1 + norm_cv2(CHAIN_DIMS)


def first_order() -> float:
    """The squared coefficient of variation (q − 1)/n of the sum of n norms."""
    return norm_cv2(CHAIN_DIMS) / CHAIN_VECTORS


EQUATIONS_35_AND_36 = claim(
    "Equations 35 and 36",
    r"$\operatorname{Var}(F_1/F_2) = c^2k\,\operatorname{Var}(\sum r/\sum r^2)$ and "
    r"$\operatorname{Var}(F_2/F_1) = \operatorname{Var}(\sum r^2/\sum r)/(c^2k)$",
    corrected=r"The two formulas need, beside $c^2k$, the factor $q = E\,r^2/(E\,r)^2 = 1 + "
    r"1/(2k) + \dots$",
    why=r"The ratio $F_1/F_2$ is $\sum r/\sum r^2$ times $E\,\sum r^2/E\,\sum r$. The factor "
    r"$E\,\sum r^2/E\,\sum r$ is $c^2k/(\sqrt2\,c\,R)$, not $c\sqrt k$. Equations 35 and 36 hold "
    "to leading order in the number $k$ of dimensions. The factors $c^2k$ and $1/(c^2k)$ have a "
    "relative error of $1/(2k)$, which is 5 % at $k = 10$.",
)
EQUATIONS_35_AND_36.variance(
    "Equation 35 as an equality at k = 10", _f1_over_f2, CHAIN, "s1_over_s2", form="overread"
)
EQUATIONS_35_AND_36.variance(
    "Equation 36 as an equality at k = 10", _f2_over_f1, CHAIN, "s2_over_s1", form="overread"
)
EQUATIONS_35_AND_36.variance(
    "Var(F₁/F₂) = q c²k Var(Σr/Σr²)",
    lambda: _f1_over_f2() / _q(),
    CHAIN,
    "s1_over_s2",
    form="corrected",
)
EQUATIONS_35_AND_36.variance(
    "Var(F₂/F₁) = Var(Σr²/Σr)/(q c²k)",
    lambda: _f2_over_f1() * _q(),
    CHAIN,
    "s2_over_s1",
    form="corrected",
)


EQUATIONS_37_TO_41 = claim(
    "Equations 37 to 41",
    r"$\sum r/\sum r^2$, $n/\sum r$, $\sum r^2/\sum r$ and $\sum r/n$ have the relative variance "
    "$1/(2nk)$",
    covers="Figure 11",
    corrected="To first order in $1/n$, the relative variance is $(q - 1)/n$ at every $k$, with "
    r"$2k(q - 1) = 1 + 1/(4k) + \dots$",
    why=r"The mean $\sum r/n$ has the variance $\operatorname{Var}(r)/n$. By the delta method, "
    r"the other three expressions have the same relative variance, because $\operatorname{Cov}(r, "
    r"r^2)/(E\,r\,E\,r^2) = 1/k$ and $\operatorname{Var}(r^2)/(E\,r^2)^2 = 2/k$ cancel.",
)
EQUATIONS_37_TO_41.variance(
    "Var(n/Σr) (Er)² = (q − 1)/n to first order in 1/n",
    lambda: first_order() * _q(),
    CHAIN,
    "n_over_s1",
    within=lambda: 2 * first_order() / CHAIN_VECTORS,
)
EQUATIONS_37_TO_41.variance(
    "Var(Σr/n)/(Er)² = (q − 1)/n", lambda: first_order() / _q(), CHAIN, "s1_over_n"
)


@EQUATIONS_35_AND_36.equal("q − 1 is 5 % at k = 10", 0.05, tolerance=2e-3, form="corrected")
def _() -> Values:
    return _q() - 1


@EQUATIONS_37_TO_41.equal(
    "Var(F₁/F₂) and Var(F₂/F₁) are (q − 1)/n to first order in 1/n, k = 10", 1.0, tolerance=5e-3
)
def _() -> Values:
    variances = pruning.gaussian.norm_sum_ratio_variance(1000, CHAIN_DIMS)
    return [variance * 1000 / norm_cv2(CHAIN_DIMS) for variance in variances]


@EQUATIONS_37_TO_41.rate("2k(q − 1) → 1 like 1/k", -1.0, tolerance=0.05)
def _() -> Values:
    dims = (20, 80, 320)
    return exponent(dims, [2 * k * norm_cv2(k) - 1 for k in dims])
