"""Sections I and II, on the parts of batch norm, and on linear networks with only one part."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from claims.draws import generator
from geometry.claims import Cases, Claim, Draws, Remark, Statistics, Values
from jaxnorm import recenter, rescale, rescale_rms, standardize

claim = partial(Claim, "Batch Normalization Decomposed")

CASES = 200


EQUATIONS_1_TO_4 = claim(
    "Equations 1 to 4",
    "Batch norm is recentering and then rescaling, and adding a constant to the "
    "inputs changes nothing",
)


@EQUATIONS_1_TO_4.equal("mean 0, mean square 1, RS∘RC = BN, shifts vanish")
def _(key: Key[Array, ""]) -> Values:
    z = jnp.asarray(generator(key).normal(3, 2, (CASES, 12, 7)))
    standardized = standardize(z, axis=1)
    return [
        standardized.mean(1),
        jnp.square(standardized).mean(1) - 1,
        rescale(recenter(z, axis=1), axis=1) - standardized,
        standardize(z + 5, axis=1) - standardized,
    ]


WIDTHS = (16, 64, 256)  # the widths of the linear networks


def rescaled_cosines(key: Key[Array, ""]) -> Statistics:
    """How fast the mean |cos| between samples decreases in linear layers with rescaling.

    All means are over pairs of samples after 100 layers, unless stated otherwise. The result
    "scaled" is √d times the mean |cos| at width d = 64. The result "fall" is the mean at width 64,
    minus half of the mean after 25 layers. The result "64 beyond 0.6" is the mean at width 64,
    minus 0.6 times the mean at a quarter of this width. The other results have names with the width
    and the factor in the same way. If the mean is proportional to 1/√d, the difference is 0 for the
    factor 0.5.
    """
    (_, small), (early, late), (_, large) = (_cosines(key, width) for width in WIDTHS)
    return {
        "scaled": WIDTHS[1] ** 0.5 * late,
        "fall": late - early / 2,
        "64 beyond 0.6": late - 0.6 * small,
        "64 beyond 0.4": late - 0.4 * small,
        "256 beyond 0.6": large - 0.6 * late,
        "256 beyond 0.4": large - 0.4 * late,
    }


def _cosines(key: Key[Array, ""], width: int) -> tuple[Array, Array]:
    """The mean |cos| between five samples, after 25 layers and after 100 layers."""
    net = geometry.random_network(
        key,
        jnp.eye(5, dtype=jnp.float32),
        depth=100,
        width=width,
        normalization=rescale_rms,
        nonlinearity=lambda x: x,
        homogeneous=False,
        layers=(25, 100),
    )
    norms = jnp.sqrt(jnp.diagonal(net.statistics, axis1=1, axis2=2))
    cosines = net.statistics / norms[:, :, None] / norms[:, None]
    early, late = jnp.abs(cosines[:, *np.triu_indices(5, 1)]).mean(1)
    return early, late


COSINES = Draws(rescaled_cosines, 80, batch_size=40)


FIGURE_1 = claim(
    "Figure 1",
    "According to earlier work (Part IV), linear networks with rescaling alone make samples "
    "orthonormal",
    remark=Remark(
        "hypothesis",
        "With growing depth, a full-rank batch becomes orthonormal only if the width grows with "
        r"the depth. At a fixed width $d$, the cosines of samples remain about $1/\sqrt{d}$ at "
        "any depth.",
    ),
    why="In each layer, random weights of width $d$ change every cosine by a random amount of "
    r"the size $1/\sqrt{d}$. No depth removes the random changes of the cosines.",
)
FIGURE_1.mean("√d E|cos| ≤ 2 after 100 layers (found: 1)", 2.0, COSINES, "scaled", side="≤")
for _width in WIDTHS[1:]:
    _less = f"{_width} beyond 0.6"
    FIGURE_1.mean(f"E|cos| of width {_width} ≤ 0.6 of {_width // 4}", 0.0, COSINES, _less, side="≤")
    _more = f"{_width} beyond 0.4"
    FIGURE_1.mean(f"E|cos| of width {_width} ≥ 0.4 of {_width // 4}", 0.0, COSINES, _more, side="≥")
FIGURE_1.mean(
    "E|cos| after 100 layers ≤ half of E|cos| after 25 layers",
    0.0,
    COSINES,
    "fall",
    side="≤",
    form="overread",
)


RANK_OF_A_PRODUCT = claim(
    "Section I, rank of a product",
    r"$\operatorname{rank}(AB) \le \max(\operatorname{rank} A, \operatorname{rank} B)$",
    corrected=r"The bound is $\operatorname{rank}(AB) \le \min(\operatorname{rank} A, "
    r"\operatorname{rank} B)$, and Gaussian matrices attain it",
    why=r"The inequality $\operatorname{rank}(AB) \le \max(\operatorname{rank} A, "
    r"\operatorname{rank} B)$ is true, but the argument that linear layers cannot increase the "
    "rank of a batch needs the minimum of the two ranks.",
)


@RANK_OF_A_PRODUCT.at_most("rank(AB) ≤ min(rank A, rank B)")
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    rank = jax.jit(geometry.numerical_rank)

    def integers(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float64)

    for _ in range(CASES):
        inner = rng.integers(1, 5, 2).tolist()
        a = integers(6, inner[0]) @ integers(inner[0], 5)
        b = integers(5, inner[1]) @ integers(inner[1], 4)
        ranks = [int(rank(jnp.asarray(m))) for m in (a @ b, a, b)]
        yield ranks[0] - min(ranks[1:])


@RANK_OF_A_PRODUCT.equal("rank(AB) = min(rank A, rank B) of Gaussian matrices", form="corrected")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    rank = jax.jit(geometry.numerical_rank)

    def gaussian(of_rank: int) -> np.ndarray:
        return rng.normal(size=(6, of_rank)) @ rng.normal(size=(of_rank, 6))

    pairs = [(i, j) for i in range(1, 5) for j in range(1, 5)]
    return [int(rank(jnp.asarray(gaussian(i) @ gaussian(j)))) - min(i, j) for i, j in pairs]


LINEAR_NETWORKS = claim(
    "Section II",
    "In a linear network, one recentering has the effect of a recentering after every layer: "
    r"$\operatorname{RC}(W_2 \operatorname{RC}(W_1 X)) = W_2 W_1 \operatorname{RC}(X)$",
)


@LINEAR_NETWORKS.equal("the two sides agree")
def _(key: Key[Array, ""]) -> Values:
    rng = generator(key)
    x, a, b = (rng.normal(size=shape) for shape in ((CASES, 6, 5), (5, 7), (7, 4)))
    once, twice = recenter(jnp.asarray(x), axis=1), recenter(jnp.asarray(x @ a), axis=1)
    return np.asarray(recenter(jnp.asarray(np.asarray(twice) @ b), axis=1)) - once @ (a @ b)
