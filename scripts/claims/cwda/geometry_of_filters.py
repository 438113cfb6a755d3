"""Section 4.2 of the pruning paper, on lengths, angles and distances of filters."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import DIMS, LAYER_DIMS, LAYER_FILTERS, LAYERS, THREE_FILTERS, norm_cv2
from claims.cwda._networks import failing, of_resnet20
from claims.draws import exponent, generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from geometry.filters import FilterGeometry, gaussian_filter_geometry, welch_bound
from jaxnorm.internal import chi_mean

claim = partial(Claim, "CWDA")


def expected() -> FilterGeometry:
    """The moments in Theorem 5 for filters with `DIMS` dimensions."""
    return gaussian_filter_geometry(DIMS)


THEOREM_5_1 = claim(
    "Theorem 5, item 1",
    r"$\|v_i\| \approx \|v_j\| \to \sqrt2\,c\,\Gamma((k + 1)/2)/\Gamma(k/2)$",
    corrected=r"Ratios of norms of filters tend to 1 like $1/\sqrt d$, but differences of norms "
    "keep the variance $c^2$",
    remark=Remark(
        "over-reading",
        "As $d$ grows, the ratio of the norms of two filters tends to 1, but the difference of "
        "the norms keeps the variance $c^2$. CWDA Plus allows filters with different scales, and "
        "for such filters, the ratio of norms does not tend to 1.",
    ),
    why=r"The variance $\operatorname{Var}\|v\| = 2c^2h(d)$ grows only to $c^2/2$, while the "
    r"mean $E\|v\|$ grows like $c\sqrt d$. In item 1 of Theorem 5, the printed “limit” "
    r"$\sqrt2\,c\,\Gamma((k + 1)/2)/\Gamma(k/2)$ diverges.",
)
THEOREM_5_1.mean("E‖v‖, d = 9", lambda: expected().norm_mean, THREE_FILTERS, "norm")
THEOREM_5_1.variance("Var‖v‖ = 2h", lambda: expected().norm_variance, THREE_FILTERS, "norm")


@THEOREM_5_1.rate("CV‖v‖ falls like d^(−1/2)", -0.5, tolerance=0.05)
def _() -> Values:
    dims = (64, 256, 1024)
    return exponent(dims, [math.sqrt(norm_cv2(d)) for d in dims])


THEOREM_5_1.variance(
    "‖vᵢ‖ − ‖vⱼ‖ tends to 0: Var ≤ 0.1",
    0.1,
    THREE_FILTERS,
    "norm_difference",
    side="≤",
    form="overread",
)
THEOREM_5_1.variance(
    "Var(‖vᵢ‖ − ‖vⱼ‖) = 4h",
    lambda: 2 * pruning.gaussian.chi_variance(1.0, float(DIMS)),
    THREE_FILTERS,
    "norm_difference",
    form="corrected",
)
THEOREM_5_1.variance(
    "‖v‖ of filters with random scales has the same CV, as under CWDA Plus",
    lambda: norm_cv2(DIMS),
    THREE_FILTERS,
    "scaled_norm",
    form="overread",
)
THEOREM_5_1.variance(
    "Var of s‖v‖ = E s² q − (E s)², s log-normal of 0.5",
    lambda: math.exp(0.5) * (1 + norm_cv2(DIMS)) - math.exp(0.25),
    THREE_FILTERS,
    "scaled_norm",
    form="corrected",
)


def _largest_cosine(v: np.ndarray) -> float:
    unit = v / np.linalg.norm(v, axis=1, keepdims=True)
    return float(np.abs(unit @ unit.T - np.eye(len(v))).max())


THEOREM_5_2 = claim(
    "Theorem 5, item 2",
    r"The angle of two filters tends to $\pi/2$",
    corrected="The angle of each pair of filters tends to a right angle. If there are more "
    "filters than dimensions, the angles of all pairs cannot be right angles at the same time",
    remark=Remark(
        "over-reading",
        "As $d$ grows, the angle of each pair of filters tends to a right angle. However, if the "
        r"number $N$ of filters exceeds the number $d$ of dimensions, the largest $|\cos|$ is at "
        r"least $\sqrt{(N - d)/(d(N - 1))}$.",
    ),
    why=r"For the cosine $\cos$ of two filters, $(1 + \cos)/2$ has the distribution "
    r"$\operatorname{Beta}((d - 1)/2, (d - 1)/2)$, with the variance $1/(4d)$.",
)
THEOREM_5_2.mean("E angle = π/2", math.pi / 2, THREE_FILTERS, "angle")
THEOREM_5_2.variance(
    "Var angle = ψ′(d/2)/2", lambda: expected().angle_variance, THREE_FILTERS, "angle"
)
THEOREM_5_2.mean("E|cos| = 1/(√π R)", lambda: expected().cosine_size, THREE_FILTERS, "cosine_size")


@THEOREM_5_2.at_most(
    "all pairs of 256 filters of 64 dimensions within 3 degrees", 0.05, form="overread"
)
def _(key: Key[Array, ""]) -> Values:
    return _largest_cosine(generator(key).normal(size=(256, 64)))


@THEOREM_5_2.at_most("max|cos| ≥ Welch's bound", form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    for v in generator(key).normal(size=(40, 12, 5)):
        yield welch_bound(*v.shape) - _largest_cosine(v)


@THEOREM_5_2.equal("simplices attain Welch's bound", tolerance=1e-12, form="corrected")
def _(key: Key[Array, ""]) -> Cases:
    for n in (3, 6, 20):
        simplex = np.eye(n) - 1 / n
        basis = np.linalg.svd(simplex)[0][:, : n - 1]
        turn = np.linalg.qr(generator(key).normal(size=(n - 1, n - 1)))[0]
        yield welch_bound(n, n - 1) - _largest_cosine(simplex @ basis @ turn)


def difference_of_distances(key: Key[Array, ""]) -> Statistics:
    """The differences ‖a − b‖ − ‖a − c‖ for 100 triples of Gaussian filters of 64 dimensions."""
    v = normal(key, 100, 3, 64)
    to_b, to_c = (jnp.linalg.norm(v[:, 0] - v[:, i], axis=1) for i in (1, 2))
    return {"difference": to_b - to_c}


DISTANCES = Draws(difference_of_distances, 40_000, batch_size=10_000, draws_per_key=100)


THEOREM_5_3 = claim(
    "Theorem 5, item 3, Figure 7",
    r"$\|v_i - v_j\| \approx \|v_i - v_t\|$",
    corrected="Ratios of distances between filters tend to 1, but differences of distances keep "
    "the variance $3c^2/2$",
    remark=Remark(
        "over-reading",
        "As $d$ grows, the ratio of two sides of the triangle in Figure 7 tends to 1, but the "
        "difference of two sides keeps the variance $3c^2/2$.",
    ),
    why="Squared distances of filters have the mean $2c^2d$ and the variance $8c^4d$. If two "
    "squared distances share a filter, their correlation is $1/4$.",
)
THEOREM_5_3.mean("E‖vᵢ − vⱼ‖ = 2R", lambda: expected().distance_mean, THREE_FILTERS, "distance")
THEOREM_5_3.variance("Var = 4h", lambda: expected().distance_variance, THREE_FILTERS, "distance")
THEOREM_5_3.variance(
    "‖vᵢ − vⱼ‖ − ‖vᵢ − vₜ‖ tends to 0: Var ≤ 0.1, d = 64",
    0.1,
    DISTANCES,
    "difference",
    side="≤",
    form="overread",
)
THEOREM_5_3.variance(
    "Var(‖vᵢ − vⱼ‖ − ‖vᵢ − vₜ‖) = 3/2 to first order in 1/d, d = 64",
    1.5,
    DISTANCES,
    "difference",
    within=1 / 64,
    form="corrected",
)
THEOREM_5_3.mean(
    "Cov of squared distances that share a filter = 2d",
    2.0 * DIMS,
    THREE_FILTERS,
    "squared_distance_covariance",
    form="corrected",
)


def repr_cv2() -> float:
    """The squared coefficient of variation of RePr's scores in a layer.

    The scores are dependent, because each cosine enters the scores of two filters.
    """
    mean_cosine = math.sqrt(2 / math.pi) / chi_mean(LAYER_DIMS)
    cosine_cv2 = 1 / (LAYER_DIMS * mean_cosine**2) - 1
    return cosine_cv2 * (LAYER_FILTERS - 2) / (LAYER_FILTERS - 1) ** 2


SECTION_4_2 = claim(
    "Section 4.2, consequences",
    "The scores of all criteria, including RePr, become nearly equal",
    corrected=r"The scores by $\ell_1$, $\ell_2$, Fermat and GM become equal as the dimension "
    "grows, and the scores by RePr become equal as the number of filters grows",
    remark=Remark(
        "over-reading",
        "The scores of RePr become equal if there are many filters, not if there are many "
        "dimensions. Two criteria with nearly equal scores can still rank the filters in the same "
        "order.",
    ),
    why=r"Norms have the squared coefficient of variation $\text{CV}^2 = O(1/d)$. The score RePr "
    r"of a filter is the sum of $|\cos|$ over the other $N - 1$ filters. A single $|\cos|$ has "
    r"$\text{CV}^2 \approx \pi/2 - 1$ in many dimensions, and the sum has $\text{CV}^2 = O(1/N)$.",
)
SECTION_4_2.mean("CV² of l1 = (π/2 − 1)/d", (math.pi / 2 - 1) / LAYER_DIMS, LAYERS, "squared_cv_l1")
SECTION_4_2.mean("CV² of l2 = q − 1", lambda: norm_cv2(LAYER_DIMS), LAYERS, "squared_cv_l2")
SECTION_4_2.mean(
    "CV² of Fermat = (1 + 2/N)/(2d), to first order in 1/d",
    (1 + 2 / LAYER_FILTERS) / (2 * LAYER_DIMS),
    LAYERS,
    "squared_cv_fermat",
    within=1 / LAYER_DIMS**2,
)
SECTION_4_2.mean(
    "CV² of Fermat exceeds CV² of l2 by at least 1/(2Nd) (found: 1/(Nd))",
    1 / (2 * LAYER_FILTERS * LAYER_DIMS),
    LAYERS,
    "squared_cv_fermat_minus_l2",
    side="≥",
    against=0.0,
)
SECTION_4_2.mean(
    "CV² of GM = 1/(8d), to first order in 1/d and 1/N",
    1 / (8 * LAYER_DIMS),
    LAYERS,
    "squared_cv_gm",
    within=1 / LAYER_DIMS**2 / 8,
)
SECTION_4_2.mean(
    "CV² of RePr = (1/(dμ²) − 1)(N − 2)/(N − 1)², μ = E|cos|; → (π/2 − 1)/N",
    repr_cv2,
    LAYERS,
    "squared_cv_repr",
)


SECTION_4_3 = claim(
    "Section 4.3, Figure 8",
    "Gains, biases and fully connected weights are not Gaussian; only convolutions are",
    results=(
        of_resnet20(
            "BN and FC of VGG16-BN can not pass the test",
            lambda found: (
                "a Gaussian of mean 0 is rejected at 5 % for "
                f"{sum(other['p_value'] < 0.05 for other in found['others'])} of "
                f"{len(found['others'])} gains, biases and fully connected weights, and for "
                f"{failing(found['layers'], 'normal')} of {len(found['layers'])} convolutions; one "
                "trained ResNet-20"
            ),
        ),
    ),
    why=r"At initialization, all gains are 1, and a constant 1 has the distance $\Phi(1) = 0.841$ "
    "from a Gaussian. Fully connected weights are as Gaussian as convolutions at initialization, "
    "so the statement is about training, not about kinds of parameters.",
    reason="The paper tested the parameters of VGG16-BN, which we do not have. We tested the "
    "parameters of a trained ResNet-20.",
)


CWDA_PLUS = claim(
    "CWDA Plus",
    "The filters of a trained layer are independent draws of a symmetric distribution of mean 0",
    results=(
        of_resnet20(
            "a conjecture",
            lambda found: (
                f"{failing(found['layers'], 'symmetry')} of {len(found['layers'])} layers of one "
                "trained ResNet-20 reject symmetry (Holm's correction, 5 %)"
            ),
        ),
    ),
    why="Theorem 2 would follow from the conjecture CWDA Plus, and Theorem 4 needs no "
    "conjecture. Theorem 5 would not follow from CWDA Plus (Theorem 5, item 1).",
    reason="CWDA Plus is a conjecture about trained weights, and no derivation decides it.",
)
