"""Claims of the unitization paper (Huang and Yu)."""

from geometry.claims import _unitization_cases as of
from geometry.claims._claim import Check, Claim, Computed, Draws, Sampled

PAPER = "Unitization"

RADIAL = Draws(of.radial_transport, 20_000, batch_size=2000, block=200)
IMAGES = Draws(of.mean_difference, 2000, batch_size=100, block=20)
KURTOSIS = Draws(of.unitized_kurtosis, 100_000, batch_size=10_000, block=500)
EXACT = 1e-9


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


CLAIMS = (
    _claim(
        "U16",
        "Equation 10, claimed to obey Theorem 3.2",
        "W(g(X), g(Y)) of X ~ N(0, I), Y ~ N(0, 9I) in 64 dimensions, alpha = 1/2",
        "not covered by the theory",
        Sampled("W ≤ 2/alpha", 2 / of.ALPHA, RADIAL, side="≤", form="rejected"),
        Sampled(
            "W = (1 − alpha)(s₂ − s₁) E‖z‖",
            (1 - of.ALPHA) * (of.LARGE - of.SMALL) * of.mean_norm(of.DIMS),
            RADIAL,
            form="corrected",
        ),
        Computed("W ≤ 2/alpha for ±R e₁", of.uncovered, "inequality", form="rejected"),
        Computed("W = 2(alpha + (1 − alpha)R) for ±R e₁", of.counterexample, form="corrected"),
        Computed(
            "W ≤ E max(alphaⱼ + (1 − alphaⱼ)‖X‖) + the same of Y",
            of.interpolated_bound,
            "inequality",
            form="corrected",
        ),
        Computed(
            "|Eq. 10| ≥ |Eq. 9| for alpha in [0, 1]",
            of.harmonic_and_arithmetic,
            "inequality",
            tolerance=1e-12,
            form="corrected",
        ),
        printed="W ≤ 2/alpha",
        corrected="W grows without bound: W ≤ 2 + (1 − alpha)(E(‖X‖ − 1)₊ + E(‖Y‖ − 1)₊)",
    ),
    _claim(
        "U1",
        "Equation 1",
        "Local objective of the layers above l: E h(x, y; Θ) over the outputs of l",
        "definition",
        reason="a definition, with nothing to compute",
    ),
    _claim(
        "U2",
        "Equations 2 and 3",
        "W = inf E‖X − Y‖ over couplings = sup E f(X) − E f(Y) over 1-Lipschitz f",
        "holds",
        Computed("assignment, linear programme, its dual, one dimension", of.exact_distances),
        Computed(
            "‖μ − μ′‖ ≤ W ≤ mean displacement", of.simple_bounds, "inequality", tolerance=EXACT
        ),
        corrected="for finite first moments",
    ),
    _claim(
        "U3",
        "Facts 1 and 2",
        "The supremum stays with an absolute value, and with f(0) = 0",
        "holds",
        Computed("dual with the other sign, and pinned", of.facts, tolerance=1e-8),
    ),
    _claim(
        "U4",
        "Theorem 1",
        "W ≤ S + S′ + D + 2",
        "holds, loose",
        Computed("heavy-tailed and opposite points", of.theorem_1, "inequality"),
        Computed(
            "W ≤ √(S + S′ + D²) ≤ S + S′ + D + 1/4",
            of.moment_bounds_sharp,
            "inequality",
            form="corrected",
        ),
        Computed("both are attained", of.theorem_1_attained, form="corrected"),
        Computed(
            "the bound is in the unit of W",
            of.theorem_1_units,
            tolerance=0.1,
            form="rejected",
        ),
        printed="S + S′ + D + 2, of no unit",
        corrected="√(S + S′ + D²), attained",
    ),
    _claim(
        "U5",
        "Equation 4",
        "W ≤ Σv + Σv′ + 2d + ‖e − e′‖ + 2 of outputs of a batch norm",
        "holds, loose",
        Computed("equals Theorem 1", of.equation_4, tolerance=1e-12),
        Computed("√(2d) is attained without noise", of.worst_normalized, form="corrected"),
        corrected="without noise √(2d) at most, the same in units of √d for every d",
    ),
    _claim(
        "U6",
        "Unbounded example",
        "W of uniform laws on [C′/2, C′]ᵈ and [0, C′/4]ᵈ exceeds (2⁻ᵏ − 4⁻ᵏ)√d C′/k",
        "holds, loose",
        Computed("k = 2 to 7, d = 1", of.unbounded_example, "inequality"),
        Computed(
            "W = 5C′/8 for d = 1", of.distance_of_the_example, predicted=0.625, form="corrected"
        ),
        corrected="0.625 to 0.6292 √d C′: the unboundedness is W(cx, cy) = cW(x, y)",
    ),
    _claim(
        "U7",
        "Theorem 2, f of p and C",
        "W ≥ |E f(X) − E f(Y)| with f = Σ clip(xᵢ, ±C)ᵖ/(p C^(p−1) √d)",
        "holds",
        Computed("f is 1-Lipschitz", of.lipschitz_constant, "inequality", tolerance=1e-6),
        Computed("p = 2, 3 and 5", of.theorem_2, "inequality"),
    ),
    _claim(
        "U8",
        "Equation 5",
        "W ≥ |Σ(e² + v − e′² − v′)|/(2C₀√d)",
        "holds inside C₀",
        Computed("Theorem 2 at p = 2 with C₀ the largest entry", of.equation_5),
        Computed(
            "with C₀ = 1 below the support", of.equation_5_outside, "inequality", form="rejected"
        ),
        printed="no condition on C₀",
        corrected="supports must lie in [−C₀, C₀]ᵈ",
    ),
    _claim(
        "U9",
        "Equation 6",
        "g(x) = x/‖x‖, a fixed unit vector at 0",
        "definition",
        Computed("norm 1, scale free, finite gradient at 0", of.unit_vectors, tolerance=1e-12),
    ),
    _claim(
        "U10",
        "Equation 7",
        "W of transformed outputs is that of the transformed points",
        "definition",
        Computed("by the dual", of.transported_distances, tolerance=1e-8),
    ),
    _claim(
        "U11",
        "Theorem 3.1",
        "W(g(X), g(Y)) ≤ 2 for Eq. 6",
        "holds, tight",
        Computed("any distributions", of.theorem_31, "inequality"),
        Computed(
            "W ≤ √(2 − 2⟨E g(X), E g(Y)⟩)", of.theorem_31_sharp, "inequality", form="corrected"
        ),
        corrected="√(2 − 2⟨E g(X), E g(Y)⟩); it bounds W and need not reduce it",
    ),
    _claim(
        "U12",
        "Equation 8",
        "g(x) = x/(alpha‖x‖ + 1 − alpha)",
        "definition",
        Computed("W(g(X), g(Y)) ≤ W/(1 − alpha)", of.stretch, "inequality"),
        Computed(
            "it does not increase W", of.increases, "inequality", tolerance=0.01, form="rejected"
        ),
        printed="read as a reduction",
        corrected="W may grow, up to 1/(1 − alpha) times",
    ),
    _claim(
        "U13",
        "Theorem 3.2",
        "Eq. 8: W ≤ 2/alpha, and E‖X‖ + E‖Y‖ at alpha = 0",
        "holds, tight",
        Computed("four alphas", of.theorem_32, "inequality"),
        Computed("W ≤ E h(‖X‖) + E h(‖Y‖)", of.theorem_32_sharp, "inequality", form="corrected"),
        Computed(
            "different alphas: 1/alpha + 1/alpha′",
            of.different_alphas,
            "inequality",
            form="corrected",
        ),
        corrected="E h(‖X‖) + E h(‖Y‖), h(r) = r/(alpha r + 1 − alpha), for every alpha",
    ),
    _claim(
        "U14",
        "Equation 9",
        "gᵢ(x) = xᵢ/(1 + alphaᵢ(‖x‖ − 1))",
        "definition",
        Computed(
            "singular only outside [0, 1], at ‖x‖ = 1 − 1/alphaᵢ",
            of.singular_radii,
            tolerance=1e-12,
        ),
    ),
    _claim(
        "U15",
        "Theorem 3.3",
        "Eq. 9: W ≤ 2/min alpha, and E‖X‖ + E‖Y‖ + 2 at min alpha = 0",
        "holds, proof repaired",
        Computed("three vectors alpha", of.theorem_33, "inequality"),
        Computed("the +2 is needed", of.two_is_needed, predicted=2.0, form="corrected"),
        Computed("W ≤ E r/m(r) of both", of.theorem_33_sharp, "inequality", form="corrected"),
        corrected="E max(‖X‖, 1) + E max(‖Y‖, 1) at min alpha = 0",
    ),
    _claim(
        "U17",
        "Range of alpha",
        "alpha stays in [0, 1] although it is trained freely",
        "wrong in practice",
        reason="of trained networks: about half of all alpha turn negative, docs/results/shift",
    ),
    _claim(
        "U18",
        "Algorithm 1",
        "Batch norm, then [p alpha + 1 − alpha] with p = 1/√(‖x̂‖² + eps), then the affine map",
        "well defined",
        Computed("line by line", of.algorithm_1, tolerance=1e-12),
    ),
    _claim(
        "U19",
        "Algorithm 2 at alpha = 1, claimed to obey Theorem 3.1",
        "‖E g(X) − E g(Y)‖ ≤ W of 8×8×16 images X ~ N(1, I), Y ~ N(−1, I)",
        "loosens the bound",
        Sampled("W ≤ 2", 2.0, IMAGES, side="≤", form="rejected"),
        Sampled(
            "‖E g(X) − E g(Y)‖ = 2HW E cos(u, X)",
            lambda: 2 * of.HEIGHT * of.WIDTH * of.mean_cosine(),
            IMAGES,
            form="corrected",
        ),
        Computed("line by line", of.algorithm_2, tolerance=1e-12),
        Computed("every image has the norm HW", of.norms_of_images, form="corrected"),
        printed="W ≤ 2",
        corrected="2HW E cos(u, X) ≤ W ≤ 2HW: line 9's n = HW gives every image the norm HW",
    ),
    _claim(
        "U20",
        "Figure 1",
        "Statistics over the batch, over a pixel's channels, or over an image",
        "definition",
        Computed("(c) permuting pixels permutes the outputs", of.permuted_pixels, tolerance=1e-12),
    ),
    _claim(
        "U21",
        "Running statistics",
        "Inference uses averages of batch means and of corrected variances",
        "under-specified",
        Computed("n/(n − 1) makes the variance unbiased", of.running_variance, tolerance=1e-12),
    ),
    _claim(
        "U22",
        "Algorithm 3",
        "A clipped critic estimates the earth mover distance",
        "not an estimate",
        Computed(
            "its value over W = 8 is 1 within 1/2",
            of.critic,
            predicted=1.0,
            tolerance=0.5,
            form="rejected",
        ),
        printed="d is proportional to W",
        corrected="|d| < 1 whatever W: see docs/results/shift/estimators.json",
    ),
    _claim(
        "U23",
        "Section 4.1, Figure 2",
        "Skewness and kurtosis fluctuate with batch norm and are stable when unitized",
        "not reproduced",
        Sampled("E x₁⁴ = 3/(d(d + 2)) at alpha 1, d = 8", 3 / 80, KURTOSIS),
        Sampled("E x₁² = 1/d", 1 / 8, KURTOSIS, 1),
        Computed("moments as SciPy has them", of.moments_of_a_sample),
        corrected="kurtosis 3d/(d + 2) of Gaussian data; training: docs/results/shift",
    ),
    _claim(
        "U24",
        "Figure 3",
        "The distance falls when the learning rate does, so it measures covariate shift",
        "reproduced, trivially",
        reason="trains networks: docs/results/shift, the fall follows the learning rate",
    ),
    _claim(
        "U25, U26",
        "Tables 1 and 2",
        "Unitization gains on CIFAR-10 and CIFAR-100",
        "arithmetic consistent",
        Computed("differences in the text", of.table_differences, tolerance=5e-3),
    ),
    _claim(
        "U27",
        "Table 3",
        "Unitization outperforms batch norm on ImageNet",
        "not uniformly",
        Computed("top-5 with crops is not lower", of.top_five, "inequality", form="rejected"),
        printed="outperforms",
        corrected="its top-5 accuracy with crops is lower by 0.23 points",
    ),
    _claim(
        "U28",
        "Appendix C, Table 4",
        "With batches of two, unitization is best",
        "arithmetic consistent",
        Computed("the best other is lower", of.micro_batches, "inequality"),
    ),
    _claim(
        "U29",
        "Sections 1 and 3, qualitative",
        "A smaller bound loses more information",
        "partly",
        Computed(
            "for alpha < 1 nothing is lost: r is recovered", of.recovered_norms, tolerance=1e-6
        ),
        corrected="Eqs. 8 and 10 are injective for alpha < 1 and collapse rays only at 1",
    ),
)
