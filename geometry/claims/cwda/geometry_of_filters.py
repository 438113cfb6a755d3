"""Section 4 of the pruning paper: lengths, angles and distances of filters."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from geometry.claims._draws import exponent, generator
from geometry.claims._types import Cases, Computed, Remark, Sampled, Values, claims_of
from geometry.claims.cwda._draws import (
    DIMS,
    LAYER_DIMS,
    LAYER_FILTERS,
    LAYERS,
    LAYERS_OF_FIGURE_1,
    THREE_FILTERS,
    figure_1_spearman,
    layer_spearman,
    norm_cv2,
)
from geometry.filters import FilterGeometry, gaussian_filter_geometry, welch_bound
from jaxnorm._numerics import chi_mean

claim = claims_of("CWDA")

SECTION_4_1_1 = claim(
    "Section 4.1 (1)",
    "The network must be trained well enough for CWDA",
    reason="qualitative: an untrained Gaussian start satisfies CWDA exactly",
)

SECTION_4_1_2 = claim(
    "Section 4.1 (2), Figure 5",
    "Sp rises with the number of filters",
    layer_spearman("E Sp(l2, GM), 64 filters", "l2", "gm"),
    Sampled("E Sp(l1, l2), 128 filters", figure_1_spearman, LAYERS_OF_FIGURE_1, "spearman_l1_l2"),
    corrected="like 1/N with Fermat and GM; hardly for l1 and l2",
    remark=Remark("over-reading", "holds with Fermat and GM"),
)


def covariance_of_filters(key: Key[Array, ""]) -> Values:
    """Biased covariances of filters minus Gram/d − mᵢmⱼ."""
    v = generator(key).normal(0.3, 1, (20, 50))
    covariance = np.asarray(pruning.weight_tests.covariance(jnp.asarray(v))) * 49 / 50
    return covariance - (v @ v.T / 50 - np.outer(v.mean(1), v.mean(1)))


SECTION_4_1_3 = claim(
    "Section 4.1 (3), Figure 6",
    "The covariance of Gaussian filters is nearly c²I",
    Computed("Cov = Gram/d − mᵢmⱼ", covariance_of_filters, tolerance=1e-12),
    Sampled(
        "E r² of two filters = 1/(d − 1)", 1 / (DIMS - 1), THREE_FILTERS, "squared_correlation"
    ),
    Sampled("mean square off the diagonal = 1/d", 1 / LAYER_DIMS, LAYERS, "squared_covariance"),
    Sampled.rejected("largest eigenvalue = c²", 1.0, LAYERS, "largest_eigenvalue"),
    printed="nearly c²I",
    corrected="off the diagonal c²/√d; eigenvalues fill c²(1 ± √(N/d))²",
)


def expected() -> FilterGeometry:
    """Theorem 5 for `three_filters`."""
    return gaussian_filter_geometry(DIMS)


def norms_alike_rate(key: Key[Array, ""]) -> Values:
    """Exponent with which the CV of a norm falls with the dimension."""
    dims = (64, 256, 1024)
    return exponent(dims, [math.sqrt(norm_cv2(d)) for d in dims])


THEOREM_5_1 = claim(
    "Theorem 5, item 1",
    "‖vᵢ‖ ≈ ‖vⱼ‖ → √2 c Γ((k + 1)/2)/Γ(k/2)",
    Sampled("E‖v‖, d = 9", lambda: expected().norm_mean, THREE_FILTERS, "norm"),
    Sampled("Var‖v‖ = 2h", lambda: expected().norm_variance, THREE_FILTERS, "norm", "variance"),
    Sampled.corrected(
        "Var(‖vᵢ‖ − ‖vⱼ‖) = 4h does not vanish",
        lambda: 2 * pruning.gaussian.chi_variance(1.0, float(DIMS)),
        THREE_FILTERS,
        "norm_difference",
        "variance",
    ),
    Computed.corrected("CV‖v‖ falls like d^(−1/2)", norms_alike_rate, "limit", -0.5, 0.05),
    corrected="ratios tend to 1 like 1/√d; differences keep the variance c²",
    remark=Remark("over-reading", "relative only"),
)


def largest_cosine(key: Key[Array, ""]) -> Cases:
    """Welch's bound minus max|cos|, of Gaussian filters and of a simplex, where it is attained."""
    rng = generator(key)
    simplex = np.eye(6) - 1 / 6
    basis = np.linalg.svd(simplex)[0][:, :5]
    for v in (*rng.normal(size=(40, 12, 5)), simplex @ basis):
        unit = v / np.linalg.norm(v, axis=1, keepdims=True)
        largest = np.abs(unit @ unit.T - np.eye(len(v))).max()
        yield welch_bound(*v.shape) - largest


THEOREM_5_2 = claim(
    "Theorem 5, item 2",
    "The angle of two filters tends to π/2",
    Sampled("E angle = π/2", math.pi / 2, THREE_FILTERS, "angle"),
    Sampled(
        "Var angle = ψ′(d/2)/2",
        lambda: expected().angle_variance,
        THREE_FILTERS,
        "angle",
        "variance",
    ),
    Sampled("E|cos| = 1/(√π R)", lambda: expected().cosine_size, THREE_FILTERS, "cosine_size"),
    Computed.corrected("max|cos| ≥ Welch's bound", largest_cosine, "inequality"),
    corrected="not for more filters than dimensions all at once",
)

THEOREM_5_3 = claim(
    "Theorem 5, item 3, Figure 7",
    "All distances are equal",
    Sampled("E‖vᵢ − vⱼ‖ = 2R", lambda: expected().distance_mean, THREE_FILTERS, "distance"),
    Sampled(
        "Var = 4h", lambda: expected().distance_variance, THREE_FILTERS, "distance", "variance"
    ),
    Sampled.corrected(
        "Cov of squared distances that share a filter = 2d",
        2.0 * DIMS,
        THREE_FILTERS,
        "squared_distance_covariance",
    ),
    Sampled.rejected(
        "Var(‖vᵢ − vⱼ‖ − ‖vᵢ − vₜ‖) = 0",
        0.01,
        THREE_FILTERS,
        "distance_difference",
        "variance",
        side="≤",
    ),
    printed="distances become equal",
    corrected="ratios tend to 1; differences keep the variance 3c²/2",
)


def repr_cv2() -> float:
    """Squared coefficient of variation of RePr's scores in a layer, whose cosines they share."""
    mean_cosine = math.sqrt(2 / math.pi) / chi_mean(LAYER_DIMS)
    cosine_cv2 = 1 / (LAYER_DIMS * mean_cosine**2) - 1
    return cosine_cv2 * (LAYER_FILTERS - 2) / (LAYER_FILTERS - 1) ** 2


SECTION_4_2 = claim(
    "Section 4.2, consequences",
    "Scores of all criteria become nearly equal, RePr's too",
    Sampled("CV² of l1 = (π/2 − 1)/d", (math.pi / 2 - 1) / LAYER_DIMS, LAYERS, "squared_cv_l1"),
    Sampled("CV² of l2 = q − 1", lambda: norm_cv2(LAYER_DIMS), LAYERS, "squared_cv_l2"),
    Sampled(
        "CV² of Fermat = (1 + 2/N)/(2d)",
        (1 + 2 / LAYER_FILTERS) / (2 * LAYER_DIMS),
        LAYERS,
        "squared_cv_fermat",
    ),
    Sampled("CV² of GM = 1/(8d)", 1 / (8 * LAYER_DIMS), LAYERS, "squared_cv_gm"),
    Sampled(
        "CV² of RePr = (1/(dμ²) − 1)(N − 2)/(N − 1)², μ = E|cos|; → (π/2 − 1)/N",
        repr_cv2(),
        LAYERS,
        "squared_cv_repr",
    ),
    corrected="l1, l2, Fermat and GM by the dimension, RePr by the number of filters",
    remark=Remark("over-reading", "holds, with rates"),
)


def constant_gains(key: Key[Array, ""]) -> Values:
    """Distance of constants 1 to N(0, 1)."""
    return float(pruning.weight_tests.ks_distance(jnp.asarray(np.ones(512))))


SECTION_4_3 = claim(
    "Section 4.3, Figure 8",
    "Other parameters than convolutions are not Gaussian",
    Computed(
        "gains of 1 lie Φ(1) from a Gaussian",
        constant_gains,
        predicted=0.8413447460685429,
        tolerance=1e-9,
    ),
    remark=Remark("over-reading", "empirical"),
)

CWDA_PLUS = claim(
    "CWDA Plus",
    "Filters independent from a symmetric distribution: Theorem 5 still holds",
    Sampled.rejected(
        "Var of ‖v‖ with random scales vanishes like 1/(2d)",
        lambda: norm_cv2(DIMS),
        THREE_FILTERS,
        "scaled_norm",
        "variance",
    ),
    Sampled.corrected(
        "Var of s‖v‖ = E s² q − (E s)², s log-normal of 0.5",
        lambda: math.exp(0.5) * (1 + norm_cv2(DIMS)) - math.exp(0.25),
        THREE_FILTERS,
        "scaled_norm",
        "variance",
    ),
    printed="Theorem 5 for symmetric distributions",
    corrected="the scales remain: Var(s)/E(s)² whatever the dimension",
)
