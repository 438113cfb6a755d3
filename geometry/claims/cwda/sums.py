"""Section 3.2 of the pruning paper, Theorems 2 to 4: sums of distances and of their squares."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Key

import pruning
from geometry.claims._draws import exponent, generator, normal
from geometry.claims._types import (
    Cases,
    Computed,
    Draws,
    Remark,
    Sampled,
    Statistics,
    Values,
    claims_of,
)
from geometry.claims.cwda._draws import LAYER_DIMS, LAYER_FILTERS, LAYERS, layer_spearman, norm_cv2
from jaxnorm._numerics import chi_mean
from pruning.gaussian import RatioVariances

claim = claims_of("CWDA")


def distance_grows(key: Key[Array, ""]) -> Values:
    """E‖F − v‖ nearer the center minus that farther away."""
    lengths = jnp.linspace(0, 40, 81)
    distance = jax.jit(jax.vmap(pruning.gaussian.expected_distance, (0, None, None)))
    return [-np.diff(distance(lengths, 1.3, dims)) for dims in (1.0, 9.0, 576.0)]


THEOREM_2 = claim(
    "Equations 4 and 5, Theorem 2",
    "The Fermat point of Gaussian filters is 0, and so is the centroid",
    Computed("E‖F − v‖ grows with ‖F‖", distance_grows, "inequality"),
    Sampled.rejected("‖F‖² = 0 of a layer", 0.0, LAYERS, "squared_norm_of_median"),
    Sampled.corrected(
        "E‖F‖² = d q/N",
        lambda: LAYER_DIMS * (1 + norm_cv2(LAYER_DIMS)) / LAYER_FILTERS,
        LAYERS,
        "squared_norm_of_median",
    ),
    Sampled.corrected(
        "E‖G‖² = d/N", LAYER_DIMS / LAYER_FILTERS, LAYERS, "squared_norm_of_centroid"
    ),
    layer_spearman("E Sp(l2, Fermat)", "l2", "fermat", form="corrected"),
    printed="F = G = 0",
    corrected="of a layer of N filters, F and G have variance c²/N in every coordinate",
)

SUM_VECTORS, SUM_DIMS = 10, 9


def norm_sums(key: Key[Array, ""]) -> Statistics:
    """F₁/F₂ and F₂/F₁ with F₁ = Σr and F₂ = Σr² of norms r, both scaled to mean 1."""
    norms = jnp.linalg.norm(normal(key, 500, SUM_VECTORS, SUM_DIMS), axis=2)
    f1 = norms.sum(1) / (SUM_VECTORS * chi_mean(SUM_DIMS))
    f2 = jnp.square(norms).sum(1) / (SUM_VECTORS * SUM_DIMS)
    return {"f1_over_f2": f1 / f2, "f2_over_f1": f2 / f1}


SUMS = Draws(norm_sums, 100_000, batch_size=10_000, draws_per_key=500)


def exact() -> RatioVariances:
    """Variances of both ratios of `norm_sums`."""
    return pruning.gaussian.norm_sum_ratio_variance(SUM_VECTORS, SUM_DIMS)


def theorem_3_rate(key: Key[Array, ""]) -> Values:
    """Exponents with which 2nk Var tends to 1 as k grows, n = 10."""
    dims = np.array([50, 100, 200, 400])
    variances = np.array([pruning.gaussian.norm_sum_ratio_variance(10, int(k)) for k in dims])
    return [exponent(dims, 20 * dims * variance - 1) for variance in variances.T]


def theorem_3_units(key: Key[Array, ""]) -> Values:
    """F₁/F₂ of vectors of standard deviation 0.01 and of 10, over their values at 1."""
    v = generator(key).normal(size=(50, 10, 9))

    def ratio(c: float) -> np.ndarray:
        norms = np.linalg.norm(c * v, axis=2)
        return norms.sum(1) / c / (np.square(norms).sum(1) / c**2)

    return [ratio(c) / ratio(1.0) - 1 for c in (0.01, 10.0)]


THEOREM_3 = claim(
    "Theorem 3, Equation 6",
    "Var(F₁/F₂) ≈ Var(F₂/F₁) ≈ 1/(2nk) for large k and small c",
    Computed("2nk Var → 1 like 1/k", theorem_3_rate, "limit", -1.0, 0.1),
    Sampled.corrected(
        "Var(F₁/F₂), exact, n = 10, k = 9", lambda: exact().direct, SUMS, "f1_over_f2", "variance"
    ),
    Sampled.corrected("Var(F₂/F₁), exact", lambda: exact().inverse, SUMS, "f2_over_f1", "variance"),
    Computed.corrected("F₁/F₂ does not depend on c", theorem_3_units),
    corrected="exact for every n and k; c is irrelevant",
    remark=Remark("over-reading", "holds in k, any c"),
)

SHARED_VECTORS, SHARED_DIMS = 20, 100


def sums_of_a_shared_point(key: Key[Array, ""]) -> Statistics:
    """F₁/F₂ of the differences of vectors from one of them."""
    v = normal(key, 20, SHARED_VECTORS + 1, SHARED_DIMS)
    norms = jnp.linalg.norm(v[:, :1] - v[:, 1:], axis=2)
    f1 = norms.sum(1) / (SHARED_VECTORS * 2**0.5 * chi_mean(SHARED_DIMS))
    f2 = jnp.square(norms).sum(1) / (2 * SHARED_VECTORS * SHARED_DIMS)
    return {"f1_over_f2": f1 / f2}


SHARED = Draws(sums_of_a_shared_point, 30_000, batch_size=2000, draws_per_key=20)
limit = partial(pruning.gaussian.norm_sum_ratio_variance_limit, SHARED_VECTORS, SHARED_DIMS)

EQUATION_8 = claim(
    "Equation 8",
    "Theorem 3 for aᵢ = P − vᵢ",
    Sampled.rejected(
        "Var(F₁/F₂) = 1/(2nk), n = 20, k = 100", limit().direct, SHARED, "f1_over_f2", "variance"
    ),
    Sampled.corrected(
        "Var(F₁/F₂) = (1 + 3/n)/(8k)", limit(shared=True).direct, SHARED, "f1_over_f2", "variance"
    ),
    printed="1/(2nk)",
    corrected="(1 + 3/n)/(8k): the aᵢ share P, and it does not vanish with n",
)


def transitivity(key: Key[Array, ""]) -> Cases:
    """r₁₂ r₂₃ − √((1 − r₁₂²)(1 − r₂₃²)) minus r₁₃, of ranks of random and of tilted triples."""
    rng = generator(key)
    for tilt in np.linspace(0, 1.5, 60):
        base = rng.normal(size=(3, 30))
        noise = base[1] * math.sin(tilt)
        triple = np.stack([base[0] + noise, base[0], base[0] - noise])
        r = np.corrcoef(scipy.stats.rankdata(triple, axis=1))
        bound = r[0, 1] * r[1, 2] - math.sqrt((1 - r[0, 1] ** 2) * (1 - r[1, 2] ** 2))
        yield bound - r[0, 2]


EQUATIONS_9_AND_10 = claim(
    "Equations 9 and 10, transitivity",
    "l1 ≈ l2 ≈ Fermat ≈ GM by transitivity",
    Computed.corrected("r₁₃ ≥ r₁₂r₂₃ − √((1 − r₁₂²)(1 − r₂₃²))", transitivity, "inequality"),
    layer_spearman("E Sp(l1, GM)", "l1", "gm", form="corrected"),
    layer_spearman("E Sp(l1, Fermat)", "l1", "fermat", form="corrected"),
    layer_spearman("E Sp(l2, GM)", "l2", "gm", form="corrected"),
    layer_spearman("E Sp(Fermat, GM)", "fermat", "gm", form="corrected"),
    corrected="0.93 and 0.93 alone guarantee 0.73; measured values are known",
    remark=Remark("over-reading", "quantitative only"),
)


def leibniz(key: Key[Array, ""]) -> Cases:
    """Relative gap of Theorem 4's sides: many, few, flat, equal, single, heavy-tailed points."""
    rng = generator(key)
    clouds = (
        rng.normal(size=(9, 4)),
        rng.normal(size=(3, 7)),
        rng.normal(size=(9, 2)) @ np.ones((2, 6)),
        np.outer(np.arange(5.0), [1.0, 2.0, -1.0]),
        np.ones((6, 3)),
        np.ones((1, 3)),
        rng.standard_cauchy((20, 5)),
    )
    for v in clouds:
        centroid = v.mean(0)
        for p in (centroid, v[0], rng.normal(size=v.shape[1])):
            left = np.square(v - p).sum()
            right = np.square(v - centroid).sum() + len(v) * np.square(p - centroid).sum()
            yield (left - right) / max(left, right, 1e-300)


THEOREM_4 = claim(
    "Theorem 4, Equations 7 and 57 to 81",
    "Σ‖P − vᵢ‖² = Σ‖G − vᵢ‖² + (k + 1)‖P − G‖² under conditions on rank",
    Computed("flat, equal, single and heavy-tailed points too", leibniz, tolerance=1e-13),
    corrected="for any points and any P",
    remark=Remark("hypothesis", "holds without conditions"),
)
