"""Section 4.1 of the pruning paper, on when the assumption fails and how large layers must be."""

import itertools
import math
import statistics
from functools import partial
from typing import Any

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
    THREE_FILTERS,
    figure_1_spearman,
    layer_spearman,
)
from claims.cwda._networks import SETTINGS, failing, of_resnet20, pairs_of
from claims.draws import exponent, generator
from geometry.claims import Claim, Remark, Result, Values

claim = partial(Claim, "CWDA")


SECTION_4_1_1 = claim(
    "Section 4.1 (1)",
    "The network must be trained well enough for CWDA",
    reason="The statement is qualitative, so no number could contradict the statement, but an "
    "untrained Gaussian initialization satisfies CWDA exactly.",
)


def sensitivity_of_transitions(found: Any) -> str:
    """A sentence that compares ρ(l1, l2) between layers that change the width and all other layers.

    Here ρ is Spearman's. A layer changes the width if the previous layer has a different number of
    filters.
    """
    layers = found["layers"]
    pairs = list(itertools.pairwise(layers))
    changed = [b for a, b in pairs if a["filters"] != b["filters"]]
    others = [layer for layer in layers if layer not in changed]
    rho = [f"{layer['spearman']['l1-l2']:.3f}" for layer in changed]
    median = statistics.median(layer["spearman"]["l1-l2"] for layer in others)
    return (
        f"Spearman's ρ of l1 and l2 is {' and '.join(rho)} in the {len(rho)} layers where the "
        f"number of filters changes; the median in the {len(others)} other layers is {median:.3f}; "
        "one trained ResNet-20"
    )


TRANSITIONS = claim(
    "Section 3.1, transitional layers",
    r"The rank correlation $\mathrm{Sp}$ is small in layers that change the dimension of the "
    "filters",
    printed="Section 4.1 (2): “the Sp in transitional area are relatively small”",
    results=(of_resnet20("a figure without numbers", sensitivity_of_transitions),),
    reason="The paper used trained networks that we do not have. Our numbers come from a trained "
    "ResNet-20.",
)


def failing_in_front(found: Any) -> str:
    """A sentence with the median distance from a Gaussian in the first and last half of layers."""
    distances = [layer["ks"] for layer in found["layers"]]
    half = len(distances) // 2
    first, last = (statistics.median(part) for part in (distances[:half], distances[half:]))
    return (
        f"a Gaussian is rejected in {failing(found['layers'], 'normal')} of {len(distances)} "
        f"layers of one trained ResNet-20; the median Kolmogorov-Smirnov distance of the weights "
        f"from a Gaussian is {first:.3f} in the first {half} layers and {last:.3f} in the other "
        "layers"
    )


IN_FRONT = claim(
    "Section 4.1, failing layers",
    "The layers that fail the tests are the first layers, which have few filters",
    printed="Section 4.1 (2): “the layers that can not pass the statistical test are almost the "
    "layers that are in front of the network”",
    results=(of_resnet20("no number; Appendix G has no content", failing_in_front),),
    reason="The paper used trained networks that we do not have. Our numbers come from a trained "
    "ResNet-20.",
)


SECTION_4_1_2 = claim(
    "Section 4.1 (2)",
    r"The rank correlation $\mathrm{Sp}$ rises with the number of filters",
    corrected="If Fermat or GM is one of two criteria, the difference between the rank "
    r"correlation $\mathrm{Sp}$ and its limit decreases like $1/N$. For $\ell_1$ and $\ell_2$, "
    r"the rank correlation $\mathrm{Sp}$ hardly rises",
    remark=Remark(
        "over-reading",
        r"If Fermat or GM is one of two criteria, $\mathrm{Sp}$ for Gaussian filters increases "
        r"with the number of filters. For $\ell_1$ and $\ell_2$, $\mathrm{Sp}$ increases only "
        "from 0.923 for 64 filters to 0.930 for many filters.",
    ),
    why=r"The criteria Fermat and GM measure distances from a center, which lies $\sqrt{d/N}\,c$ "
    r"from 0, so the scores by Fermat and GM have the variance of $\ell_2$ and, in "
    r"addition, noise with $2/N$ of the variance of $\ell_2$.",
)
SECTION_4_1_2.add(layer_spearman("E Sp(l2, GM) = 0.9786 of 64 filters", "l2", "gm"))
SECTION_4_1_2.mean(
    "E Sp(l2, GM) = 0.9898 for 128 filters",
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


def alike_by_width(found: Any) -> str:
    """A sentence with Spearman's ρ of criteria, for layers with 16, 32 and 64 filters."""
    said = []
    for filters in (16, 32, 64):
        layers = [layer for layer in found["layers"] if layer["filters"] == filters]
        found_pairs = pairs_of("spearman", "l2-gm", "l1-l2")(layers)
        said.append(f"{found_pairs} in layers of {filters} filters")
    return f"{'; '.join(said)}; one trained ResNet-20"


def alike_by_trained_width(found: Any) -> str:
    """A sentence with Spearman's ρ between l1 and l2 for four widths, as measured and in theory."""
    said = []
    for filters, name in {8: "8 filters", 16: "16 filters", 32: "base", 64: "64 filters"}.items():
        gaussian = float(pruning.expected_spearman(filters, 9.0 * filters, ("l1", "l2")))
        # The excess is ρ minus its value for Gaussian filters.
        excess = found["settings"][name]["after"]["spearman"]
        rho, error = gaussian + excess["mean"], excess["stderr"]
        said.append(f"{rho:.3f} ± {error:.3f} with {filters} filters ({gaussian:.3f})")
    return (
        f"Spearman's ρ of l1 and l2 is {', '.join(said)}; {found['seeds']} small networks of each "
        "width on digits. The number in parentheses is ρ for Gaussian filters of the same shape"
    )


FIGURE_5 = claim(
    "Figure 5",
    r"The rank correlation $\mathrm{Sp}$ rises as the second layer of VGG16 widens from 64 to 256 "
    "filters",
    results=(
        of_resnet20("a figure without numbers", alike_by_width),
        Result(alike_by_trained_width, "the networks are not in the paper", SETTINGS),
    ),
    reason="The paper measured the rank correlation in networks of three widths that we do not "
    "have. We measured the rank correlation in a ResNet-20 with layers of three widths, and in "
    "small networks of four widths.",
)


def largest_eigenvalue() -> float:
    """The mean of the largest covariance eigenvalue, for N Gaussian filters of d dimensions.

    Let ν = d − 1. The edge of Marchenko and Pastur's distribution is (√(ν − 1) + √N)²/ν. The
    largest eigenvalue minus the edge has approximately a scaled Tracy-Widom distribution. The mean
    of this distribution before scaling is −1.2065.
    """
    nu = LAYER_DIMS - 1
    root = math.sqrt(nu - 1) + math.sqrt(LAYER_FILTERS)
    scale = root * (1 / math.sqrt(nu - 1) + 1 / math.sqrt(LAYER_FILTERS)) ** (1 / 3)
    return (root**2 - 1.2065 * scale) / nu


SECTION_4_1_3 = claim(
    "Section 4.1 (3)",
    "The covariance of Gaussian filters is nearly $c^2I$",
    corrected=r"The entries of the covariance off the diagonal have the size $c^2/\sqrt d$, and "
    r"the eigenvalues fill the interval between $c^2(1 - \sqrt{N/d})^2$ and $c^2(1 + "
    r"\sqrt{N/d})^2$",
    remark=Remark(
        "over-reading",
        "The difference between an entry of the covariance and the same entry of $c^2I$ decreases "
        r"like $1/\sqrt d$, but the whole covariance matrix is near $c^2I$ only if there are far "
        "fewer filters than dimensions.",
    ),
    why="An entry of the covariance off the diagonal has the variance $c^4/d$. Together, the "
    "$N^2$ entries spread the eigenvalues over the interval of the Marchenko–Pastur distribution. "
    r"In Section 4.2, the constant $c$ of $\mathrm{Cov} = c \cdot (v_i^\top v_j)$ is $1/d$, and "
    "the second “Theorem 5 (1)” means item 2 of Theorem 5.",
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
    "Covariances of the first 64 filters of trained layers are nearer to $c^2I$ in deeper layers",
    results=(
        of_resnet20(
            "a figure without numbers",
            lambda found: (
                f"uncorrelated filters are rejected in {failing(found['layers'], 'uncorrelated')} "
                f"layers, and a covariance c²I in {failing(found['layers'], 'spherical')} layers; "
                f"{len(found['layers'])} layers of one trained ResNet-20"
            ),
        ),
    ),
    reason="The paper used pretrained networks that we do not have. Our numbers come from a "
    "trained ResNet-20.",
)
