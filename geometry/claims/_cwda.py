"""Claims of the pruning paper on the convolution-weight-distribution assumption (CWDA)."""

import math

import jax.numpy as jnp

import pruning
from geometry._filter_geometry import gaussian_filter_geometry
from geometry.claims import _cwda_cases as of
from geometry.claims._claim import Check, Claim, Computed, Draws, Form, Number, Sampled
from geometry.claims._cwda_cases import DIMS, LEMMA, RATIO_DIMS

PAPER = "CWDA"

THREE = Draws(of.three_filters, 400_000, batch_size=20_000, block=1000)
RATIOS = Draws(of.norm_ratios, 100_000, batch_size=10_000, block=500)
SUMS = Draws(of.norm_sums, 100_000, batch_size=10_000, block=500)
SHARED = Draws(of.sums_of_a_shared_point, 30_000, batch_size=2000, block=20)
LEMMA_3 = Draws(of.lemma_3, 400_000, batch_size=20_000, block=500)
IN_5 = Draws(of.lemma_3_in_5, 800_000, batch_size=50_000, block=1000)
IN_12 = Draws(of.lemma_3_in_12, 1_200_000, batch_size=20_000, block=1000)
LAYERS = Draws(of.layers, 300, batch_size=30)
FIGURE_1 = Draws(of.figure_1, 150, batch_size=30)
RANKINGS = Draws(of.random_rankings, 20_000)
KS = Draws(of.plain_ks, 160_000, batch_size=8000)
EXACT_KS = Draws(of.exact_ks, 4000)
MANY_STDS = Draws(of.many_stds, 40_000, batch_size=10_000, block=1000)
STDS = Draws(of.std_tests, 4000, batch_size=500)
MEANS = Draws(of.mean_tests, 20_000, batch_size=2000)


def _claim(
    entry: str,
    name: str,
    statement: str,
    verdict: str,
    *checks: Check,
    printed: str = "",
    corrected: str = "",
    reason: str = "",
) -> Claim:
    return Claim(PAPER, entry, name, statement, verdict, printed, corrected, checks, reason)


def _layer(what: str, predicted: Number, statistic: str, form: Form = "printed") -> Sampled:
    return Sampled(what, predicted, LAYERS, of.LAYER_STATISTICS[statistic], form=form)


def _spearman(a: str, b: str) -> float:
    return float(pruning.expected_spearman(of.FILTERS, float(of.LONG), (a, b)))


def _theorem_5(field: str) -> float:
    return float(getattr(gaussian_filter_geometry(DIMS), field))


def _lemma_variance_of_b(c: float) -> float:
    """Var B = 4c⁴(k² − (k − 2h)²) with E‖x‖² = k and (E‖x‖)² = k − 2h."""
    square = of.mean_norm(LEMMA) ** 2
    return 4 * c**4 * (LEMMA**2 - square**2)


def _mean_of_ratio(k: int) -> float:
    """E A/B at c = 1: 4R²/(k − 1) = 2(E‖x‖)²/(k − 1)."""
    return 2 * of.mean_norm(k) ** 2 / (k - 1)


_C = of.SMALL
_PRINTED_29 = 2 * _C**2 + (4 * _C**2 * LEMMA + 1) / (2 * LEMMA**2)
_PRINTED_30 = 8 + (16 * 12 + 1) / 12**2

CLAIMS = (
    _claim(
        "A1",
        "Section 1, filters and one-shot pruning",
        "Scores do not depend on the order of the weights, but for l1 nor on a rotation",
        "protocol",
        Computed("scores of permuted and of rotated filters", of.invariances),
    ),
    _claim(
        "A2",
        "Table 1",
        "l1, l2, GM and Fermat prune almost the same eight filters first",
        "holds for VGG16",
        Computed("filters shared, as the ledger counts them", of.table_1),
        Computed(
            "Gaussian filters share 0.68 of 8 in 256 by l1 and l2",
            of.table_1_overlap,
            predicted=0.68,
            tolerance=5e-3,
            form="corrected",
        ),
        corrected="l1 and l2 share 5 of 8 in ResNet18, as Gaussian filters would",
    ),
    _claim(
        "A3",
        "Figure 1",
        "Spearman's ρ of l1 and l2 is 0.98 in a layer of 128 filters in 576 dimensions",
        "evidence against one scale",
        Sampled("E Sp = 0.98 under CWDA", 0.98, FIGURE_1, form="rejected"),
        Sampled(
            "E Sp = 6(asin ρ + (N − 2) asin(ρ/2))/(π(N + 1))",
            lambda: float(pruning.expected_spearman(128, 576.0, ("l1", "l2"))),
            FIGURE_1,
            form="corrected",
        ),
        printed="0.98 and 0.99",
        corrected="0.927 for Gaussian filters: more needs a spread of the filters' scales",
    ),
    _claim(
        "A4",
        "Table 2 and its footnote",
        "Fermat: F = argmin Σ‖x − vⱼ‖; GM: Σₖ‖vₖ − vⱼ‖",
        "holds",
        Computed("Fermat points of known place, and the gap", of.medians, tolerance=1e-6),
    ),
    _claim(
        "A5",
        "Equation 1, Figure 2",
        "Overlap OD = #(C₁ ∩ C₂)/#C₂",
        "well defined",
        Sampled(
            "E OD of unrelated rankings = m/N",
            lambda: pruning.chance_overlap(64, ratio=0.5)[0],
            RANKINGS,
        ),
        Sampled(
            "Var OD is hypergeometric",
            lambda: pruning.chance_overlap(64, ratio=0.5)[1],
            RANKINGS,
            moment="variance",
        ),
        Computed("OD ≥ max(0, 2 − 1/p)", of.least_overlap, "inequality"),
        Computed("OD of a normal pair at ½ is ½ + asin(ρ)/π", of.overlap_at_one_half),
    ),
    _claim(
        "B1",
        "Equation 2, CWDA",
        "The filters of a trained layer are independent draws of N(0, c²I)",
        "an assumption",
        reason="an assumption about trained weights: docs/results/resnet20 has it tested",
    ),
    _claim(
        "B2.1",
        "Section 2.1, test (1)",
        "Kolmogorov-Smirnov's test of all weights against N(0, c²), at 5 %",
        "underspecified",
        Sampled("size with known parameters", of.ks_size, KS),
        Sampled("size 5 % with mean and scale estimated", 0.05, KS, 1, form="rejected"),
        Sampled(
            "fresh samples make p uniform: E p = 21/40, B = 19", 21 / 40, EXACT_KS, form="corrected"
        ),
        printed="plain p-values",
        corrected="p-values by fresh samples put through the same estimation",
    ),
    _claim(
        "B2.2",
        "Section 2.1, test (2)",
        "Student's t test that the filters' standard deviations are alike, at 5 %",
        "the wrong test",
        Sampled("size 5 % at the margin", 0.05, STDS, 1, form="rejected"),
        Sampled(
            "χ² test: size at most 5 % at the margin", 0.05, STDS, 2, side="≤", form="corrected"
        ),
        Sampled(
            "E σⱼ = E χ_{d−1}/√(d − 1)",
            lambda: of.mean_norm(of.SPREAD[1] - 1) / (of.SPREAD[1] - 1) ** 0.5,
            STDS,
            form="corrected",
        ),
        Sampled(
            "Var σⱼ = 2h(d − 1)/(d − 1)",
            lambda: float(pruning.chi_variance(1.0, of.SPREAD[1] - 1.0)) / (of.SPREAD[1] - 1),
            MANY_STDS,
            moment="variance",
            form="corrected",
        ),
        printed="t test of (σⱼ/mean − 1)²",
        corrected="χ² test of the spread: the t test's size is 0.18",
    ),
    _claim(
        "B2.3",
        "Section 2.1, test (3)",
        "|μ| ≤ eps S with S the sample variance",
        "units differ",
        Computed(
            "p with S the variance does not change with the unit",
            of.units_of_the_literal_test,
            form="rejected",
        ),
        Computed("nor with S the standard deviation", of.units_of_the_test, form="corrected"),
        Sampled("power of the two t tests at μ = 0", of.mean_test_power, MEANS, form="corrected"),
        printed="S a variance",
        corrected="S the standard deviation, two one-sided tests",
    ),
    _claim(
        "B2.4",
        "Figure 3, Table 3",
        "Histograms look Gaussian in some 40 settings of training",
        "settings only",
        Computed(
            "distance of uniform and of truncated normal starts",
            of.distances_to_a_gaussian,
            tolerance=1e-6,
        ),
        corrected="at the start the answer is known: 0.0572 uniform, 0.0167 truncated normal",
    ),
    _claim(
        "B3.1",
        "Section 3.2, approximately monotonic",
        "Small variances of X/Y and Y/X make Sp(X, Y) ≈ 1",
        "wrong",
        _layer("Sp = 1 of norms of independent filters", 1.0, "unrelated", "rejected"),
        Computed(
            "Pearson(log X, log Y) ≥ √(1 − Var(log X/Y)/Var(log Y))",
            of.log_ratios,
            "inequality",
            form="corrected",
        ),
        Sampled(
            "their Var(X/Y) is as small as 1/d",
            of.independent_ratio_variance,
            RATIOS,
            2,
            "variance",
            form="corrected",
        ),
        printed="Var(X̂/Ŷ) ≪ 1",
        corrected="Var(log X/Y) ≪ Var(log Y)",
    ),
    _claim(
        "B3.2",
        "Theorem 1, Equations 3 and 25",
        "Var(l1/l2) and Var(l2/l1) of a Gaussian filter in n dimensions, scaled to mean 1, ≲ 1/n",
        "holds, very loose",
        Computed("n Var ≤ 1, n = 2..2304", of.theorem_1_bound, "inequality"),
        Sampled(
            "Var(l1/l2) = (π − 1)/(2n), n = 64",
            (math.pi - 1) / (2 * RATIO_DIMS),
            RATIOS,
            0,
            "variance",
            form="rejected",
        ),
        Sampled(
            "Var(l1/l2), exact",
            lambda: pruning.l1_l2_ratio_variance(RATIO_DIMS)[0],
            RATIOS,
            0,
            "variance",
            form="corrected",
        ),
        Sampled(
            "Var(l2/l1), exact",
            lambda: pruning.l1_l2_ratio_variance(RATIO_DIMS)[1],
            RATIOS,
            1,
            "variance",
            form="corrected",
        ),
        Computed("2n Var < π − 3", of.theorem_1_sharp, "inequality", form="corrected"),
        Computed(
            "n Var → (π − 3)/2 like 1/n",
            of.theorem_1_rate,
            "limit",
            -1.0,
            0.1,
            form="corrected",
        ),
        printed="the proof has (π − 1)/(2n), the value of independent l1 and l2",
        corrected="(1 + CV₁²)/(1 + CV₂²) − 1 < (π − 3)/(2n), fifteen times smaller",
    ),
    _claim(
        "B3.3",
        "Conclusion from Theorem 1",
        "l1 and l2 rank alike, the more so as the dimension grows",
        "wrong limit",
        Computed("Sp → 1", of.limit_of_spearman, predicted=1.0, tolerance=0.01, form="rejected"),
        Computed(
            "Sp → (6/π) asin(1/(2√(π − 2))) = 0.930078",
            of.limit_of_spearman,
            predicted=0.930078,
            tolerance=1e-5,
            form="corrected",
        ),
        Computed(
            "Corr(l1, l2) falls to 1/√(π − 2) like 1/n",
            of.correlation_rate,
            "limit",
            -1.0,
            0.1,
            form="corrected",
        ),
        Sampled(
            "Cov(l1, l2)/(E l1 E l2) = CV₂²",
            lambda: of.norm_cv2(DIMS),
            THREE,
            10,
            form="corrected",
        ),
        _layer("E Sp, 64 filters", lambda: _spearman("l1", "l2"), "l1-l2", "corrected"),
        printed="Sp → 1",
        corrected="Sp → 0.9301, from above",
    ),
    _claim(
        "B3.4",
        "Equations 4 and 5, Theorem 2",
        "The Fermat point of Gaussian filters is 0, and so is the centroid",
        "holds for the population",
        Computed("E‖F − v‖ grows with ‖F‖", of.distance_grows, "inequality"),
        _layer("‖F‖² = 0 of a layer", 0.0, "‖F‖²", "rejected"),
        _layer(
            "E‖F‖² = d q/N",
            lambda: of.LONG * (1 + of.norm_cv2(of.LONG)) / of.FILTERS,
            "‖F‖²",
            "corrected",
        ),
        _layer("E‖G‖² = d/N", of.LONG / of.FILTERS, "‖G‖²", "corrected"),
        _layer("E Sp(l2, Fermat)", lambda: _spearman("l2", "fermat"), "l2-fermat", "corrected"),
        printed="F = G = 0",
        corrected="of a layer of N filters, F and G have variance c²/N in every coordinate",
    ),
    _claim(
        "B3.5",
        "Theorem 3, Equation 6",
        "Var(F₁/F₂) ≈ Var(F₂/F₁) ≈ 1/(2nk) for large k and small c",
        "holds in k, any c",
        Computed("2nk Var → 1 like 1/k", of.theorem_3_rate, "limit", -1.0, 0.1),
        Sampled(
            "Var(F₁/F₂), exact, n = 10, k = 9",
            lambda: pruning.norm_sum_ratio_variance(*of.SUMS)[0],
            SUMS,
            0,
            "variance",
            form="corrected",
        ),
        Sampled(
            "Var(F₂/F₁), exact",
            lambda: pruning.norm_sum_ratio_variance(*of.SUMS)[1],
            SUMS,
            1,
            "variance",
            form="corrected",
        ),
        Computed("F₁/F₂ does not depend on c", of.theorem_3_units, form="corrected"),
        corrected="exact for every n and k; c is irrelevant",
    ),
    _claim(
        "B3.6, Eq. 8",
        "Equation 8",
        "Theorem 3 for aᵢ = P − vᵢ",
        "misapplied",
        Sampled(
            "Var(F₁/F₂) = 1/(2nk), n = 20, k = 100",
            lambda: pruning.norm_sum_ratio_variance_limit(*of.SHARED),
            SHARED,
            0,
            "variance",
            form="rejected",
        ),
        Sampled(
            "Var(F₁/F₂) = (1 + 3/n)/(8k)",
            lambda: pruning.norm_sum_ratio_variance_limit(*of.SHARED, shared=True),
            SHARED,
            0,
            "variance",
            form="corrected",
        ),
        printed="1/(2nk)",
        corrected="(1 + 3/n)/(8k): the aᵢ share P, and it does not vanish with n",
    ),
    _claim(
        "B3.6, Eq. 9-10",
        "Equations 9 and 10, transitivity",
        "l1 ≈ l2 ≈ Fermat ≈ GM by transitivity",
        "quantitative only",
        Computed(
            "r₁₃ ≥ r₁₂r₂₃ − √((1 − r₁₂²)(1 − r₂₃²))",
            of.transitivity,
            "inequality",
            form="corrected",
        ),
        _layer("E Sp(l1, GM)", lambda: _spearman("l1", "gm"), "l1-gm", "corrected"),
        _layer("E Sp(l1, Fermat)", lambda: _spearman("l1", "fermat"), "l1-fermat", "corrected"),
        _layer("E Sp(l2, GM)", lambda: _spearman("l2", "gm"), "l2-gm", "corrected"),
        _layer("E Sp(Fermat, GM)", lambda: _spearman("fermat", "gm"), "fermat-gm", "corrected"),
        corrected="0.93 and 0.93 alone guarantee 0.73; measured values are known",
    ),
    _claim(
        "B3.7, D4.6",
        "Theorem 4, Equations 7 and 57 to 81",
        "Σ‖P − vᵢ‖² = Σ‖G − vᵢ‖² + (k + 1)‖P − G‖² under conditions on rank",
        "holds without conditions",
        Computed("flat, equal, single and heavy-tailed points too", of.leibniz, tolerance=1e-13),
        corrected="for any points and any P",
    ),
    _claim(
        "B3.8",
        "Table 4",
        "Accuracies by l1, l2 and GM are alike, pruned and fine-tuned",
        "holds once fine-tuned",
        Computed("spreads and Friedman's tests, as in the ledger", of.table_4, tolerance=6e-3),
        Computed(
            "pruned, the largest spread is at most 3 times that of fine-tuned",
            of.alike_before_tuning,
            "inequality",
            form="rejected",
        ),
        printed="in both stages",
        corrected="once fine-tuned (0.35 points at most), before it up to 8.32",
    ),
    _claim(
        "B3.8, Figure 4",
        "Figure 4",
        "Sp exceeds 0.9 in most layers of trained networks",
        "as CWDA predicts",
        reason="of trained networks: docs/results/resnet20 has it layer by layer",
    ),
    _claim(
        "C1",
        "Section 4.1 (1)",
        "The network must be trained well enough for CWDA",
        "not falsifiable",
        reason="qualitative: an untrained Gaussian start satisfies CWDA exactly",
    ),
    _claim(
        "C2",
        "Section 4.1 (2), Figure 5",
        "Sp rises with the number of filters",
        "holds with Fermat and GM",
        _layer("E Sp(l2, GM), 64 filters", lambda: _spearman("l2", "gm"), "l2-gm"),
        Sampled(
            "E Sp(l1, l2), 128 filters",
            lambda: float(pruning.expected_spearman(128, 576.0, ("l1", "l2"))),
            FIGURE_1,
        ),
        corrected="like 1/N with Fermat and GM; hardly for l1 and l2",
    ),
    _claim(
        "C3",
        "Section 4.1 (3), Figure 6",
        "The covariance of Gaussian filters is nearly c²I",
        "entrywise only",
        Computed("Cov = Gram/d − mᵢmⱼ", of.covariance_of_filters, tolerance=1e-12),
        Sampled("E r² of two filters = 1/(d − 1)", 1 / (DIMS - 1), THREE, 12),
        _layer("mean square off the diagonal = 1/d", 1 / of.LONG, "off-diagonal"),
        _layer("largest eigenvalue = c²", 1.0, "eigenvalue", "rejected"),
        printed="nearly c²I",
        corrected="off the diagonal c²/√d; eigenvalues fill c²(1 ± √(N/d))²",
    ),
    _claim(
        "C4, Theorem 5 (1)",
        "Theorem 5, item 1",
        "‖vᵢ‖ ≈ ‖vⱼ‖ → √2 c Γ((k + 1)/2)/Γ(k/2)",
        "relative only",
        Sampled("E‖v‖, d = 9", lambda: _theorem_5("norm_mean"), THREE),
        Sampled("Var‖v‖ = 2h", lambda: _theorem_5("norm_variance"), THREE, 0, "variance"),
        Sampled(
            "Var(‖vᵢ‖ − ‖vⱼ‖) = 4h stays",
            lambda: 2 * float(pruning.chi_variance(1.0, float(DIMS))),
            THREE,
            7,
            "variance",
            form="corrected",
        ),
        Computed(
            "CV‖v‖ falls like d^(−1/2)",
            of.norms_alike_rate,
            "limit",
            -0.5,
            0.05,
            form="corrected",
        ),
        corrected="ratios tend to 1 like 1/√d; differences keep the variance c²",
    ),
    _claim(
        "C4, Theorem 5 (2)",
        "Theorem 5, item 2",
        "The angle of two filters tends to π/2",
        "holds",
        Sampled("E angle = π/2", math.pi / 2, THREE, 5),
        Sampled(
            "Var angle = ψ′(d/2)/2", lambda: _theorem_5("angle_variance"), THREE, 5, "variance"
        ),
        Sampled("E|cos| = 1/(√π R)", lambda: _theorem_5("cosine_size"), THREE, 4),
        Computed("max|cos| ≥ Welch's bound", of.largest_cosine, "inequality", form="corrected"),
        corrected="not for more filters than dimensions all at once",
    ),
    _claim(
        "C4, Theorem 5 (3)",
        "Theorem 5, item 3, Figure 7",
        "All distances are equal",
        "relative only",
        Sampled("E‖vᵢ − vⱼ‖ = 2R", lambda: _theorem_5("distance_mean"), THREE, 6),
        Sampled("Var = 4h", lambda: _theorem_5("distance_variance"), THREE, 6, "variance"),
        Sampled(
            "Cov of squared distances that share a filter = 2d",
            2.0 * DIMS,
            THREE,
            9,
            form="corrected",
        ),
        Sampled(
            "Var(‖vᵢ − vⱼ‖ − ‖vᵢ − vₜ‖) = 0",
            0.01,
            THREE,
            8,
            "variance",
            side="≤",
            form="rejected",
        ),
        printed="distances become equal",
        corrected="ratios tend to 1; differences keep the variance 3c²/2",
    ),
    _claim(
        "C5",
        "Section 4.2, consequences",
        "Scores of all criteria become nearly equal, RePr's too",
        "holds, with rates",
        _layer("CV² of l1 = (π/2 − 1)/d", (math.pi / 2 - 1) / of.LONG, "CV² l1"),
        _layer("CV² of l2 = q − 1", lambda: of.norm_cv2(of.LONG), "CV² l2"),
        _layer(
            "CV² of Fermat = (1 + 2/N)/(2d)", (1 + 2 / of.FILTERS) / (2 * of.LONG), "CV² fermat"
        ),
        _layer("CV² of GM = 1/(8d)", 1 / (8 * of.LONG), "CV² gm"),
        _layer(
            "CV² of RePr = (1/(dμ²) − 1)(N − 2)/(N − 1)², μ = E|cos|; → (π/2 − 1)/N",
            of.repr_cv2,
            "CV² repr",
        ),
        corrected="l1, l2, Fermat and GM by the dimension, RePr by the number of filters",
    ),
    _claim(
        "C6",
        "Section 4.3, Figure 8",
        "Other parameters than convolutions are not Gaussian",
        "empirical",
        Computed(
            "gains of 1 lie Φ(1) from a Gaussian",
            of.constant_gains,
            predicted=0.8413447460685429,
            tolerance=1e-9,
        ),
    ),
    _claim(
        "C7",
        "CWDA Plus",
        "Filters independent from a symmetric law: Theorem 5 stays",
        "too weak",
        Sampled(
            "Var of ‖v‖ with random scales vanishes like 1/(2d)",
            lambda: of.norm_cv2(DIMS),
            THREE,
            13,
            "variance",
            form="rejected",
        ),
        Sampled(
            "Var of s‖v‖ = E s² q − (E s)², s log-normal of 0.5",
            lambda: math.exp(0.5) * (1 + of.norm_cv2(DIMS)) - math.exp(0.25),
            THREE,
            13,
            "variance",
            form="corrected",
        ),
        printed="Theorem 5 for symmetric laws",
        corrected="scales stay: Var(s)/E(s)² whatever the dimension",
    ),
    _claim(
        "D1.1",
        "Proposition 1, Equations 11 to 13",
        "Moments of the Amoroso law: θʲ Γ(α + j/β)/Γ(α)",
        "holds for α + j/β > 0",
        Computed("quadrature", of.amoroso),
        Computed(
            "the second moment is not negative, θ = α = 1.5, β = −1",
            of.amoroso_without_variance,
            "inequality",
            form="rejected",
        ),
        Computed("it is infinite", of.amoroso_infinite, form="corrected"),
        printed="no condition",
        corrected="for α + j/β > 0",
    ),
    _claim(
        "D1.2",
        "Proposition 2, Equations 14 and 15",
        "|x| of N(0, σ²): mean σ√(2/π), variance σ²(1 − 2/π)",
        "holds",
        Computed("real orders", of.half_normal),
        Sampled("mean", (2 / math.pi) ** 0.5, THREE, 1),
        Sampled("variance", 1 - 2 / math.pi, THREE, 1, "variance"),
        Sampled("Var l1 = d(1 − 2/π)", DIMS * (1 - 2 / math.pi), THREE, 2, "variance"),
    ),
    _claim(
        "D1.3",
        "Proposition 3, Equations 16 and 17",
        "‖v‖ⱼ of N(0, σ²I): 2^(j/2) σʲ Γ((k + j)/2)/Γ(k/2)",
        "holds",
        Computed("SciPy's chi", of.chi_law),
        Computed("h(k) grows and stays below 1/4", of.chi_defects, "inequality", tolerance=1e-12),
    ),
    _claim(
        "D1.4",
        "Proposition 4, Equation 18",
        "Γ(x + 1) ~ √(2πx)(x/e)ˣ",
        "holds",
        Computed("relative error ~ 1/x", of.stirling, "limit", -1.0, 0.05),
    ),
    _claim(
        "D1.5",
        "Proposition 5, Equation 19 (FKG)",
        "E f g ≥ E f E g for increasing f and g on Rⁿ",
        "hypothesis missing",
        Sampled("E x₁x₂ ≥ 0 at X = (z, −z)", 0.0, THREE, 15, side="≥", form="rejected"),
        Sampled(
            "Cov(l1, l2) ≥ 0: increasing in |x₁|, …, |xₙ|",
            0.0,
            THREE,
            10,
            side="≥",
            form="corrected",
        ),
        printed="any X",
        corrected="independent coordinates, here |x₁|, …, |xₙ|",
    ),
    _claim(
        "D1.6",
        "Proposition 6, Equations 20 and 21, Lemma 1, Equation 22",
        "Var(X/Y) ≈ (EX/EY)²(CVₓ² + CVᵧ² − 2Cov/(EX EY))",
        "asymptotic",
        Computed("relative error ~ 1/n for l1/l2", of.delta_method_rate, "limit", -1.0, 0.1),
    ),
    _claim(
        "D1.7",
        "Lemma 2, Equations 23 and 24",
        "R(x)²/x → 1/2 and x/2 − R(x)² → 1/4",
        "holds",
        Computed("both errors ~ 1/x", of.gamma_ratios, "limit", -1.0, 0.05),
    ),
    _claim(
        "D1.8",
        "Figure 9",
        "Ratio variances of the layers of trained ResNets follow 1/n",
        "cannot fail",
        reason="of trained networks; B3.2 has the constant to compare with, 0.0708/n",
    ),
    _claim(
        "D2",
        "Proposition 7, Equations 26 to 28",
        "E‖F − v‖ = σ²√(π/2) L(−‖F‖²/2σ²), with a slope that L_{−1/2} > 0 makes positive",
        "unit of the factor",
        Computed("L_{−1/2} > 0", of.laguerre, "inequality"),
        Sampled(
            "σ² √(π/2) L at ‖F‖ = 2, σ = 1.7, d = 9",
            lambda: 1.7 * float(pruning.expected_distance(jnp.asarray(2.0), 1.7, float(DIMS))),
            THREE,
            14,
            form="rejected",
        ),
        Sampled(
            "σ √(π/2) L",
            lambda: float(pruning.expected_distance(jnp.asarray(2.0), 1.7, float(DIMS))),
            THREE,
            14,
            form="corrected",
        ),
        printed="σ²",
        corrected="σ",
    ),
    _claim(
        "D3.1, Eq. 31",
        "Lemma 3, Equation 31",
        "Var(2‖x‖‖y‖), k = 20",
        "units differ",
        Sampled(
            "c² + 4c⁴k at c = 0.05",
            _C**2 + 4 * _C**4 * LEMMA,
            LEMMA_3,
            4,
            "variance",
            form="rejected",
        ),
        Sampled(
            "4c⁴(k² − (k − 2h)²)",
            lambda: _lemma_variance_of_b(_C),
            LEMMA_3,
            4,
            "variance",
            form="corrected",
        ),
        Sampled("E B = 2(k − 2h)", lambda: 2 * of.mean_norm(LEMMA) ** 2, LEMMA_3, 1),
        printed="c² + 4c⁴k",
        corrected="4c⁴k − 2c⁴ + O(c⁴/k)",
    ),
    _claim(
        "D3.1, Eq. 32",
        "Lemma 3, Equation 32",
        "Var (‖x‖² − ‖y‖²)², k = 5",
        "wrong",
        Sampled("16c⁸(2k² + 3k)", 16.0 * 65, IN_5, 0, "variance", form="rejected"),
        Sampled("16c⁸(2k² + 6k)", 16.0 * 80, IN_5, 0, "variance", form="corrected"),
        Sampled("E A = 4c⁴k", 4.0 * LEMMA, LEMMA_3),
        printed="16c⁸(2k² + 3k)",
        corrected="16c⁸(2k² + 6k), exact",
    ),
    _claim(
        "D3.1, Eq. 29 and 33",
        "Lemma 3, Equations 29 and 33",
        "E A/B at c = 0.05, k = 20",
        "wrong",
        Sampled("2c² + (4c²k + 1)/(2k²)", _PRINTED_29, LEMMA_3, 2, form="rejected"),
        Sampled(
            "4c²R²/(k − 1)",
            lambda: _C**2 * _mean_of_ratio(LEMMA),
            LEMMA_3,
            2,
            form="corrected",
        ),
        printed="2c² + (4c²k + 1)/(2k²)",
        corrected="4c²R²/(k − 1) = 2c² + c²/k + …, exact",
    ),
    _claim(
        "D3.1, Eq. 30",
        "Lemma 3, Equation 30",
        "Var A/B at c = 1, k = 12",
        "violated",
        Sampled(
            "≲ 8c⁴ + (16c⁴k + c²)/k²",
            _PRINTED_30,
            IN_12,
            0,
            "variance",
            side="≤",
            form="rejected",
        ),
        Sampled(
            "12c⁴k/(k − 2) − (E A/B)²",
            lambda: 12 * 12 / 10 - _mean_of_ratio(12) ** 2,
            IN_12,
            0,
            "variance",
            form="corrected",
        ),
        Sampled("E(A/B)² = 12c⁴k/(k − 2)", 12 * LEMMA / (LEMMA - 2), LEMMA_3, 3, form="corrected"),
        printed="≲ 8c⁴ + (16c⁴k + c²)/k²",
        corrected="8c⁴ + 20c⁴/k + …, exact",
    ),
    _claim(
        "D3.1, Eq. 34",
        "Equation 34, Figure 10",
        "2xy ≫ (x² − y²)² for small c",
        "units differ",
        Computed("A/B over c² does not depend on c", of.lemma_3_units, form="corrected"),
        Sampled(
            "E (x − y)²/(2xy) = 2R²/(k − 1) − 1",
            lambda: _mean_of_ratio(LEMMA) / 2 - 1,
            LEMMA_3,
            5,
            form="corrected",
        ),
        printed="small c",
        corrected="(x − y)² ≪ 2xy, like 1/(2k), at every c",
    ),
    _claim(
        "D3.2",
        "Lagrange's identity in the proof of Theorem 3",
        "nΣa² = (Σa)² + Σ(a² − b²)²",
        "wrong",
        Computed("as printed", of.lagrange_printed, tolerance=1e-6, form="rejected"),
        Computed("nΣa² = (Σa)² + Σ(a − b)²", of.lagrange, tolerance=1e-12, form="corrected"),
        printed="(a² − b²)²",
        corrected="(a − b)²",
    ),
    _claim(
        "D3.3",
        "Equations 35 to 41, Figure 11",
        "Σr/Σr², n/Σr, Σr²/Σr and Σr/n have the relative variance 1/(2nk)",
        "holds",
        Computed("over (q − 1)/n", of.theorem_3_chain, predicted=1.0, tolerance=0.03),
        corrected="(q − 1)/n, at every k",
    ),
    _claim(
        "D4.1",
        "Proposition 8, Equation 42",
        "A Gaussian matrix has full rank with probability 1",
        "holds",
        Computed("entries, and differences from a row", of.ranks_of_gaussian_matrices),
    ),
    _claim(
        "D4.2",
        "Lemma 4, Equation 43",
        "Every x is Σλᵢvᵢ with Σλᵢ = 1 if rank(vᵢ − v₀) = n, k ≤ n",
        "typo",
        Computed(
            "residual of 4 points in R⁷", of.barycentric_of_few, tolerance=0.1, form="rejected"
        ),
        Computed("residual for k ≥ n", of.barycentric, tolerance=1e-11, form="corrected"),
        printed="k ≤ n",
        corrected="k ≥ n",
    ),
    _claim(
        "D4.3",
        "Lemma 5, Equations 44 to 52",
        "‖a − b‖² = (λ − μ)ᵀD(λ − μ), Dᵢⱼ = −‖vᵢ − vⱼ‖²/2",
        "holds",
        Computed("relative difference", of.distance_form),
    ),
    _claim(
        "D4.4",
        "Definition 1, Equation 53",
        "The ultra dimension of v₀ + W is dim W, or one more",
        "holds",
        Computed("r and r + 1 in R⁶", of.spans),
    ),
    _claim(
        "D4.5",
        "Lemma 6, Equations 54 to 56",
        "Points of an affine hyperplane complete independent vectors to a basis",
        "holds",
        Computed("rank less n", of.completed_bases),
    ),
    _claim(
        "D5, Eq. 82-84",
        "Equations 82 to 84",
        "P(|r − √2 c R| ≤ c√(M/2)) ≥ 1 − 1/M",
        "holds for every k",
        Computed("exactly, k = 1 to 100", of.concentrated_norms, "inequality"),
    ),
    _claim(
        "D5, Eq. 85-88",
        "Equations 85 to 88",
        "Var(vᵢₚvⱼₚ) = 1, so that ⟨vᵢ, vⱼ⟩/√k is N(0, 1)",
        "units differ",
        Sampled("Var⟨vᵢ, vⱼ⟩/k = 1 at c = 0.7", 1.0, THREE, 11, "variance", form="rejected"),
        Sampled("Var⟨vᵢ, vⱼ⟩/k = c⁴", 0.49**2, THREE, 11, "variance", form="corrected"),
        Sampled("Var cos = 1/k", lambda: _theorem_5("cosine_variance"), THREE, 3, "variance"),
        printed="1",
        corrected="c⁴; divided by the norms 1/k, exactly",
    ),
    _claim(
        "D6",
        "Appendices G and H",
        "Statistical tests and details of the experiments",
        "headings only",
        reason="the appendices are headings without content",
    ),
)
