"""Section 4.1 of the pruning paper: when the assumption fails, and how much it takes to hold."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import (
    DIMS,
    LAYER_DIMS,
    LAYER_FILTERS,
    LAYERS,
    LAYERS_OF_FIGURE_1,
    RESNET20,
    THREE_FILTERS,
    figure_1_spearman,
    layer_spearman,
)
from claims.draws import exponent, generator
from geometry.claims import Claim, Remark, Result, Values

claim = partial(Claim, "CWDA")


SECTION_4_1_1 = claim(
    "Section 4.1 (1)",
    "The network must be trained well enough for CWDA",
    reason="Qualitative: no number could contradict it. An untrained Gaussian start satisfies CWDA "
    "exactly.",
)


SECTION_4_1_2 = claim(
    "Section 4.1 (2)",
    r"$\mathrm{Sp}$ rises with the number of filters",
    corrected=r"like $1/N$ with Fermat and GM; hardly for $\ell_1$ and $\ell_2$",
    remark=Remark(
        "over-reading",
        r"Of Gaussian filters this is so for pairs with Fermat or GM. $\mathrm{Sp}$ of $\ell_1$ "
        r"and $\ell_2$ hardly rises, from 0.923 to 0.930: a rise there has another cause.",
    ),
    why=r"Fermat and GM measure from a center that is $\sqrt{d/N}\,c$ away from 0, which shares "
    r"$\ell_2$'s variance with noise of $2/N$ of it.",
)
SECTION_4_1_2.add(layer_spearman("E Sp(l2, GM) = 0.9786 of 64 filters", "l2", "gm"))
SECTION_4_1_2.mean(
    "E Sp(l2, GM) = 0.9898 of 128",
    lambda: figure_1_spearman(("l2", "gm")),
    LAYERS_OF_FIGURE_1,
    "spearman_l2_gm",
    within=2 / 128**2,
    against=0.9786,
)


@SECTION_4_1_2.rate("1 − Sp(l2, GM) falls like 1/N", -1.0, tolerance=0.05)
def _() -> Values:
    filters = (256, 1024, 4096)
    likeness = [float(pruning.expected_spearman(n, 576.0, ("l2", "gm"))) for n in filters]
    return exponent(filters, 1 - np.array(likeness))


@SECTION_4_1_2.equal("Sp(l1, l2) → 1", 1.0, tolerance=0.01, form="overread")
def _() -> Values:
    return float(pruning.expected_spearman(10**6, 576.0, ("l1", "l2")))


FIGURE_5 = claim(
    "Figure 5",
    r"$\mathrm{Sp}$ rises as the second layer of VGG16 widens from 64 to 256 filters",
    results=(
        Result(
            "l2 and GM 0.982 ± 0.006, 0.979 ± 0.004 and 0.981 ± 0.008, l1 and l2 0.971 ± 0.009, "
            "0.938 ± 0.038 and 0.982 ± 0.007 in layers of 16, 32 and 64 filters of one ResNet-20",
            "a figure without numbers",
            RESNET20,
        ),
    ),
    reason="Measured on networks of three widths, which are not at hand; one trained ResNet-20 has "
    "layers of three widths.",
)


def largest_eigenvalue() -> float:
    """Mean of the largest eigenvalue of N filters' covariance, by Tracy and Widom's distribution.

    Its center is the edge of Marchenko and Pastur, (√(ν − 1) + √N)²/ν with ν = d − 1.
    """
    nu = LAYER_DIMS - 1
    root = math.sqrt(nu - 1) + math.sqrt(LAYER_FILTERS)
    scale = root * (1 / math.sqrt(nu - 1) + 1 / math.sqrt(LAYER_FILTERS)) ** (1 / 3)
    return (root**2 - 1.2065 * scale) / nu


SECTION_4_1_3 = claim(
    "Section 4.1 (3)",
    "The covariance of Gaussian filters is nearly $c^2I$",
    corrected=r"off the diagonal $c^2/\sqrt d$; eigenvalues fill $c^2(1 \pm \sqrt{N/d})^2$",
    remark=Remark(
        "over-reading",
        r"Entry by entry, like $1/\sqrt d$. As a matrix it is near $c^2I$ only if there are far "
        "fewer filters than dimensions.",
    ),
    why="An entry off the diagonal has variance $c^4/d$. The $N^2$ of them together spread the "
    "eigenvalues over the interval of Marchenko and Pastur. The constant of Section 4.2's "
    r"$\mathrm{Cov} = c \cdot (v_i^\top v_j)$ is $1/d$, and its second “Theorem 5 (1)” means "
    "(2).",
)


@SECTION_4_1_3.equal("Cov = Gram/d − mᵢmⱼ", tolerance=1e-12)
def _(key: Key[Array, ""]) -> Values:
    v = generator(key).normal(0.3, 1, (20, 50))
    covariance = np.asarray(pruning.weight_tests.covariance(jnp.asarray(v))) * 49 / 50
    return covariance - (v @ v.T / 50 - np.outer(v.mean(1), v.mean(1)))


SECTION_4_1_3.mean(
    "E r² of two filters = 1/(d − 1)", 1 / (DIMS - 1), THREE_FILTERS, "squared_correlation"
)
SECTION_4_1_3.mean(
    "mean square off the diagonal = 1/d", 1 / LAYER_DIMS, LAYERS, "squared_covariance"
)
SECTION_4_1_3.mean("largest eigenvalue = c²", 1.0, LAYERS, "largest_eigenvalue", form="overread")
SECTION_4_1_3.mean(
    "largest eigenvalue = 2.67 c², 64 filters of 144 dimensions",
    largest_eigenvalue,
    LAYERS,
    "largest_eigenvalue",
    within=0.02,
    form="corrected",
)


FIGURE_6 = claim(
    "Figure 6",
    "Covariances of the first 64 filters of trained layers, nearer to $c^2I$ in deeper layers",
    results=(
        Result(
            "19 of 19 layers of one ResNet-20 reject uncorrelated filters and a covariance c²I",
            "a figure without numbers",
            RESNET20,
        ),
    ),
    reason="Measured on pretrained networks, which are not at hand; one trained ResNet-20 is.",
)
