"""Section 1 of the pruning paper, on how similarly the criteria rank filters."""

import functools
import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._networks import of_networks, of_the_report, pairs_in_the_report, pairs_of, spread
from claims.draws import generator, normal
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values

claim = partial(Claim, "CWDA")

# The eight filters that l1, l2, GM and Fermat prune first in two layers, as printed in Table 1.
FIRST_PRUNED = {
    "ResNet18, 12th": (
        (111, 212, 33, 61, 68, 152, 171, 45),
        (111, 33, 212, 61, 171, 42, 243, 129),
        (111, 212, 33, 61, 68, 45, 171, 42),
        (111, 212, 33, 61, 45, 171, 42, 68),
    ),
    "VGG16, 3rd": (
        (102, 28, 9, 88, 66, 109, 86, 45),
        (102, 28, 88, 9, 109, 66, 86, 45),
        (102, 28, 9, 88, 109, 66, 45, 86),
        (102, 28, 88, 9, 109, 66, 45, 86),
    ),
}


def _shared(layer: str) -> list[int]:
    """For each of six pairs of criteria, the number of filters that both criteria prune first."""
    pairs = itertools.combinations([set(first) for first in FIRST_PRUNED[layer]], 2)
    return [len(a & b) for a, b in pairs]


def _normal_overlap(rho: float, ratio: float) -> float:
    """Of the draws with the lowest x, the share that also has the lowest y.

    The variables x and y are normal with correlation `rho`. A share `ratio` of the draws counts as
    lowest in x, and the same share as lowest in y.
    """
    z = scipy.stats.norm.ppf(ratio)

    def integrand(x: float) -> float:
        below = scipy.stats.norm.cdf((z - rho * x) / math.sqrt(1 - rho**2))
        return float(below * scipy.stats.norm.pdf(x))

    return scipy.integrate.quad(integrand, -12, z, epsabs=1e-13)[0] / ratio


def first_shared(layer: dict[str, Any]) -> int:
    """The number of filters that are among the eight lowest both by l1 and by l2."""
    return len({*layer["first"]["l1"]} & {*layer["first"]["l2"]})


STRONG = claim(
    "Section 1, Sp above 0.8",
    r"$\mathrm{Sp} > 0.8$ means that two sequences are strongly similar",
    printed="Section 1 (2): “if the Sp is above 0.8, it means that there is a strong similarity "
    "between the sequence of two variables”",
    remark=Remark(
        "over-reading",
        r"Two criteria with $\mathrm{Sp} = 0.8$ can prune different filters. For example, let "
        r"1,000 filters have two scores with a joint normal distribution and $\mathrm{Sp} = 0.8$. "
        "If each score prunes a tenth of the filters, 57 % of the pruned filters are in common.",
    ),
    reason="The statement is a rule of thumb that no number could contradict.",
)


PROVED = claim(
    "Section 3, similarities that are proved",
    "Under CWDA the similarities of all pairs of criteria in Table 2 follow strictly",
    printed="Section 3: “we strictly prove the similarities of the criteria in Table 2 by CWDA”",
    reason="The proved statements have entries of their own: Theorems 1 to 4 and the "
    "conclusions from them.",
)


TABLE_1 = claim(
    "Table 1",
    r"The criteria $\ell_1$, $\ell_2$, GM and Fermat prune almost the same eight filters first",
    corrected=r"The criteria $\ell_1$ and $\ell_2$ share 5 of 8 filters in ResNet18, as many as "
    "for Gaussian filters",
    remark=Remark(
        "over-reading",
        r"Each criterion of Table 1 prunes 8 filters. Of the 8 pruned filters, $\ell_1$ and "
        r"$\ell_2$ have 8 in common in VGG16, but only 5 in ResNet18. If the criteria prune 8 of "
        r"256 Gaussian filters, $\ell_1$ and $\ell_2$ have between 5 and 6 pruned filters in "
        "common on average.",
    ),
    why="We counted the shared filters in the printed lists of Table 1. For Gaussian filters in "
    r"many dimensions, $\ell_1$ and $\ell_2$ have the correlation $1/\sqrt{\pi - 2}$. For a "
    r"normal pair with the correlation $1/\sqrt{\pi - 2}$, the lowest 8 of 256 values overlap by "
    "0.68.",
    results=of_networks(
        "5 of 8 (ResNet18, 12th layer), 8 of 8 (VGG16, 3rd layer)",
        lambda layers: (
            f"l1 and l2 share {spread([*map(first_shared, layers)], 1)} of the 8 filters that each "
            "criterion prunes first"
        ),
    ),
)


@TABLE_1.at_most("unrelated rankings share as many with a chance below 10⁻⁶", tolerance=1e-6)
def _() -> Values:
    return [
        scipy.stats.hypergeom(filters, 8, 8).sf(np.array(_shared(layer)) - 1)
        for layer, filters in (("ResNet18, 12th", 256), ("VGG16, 3rd", 128))
    ]


@TABLE_1.equal("VGG16: all pairs share all eight")
def _() -> Values:
    return [8 - shared for shared in _shared("VGG16, 3rd")]


@TABLE_1.equal("ResNet18: all pairs share all eight", form="overread")
def _() -> Values:
    return [8 - shared for shared in _shared("ResNet18, 12th")]


@TABLE_1.equal(
    "by many Gaussian filters l1 and l2 share 0.68 of 8 in 256",
    0.68,
    tolerance=5e-3,
    form="corrected",
)
def _() -> Values:
    return _normal_overlap(1 / math.sqrt(math.pi - 2), 8 / 256)


FIGURE_1 = claim(
    "Figure 1",
    r"The rank correlation $\mathrm{Sp}$ of $\ell_1$, GM and Fermat with $\ell_2$ is 0.99 each "
    "in ResNet18, and 0.98, 0.98 and 1.00 in VGG16",
    why=r"Gaussian filters have $E\,\operatorname{Sp}(\ell_1, \ell_2) = 0.928$ in the layer of "
    "ResNet18 and 0.927 in the layer of VGG16 (Conclusion from Theorem 1). The values of Figure 1 "
    "are higher than the values of Gaussian filters, so the filters of the paper probably do not "
    "all have one scale $c$. Gaussian filters whose scales have a spread of 4 to 5 % give the "
    "printed values.",
    results=(
        *of_networks(
            "0.99, 0.99, 0.99 (ResNet18, 12th layer); 0.98, 0.98, 1.00 (VGG16, 3rd layer)",
            pairs_of("spearman", "l1-l2", "l2-gm", "l2-fermat"),
        ),
        of_the_report(pairs_in_the_report("spearman", "l1-l2", "l2-gm", "l2-fermat")),
    ),
    reason="The paper used pretrained networks that we do not have. Our numbers come from a "
    "trained ResNet-20.",
)


def random_rankings(key: Key[Array, ""]) -> Statistics:
    x = normal(key, 2, 64)
    return {"overlap": pruning.overlap(x[0], x[1], ratio=0.5)}


RANKINGS = Draws(random_rankings, 20_000)


EQUATION_1 = claim(
    "Equation 1",
    r"The overlap is $\mathrm{OD} = \#(C_1 \cap C_2)/\#C_2$",
    remark=Remark(
        "over-reading",
        "If a share $p$ of the filters is pruned, two unrelated rankings have the overlap $p$ on "
        "average, so compare an overlap with $p$, not with 0.",
    ),
)
EQUATION_1.mean(
    "E OD of unrelated rankings = m/N",
    lambda: pruning.ranking.chance_overlap(64, ratio=0.5)[0],
    RANKINGS,
    "overlap",
)
EQUATION_1.variance(
    "Var OD is hypergeometric",
    lambda: pruning.ranking.chance_overlap(64, ratio=0.5)[1],
    RANKINGS,
    "overlap",
)


@EQUATION_1.at_most("OD ≥ max(0, 2 − 1/p)")
def _(key: Key[Array, ""]) -> Cases:
    scores = jnp.asarray(generator(key).normal(size=(200, 20)))
    for ratio in (0.3, 0.8):
        overlap = jax.jit(jax.vmap(functools.partial(pruning.overlap, ratio=ratio)))
        for other in (scores[::-1], -scores):
            yield max(0, 2 - 1 / ratio) - np.asarray(overlap(scores, other))


@EQUATION_1.equal("opposite rankings attain the bound; equal rankings have OD = 1")
def _(key: Key[Array, ""]) -> Cases:
    scores = jnp.asarray(generator(key).normal(size=20))
    for ratio in (0.3, 0.5, 0.8):
        overlap = jax.jit(functools.partial(pruning.overlap, ratio=ratio))
        yield float(overlap(scores, -scores)) - max(0, 2 - 1 / ratio)
        yield float(overlap(scores, 2 * scores)) - 1


@EQUATION_1.equal("OD of a normal pair by quadrature", tolerance=1e-9)
def _() -> Values:
    return [
        float(pruning.gaussian.expected_overlap(filters, dims, ("l1", "l2"), ratio=ratio))
        - _normal_overlap(float(pruning.l1_l2_correlation(dims)), ratio)
        for filters, dims, ratio in ((256, 2304.0, 8 / 256), (64, 64.0, 0.5))
    ]


@EQUATION_1.equal("OD of a normal pair at ½ is ½ + asin(ρ)/π")
def _() -> Values:
    rho = float(pruning.l1_l2_correlation(64.0))
    overlap = float(pruning.gaussian.expected_overlap(64, 64.0, ("l1", "l2"), ratio=0.5))
    return overlap - 0.5 - math.asin(rho) / math.pi


FIGURE_2 = claim(
    "Figure 2",
    "The overlap at $p = 0.5$ is high throughout VGG16",
    results=(
        *of_networks("a figure without numbers", pairs_of("overlap", "l1-l2", "l2-gm")),
        of_the_report(pairs_in_the_report("overlap", "l1-l2", "l2-gm")),
    ),
    reason="The paper used pretrained networks that we do not have. Our numbers come from a "
    "trained ResNet-20.",
)
