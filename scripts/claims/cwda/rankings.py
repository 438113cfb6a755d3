"""Section 1 of the pruning paper: how alike the criteria rank filters."""

import functools
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._draws import MLP, PREACT, REPORT, RESNET20, VGG
from claims.draws import generator, normal
from geometry.claims import (
    Cases,
    Claim,
    Draws,
    Remark,
    Result,
    Statistics,
    Values,
)

claim = partial(Claim, "CWDA")

# Pruned first by l1, l2, GM and Fermat: the eight filters that are printed, for two layers.
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
    """How many of the eight filters each of the six pairs of criteria has in common."""
    pairs = itertools.combinations([set(first) for first in FIRST_PRUNED[layer]], 2)
    return [len(a & b) for a, b in pairs]


def _normal_overlap(rho: float, ratio: float) -> float:
    """Share of the `ratio` lowest of one normal variable that are so of one correlated with it."""
    z = scipy.stats.norm.ppf(ratio)

    def integrand(x: float) -> float:
        below = scipy.stats.norm.cdf((z - rho * x) / math.sqrt(1 - rho**2))
        return float(below * scipy.stats.norm.pdf(x))

    return scipy.integrate.quad(integrand, -12, z, epsabs=1e-13)[0] / ratio


TABLE_1 = claim(
    "Table 1",
    r"$\ell_1$, $\ell_2$, GM and Fermat prune almost the same eight filters first",
    corrected=r"$\ell_1$ and $\ell_2$ share 5 of 8 in ResNet18, as Gaussian filters would",
    remark=Remark(
        "over-reading",
        r"The sets are the same in VGG16. In ResNet18 $\ell_1$ and $\ell_2$ share 5 of the 8, of "
        "which Gaussian filters share 5.5 on average.",
    ),
    why=r"Counted in the printed lists. For a normal pair of correlation $1/\sqrt{\pi - 2}$, that "
    r"of $\ell_1$ and $\ell_2$ in many dimensions, the lowest 8 of 256 overlap by 0.68.",
    results=(
        Result(
            "l1 and l2 share 7.3 ± 0.2 of the first 8, mean over 19 layers of one ResNet-20",
            "5 of 8 (ResNet18, 12th), 8 of 8 (VGG16, 3rd)",
            RESNET20,
        ),
        Result(
            "l1 and l2 share 5.9 ± 0.3 of the first 8, mean over 10 layers of 100 neurons of one "
            "dense network on MNIST",
            "no such network",
            MLP,
        ),
        Result(
            "l1 and l2 share 6.9 ± 0.2 of the first 8, mean over 21 layers of one pre-activation "
            "ResNet-20 after four epochs on CIFAR-10",
            "no such network",
            PREACT,
        ),
        Result(
            "l1 and l2 share 6.6 ± 0.3 of the first 8, mean over 8 layers of one VGG-11 after one "
            "epoch on CIFAR-10",
            "no such network",
            VGG,
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
    r"$\mathrm{Sp}$ of $\ell_1$, GM and Fermat with $\ell_2$: 0.99 each in ResNet18, 0.98, 0.98 "
    "and 1.00 in VGG16",
    why=r"Gaussian filters have $E\,\operatorname{Sp}(\ell_1, \ell_2) = 0.928$ in the layer of "
    "ResNet18 and 0.927 in that of VGG16 (Conclusion from Theorem 1), so that this figure "
    "itself speaks against one scale $c$: filters' own scales that spread by 4 to 5 % give "
    "the printed values.",
    results=(
        Result(
            "l1 and l2 0.964 ± 0.013, l2 and GM 0.981 ± 0.003, l2 and Fermat 0.986 ± 0.002, means "
            "over 19 layers of one ResNet-20",
            "0.99, 0.99, 0.99 (ResNet18, 12th); 0.98, 0.98, 1.00 (VGG16, 3rd)",
            RESNET20,
        ),
        Result(
            "l1 and l2 0.929 ± 0.008, l2 and GM 0.926 ± 0.003, l2 and Fermat 0.926 ± 0.003 with "
            "batch norm, 0.931 ± 0.008, 0.927 ± 0.003 and 0.926 ± 0.002 unitized, means over three "
            "pre-activation ResNet-20 each, on digits",
            "no such networks",
            REPORT,
        ),
        Result(
            "l1 and l2 0.943 ± 0.004, l2 and GM 0.978 ± 0.001, l2 and Fermat 0.978 ± 0.001, means "
            "over 10 layers of 100 neurons of one dense network on MNIST",
            "no such network",
            MLP,
        ),
        Result(
            "l1 and l2 0.946 ± 0.005, l2 and GM 0.945 ± 0.007, l2 and Fermat 0.942 ± 0.007, means "
            "over 21 layers of one pre-activation ResNet-20 after four epochs on CIFAR-10",
            "no such network",
            PREACT,
        ),
        Result(
            "l1 and l2 0.956 ± 0.004, l2 and GM 0.820 ± 0.032, l2 and Fermat 0.820 ± 0.032, means "
            "over 8 layers of one VGG-11 after one epoch on CIFAR-10",
            "no such network",
            VGG,
        ),
    ),
    reason="Measured on pretrained networks, which are not at hand; one trained ResNet-20 is.",
)


def random_rankings(key: Key[Array, ""]) -> Statistics:
    x = normal(key, 2, 64)
    return {"overlap": pruning.overlap(x[0], x[1], ratio=0.5)}


RANKINGS = Draws(random_rankings, 20_000)


EQUATION_1 = claim(
    "Equation 1",
    r"Overlap $\mathrm{OD} = \#(C_1 \cap C_2)/\#C_2$",
    remark=Remark(
        "over-reading",
        "Unrelated rankings overlap by $p$ and any two by $2 - 1/p$: an overlap is to be read "
        "beside $p$, not beside 0.",
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


@EQUATION_1.equal("attained by opposite rankings; 1 of equal ones")
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
        Result(
            "l1 and l2 0.924 ± 0.019, l2 and GM 0.946 ± 0.012, means over 19 layers of one "
            "ResNet-20",
            "a figure without numbers",
            RESNET20,
        ),
        Result(
            "l1 and l2 0.883 ± 0.007, l2 and GM 0.893 ± 0.005 with batch norm, 0.894 ± 0.007 and "
            "0.890 ± 0.007 unitized, means over three pre-activation ResNet-20 each, on digits",
            "no such networks",
            REPORT,
        ),
        Result(
            "l1 and l2 0.890 ± 0.005, l2 and GM 0.942 ± 0.009, means over 10 layers of 100 "
            "neurons of one dense network on MNIST",
            "no such network",
            MLP,
        ),
        Result(
            "l1 and l2 0.921 ± 0.012, l2 and GM 0.896 ± 0.012, means over 21 layers of one "
            "pre-activation ResNet-20 after four epochs on CIFAR-10",
            "no such network",
            PREACT,
        ),
        Result(
            "l1 and l2 0.904 ± 0.007, l2 and GM 0.808 ± 0.016, means over 8 layers of one VGG-11 "
            "after one epoch on CIFAR-10",
            "no such network",
            VGG,
        ),
    ),
    reason="Measured on pretrained networks, which are not at hand; one trained ResNet-20 is.",
)
