"""Section 2 of the pruning paper, on the assumption CWDA and the paper's tests of CWDA."""

import statistics
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Array, Key

import pruning
from claims.cwda._networks import SETTINGS, Layers, failing, of_networks, of_resnet20
from claims.draws import normal
from geometry.claims import Cases, Claim, Draws, Remark, Result, Statistics, Values

claim = partial(Claim, "CWDA")


def rejected_assumptions(found: Any) -> str:
    """A sentence with the number of layers in which each part of the assumption is rejected."""
    parts = {
        "normal": "a Gaussian",
        "homogeneity": "one standard deviation",
        "uncorrelated": "uncorrelated filters",
        "spherical": "a covariance c²I",
    }
    layers = found["layers"]
    counts = (f"{what} in {failing(layers, test)} layers" for test, what in parts.items())
    return (
        f"tests reject {', '.join(counts)} (Holm's correction, 5 %); {len(layers)} layers of one "
        "trained ResNet-20"
    )


def distances_to_a_gaussian(layers: Layers) -> str:
    """A sentence on how many layers reject a Gaussian, and on the distances from a Gaussian."""
    distances = [layer["ks"] for layer in layers]
    return (
        f"a Gaussian is rejected in {failing(layers, 'normal')} layers; the Kolmogorov-Smirnov "
        f"distance of the weights from a Gaussian is between {min(distances):.3f} and "
        f"{max(distances):.3f}, with the median {statistics.median(distances):.3f}"
    )


def rejections_of_settings(found: Any) -> str:
    """A sentence on the training settings in which a test rejects no layer, or all layers.

    There are two tests. Their hypotheses are Gaussian weights and a covariance c²I.
    """
    after = {name: setting["after"] for name, setting in found["settings"].items()}
    share = {
        test: {name: one["fails"][test] / one["layers"] for name, one in after.items()}
        for test in ("normal", "spherical")
    }
    none, every = (
        {test: [name for name, x in share[test].items() if x == end] for test in share}
        for end in (0, 1)
    )
    return (
        f"{len(after)} settings of a small network on digits, 3 networks for each setting, "
        f"{sum(one['layers'] for one in after.values())} layers. A Gaussian is rejected in no "
        f"trained layer of {len(none['normal'])} settings, and in all layers of "
        f"{len(every['normal'])} settings ({', '.join(every['normal'])}). A covariance c²I is "
        f"rejected in no layer of {len(none['spherical'])} settings, and in all layers of "
        f"{len(every['spherical'])} settings"
    )


EQUATION_2 = claim(
    "Equation 2, CWDA",
    "The filters of a trained layer are independent draws of $N(0, c^2I)$",
    results=(of_resnet20("a small number of layers can not pass the tests", rejected_assumptions),),
    reason="The statement is an assumption about trained weights, and no derivation decides it.",
)


KS_WEIGHTS = 100


def plain_ks(key: Key[Array, ""]) -> Statistics:
    """Whether √n D exceeds 1.358, where D is the Kolmogorov-Smirnov distance of n weights.

    The first result is for a known mean and scale of the weights. The second result is for an
    estimated mean and scale.
    """
    x = normal(key, KS_WEIGHTS)

    def rejects(x: Array, scale: float | None) -> Array:
        distance = pruning.weight_tests.ks_distance(x, scale=scale)
        return (distance * KS_WEIGHTS**0.5 > 1.358).astype(x.dtype)

    return {"rejects_known": rejects(x, 1.0), "rejects_estimated": rejects(x - x.mean(), None)}


KS = Draws(plain_ks, 160_000, batch_size=8000)


def ks_size() -> float:
    """The exact probability that √n D exceeds 1.358, if the mean and the scale are known."""
    return float(scipy.stats.kstwo.sf(1.358 / KS_WEIGHTS**0.5, KS_WEIGHTS))


def exact_ks(key: Key[Array, ""]) -> Statistics:
    """The p-value of Lilliefors' test of 50 Gaussian weights against 19 simulated data sets.

    The p-value of Gaussian weights is uniform on 1/20, …, 1.
    """
    data, fresh = jax.random.split(key)
    return {"p_value": pruning.lilliefors(fresh, normal(data, 50), samples=19)[1]}


EXACT_KS = Draws(exact_ks, 4000)


TEST_1 = claim(
    "Section 2.1, test (1)",
    "The weights of a layer pass the Kolmogorov-Smirnov test against $N(0, c^2)$, at 5 %",
    corrected="The $p$-values must come from fresh samples that go through the same estimation",
    remark=Remark(
        "hypothesis",
        "If the mean and the standard deviation are estimated from the weights, the $p$-values of "
        "Kolmogorov's test are not valid.",
    ),
    why="A fitted mean and a fitted scale bring the weights nearer to the Gaussian, so a test of "
    "nominal size 5 % with a fitted mean and scale hardly ever rejects. For fresh Gaussian "
    "samples that are fitted in the same way, the distance to the fit has the distribution of the "
    "tested distance. Therefore a comparison with fresh fitted samples gives an exact $p$-value.",
)
TEST_1.mean("size with known mean and scale", ks_size, KS, "rejects_known")


@TEST_1.equal("distance of uniform and truncated normal starts, and of constants 1", tolerance=1e-4)
def _() -> Cases:
    p = (np.arange(20_000) + 0.5) / 20_000
    x = np.linspace(-4, 4, 2_000_001)
    distance = jax.jit(pruning.weight_tests.ks_distance)
    for start in (scipy.stats.uniform(-(3**0.5), 12**0.5), scipy.stats.truncnorm(-2, 2)):
        scale = start.std()
        gap = np.abs(start.cdf(x * scale) - scipy.stats.norm.cdf(x)).max()
        yield float(distance(jnp.asarray(start.ppf(p) / scale))) - float(gap)
    yield float(distance(jnp.ones(20_000))) - scipy.stats.norm.cdf(1)


TEST_1.mean(
    "size 5 % with mean and scale estimated", 0.05, KS, "rejects_estimated", form="overread"
)
TEST_1.mean(
    "size with mean and scale estimated is below 0.1 % (found: about 0.01 %)",
    1e-3,
    KS,
    "rejects_estimated",
    side="≤",
    against=0.05,
    form="corrected",
)
TEST_1.mean(
    "fresh samples make p uniform: E p = 21/40, B = 19",
    21 / 40,
    EXACT_KS,
    "p_value",
    form="corrected",
)
TEST_1.variance("Var p = (1 − 1/400)/12", (1 - 1 / 400) / 12, EXACT_KS, "p_value", form="corrected")


@TEST_1.equal("600 equally spaced weights have the smallest p", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    test = jax.jit(partial(pruning.lilliefors, samples=19))
    return float(test(key, jnp.linspace(-1, 1, 600)).p_value) - 1 / 20


FIGURE_3 = claim(
    "Figure 3, Table 3",
    "Histograms of layers look Gaussian, and about 40 settings of training pass the tests",
    why="The Kolmogorov distance of weights to a Gaussian before training is known: 0.0572 for a "
    "uniform initialization, and 0.0167 for a truncated normal initialization.",
    results=(
        *of_networks(
            "a figure without numbers; Appendix G, for the results of Table 3, has no content",
            distances_to_a_gaussian,
        ),
        Result(
            rejections_of_settings,
            "about 40 settings; Appendix G, which should have their results, is empty",
            SETTINGS,
        ),
    ),
    reason="The paper used pretrained networks and trainings that we do not have. Our numbers "
    "come from a trained ResNet-20 and from small networks.",
)
