"""Section I: the parts of batch norm, linear networks with rescaling alone, ranks of products."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import exponent, generator
from geometry.claims._types import (
    Cases,
    Computed,
    Draws,
    Remark,
    Sampled,
    Statistics,
    Values,
    claims_of,
)
from jaxnorm import recenter, rescale, rescale_rms, standardize

claim = claims_of("Batch Normalization Decomposed")

CASES = 200


def parts_of_batch_norm(key: Key[Array, ""]) -> Values:
    """Mean and mean square − 1 of standardized batches, and what two identities leave."""
    z = jnp.asarray(generator(key).normal(3, 2, (CASES, 12, 7)))
    standardized = standardize(z, axis=1)
    return [
        standardized.mean(1),
        jnp.square(standardized).mean(1) - 1,
        rescale(recenter(z, axis=1), axis=1) - standardized,
        standardize(z + 5, axis=1) - standardized,
    ]


EQUATIONS_1_TO_4 = claim(
    "Equations 1 to 4",
    "Batch norm is recentering and then rescaling, and adding a constant changes nothing",
    Computed("mean 0, mean square 1, RS∘RC = BN, shifts vanish", parts_of_batch_norm),
)


def rescaled_cosines(key: Key[Array, ""]) -> Statistics:
    """Mean |cos| of 5 points after 100 linear layers of width 50 with rescaling alone."""
    return {"cosine": _rescaled_cosine(key, 50)}


def _rescaled_cosine(key: Array, width: int) -> Array:
    net = geometry.random_network(
        key,
        jnp.eye(5, dtype=jnp.float32),
        depth=100,
        width=width,
        normalization=rescale_rms,
        nonlinearity=lambda x: x,
        homogeneous=False,
        layers=(100,),
    )
    angles = geometry.angles(net.x)[np.triu_indices(5, 1)]
    return jnp.abs(jnp.cos(angles)).mean()


COSINES = Draws(rescaled_cosines, 60, batch_size=20)


def decay_with_width(key: Key[Array, ""]) -> Values:
    """Exponent of the mean |cos| over the width."""
    widths = (25, 50, 100)
    keys = jax.random.split(key, 24)
    cosines = [
        jax.jit(jax.vmap(lambda key, width=width: _rescaled_cosine(key, width)))(keys).mean()
        for width in widths
    ]
    return exponent(widths, cosines)


FIGURE_1 = claim(
    "Figure 1, row IV",
    "Linear networks with rescaling alone make samples orthonormal with depth",
    Sampled.rejected("E|cos| = 0 after 100 layers of width 50", 0.0, COSINES, "cosine"),
    Computed.corrected(
        "E|cos| ~ width^(−1/2), widths 25 to 100",
        decay_with_width,
        relation="limit",
        predicted=-0.5,
        tolerance=0.15,
    ),
    printed="|cos| → 0 with depth",
    corrected="|cos| = O(1/√d) stays at width d, whatever the depth",
)


def rank_of_products(key: Key[Array, ""]) -> Cases:
    """Rank of AB minus the smaller of the ranks of A and B.

    Of integers: a product that nearly vanishes has no rounding that could pass for rank.
    """
    rng = generator(key)

    def integers(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float64)

    for _ in range(CASES):
        inner = rng.integers(1, 5, 2).tolist()
        a = integers(6, inner[0]) @ integers(inner[0], 5)
        b = integers(5, inner[1]) @ integers(inner[1], 4)
        ranks = [int(np.linalg.matrix_rank(m)) for m in (a @ b, a, b)]
        yield ranks[0] - min(ranks[1:])


RANK_OF_A_PRODUCT = claim(
    "Section I, rank of a product",
    "rank(AB) ≤ max(rank A, rank B)",
    Computed("rank(AB) ≤ min(rank A, rank B)", rank_of_products, "inequality"),
    corrected="rank(AB) ≤ min(rank A, rank B), which the argument needs",
    remark=Remark("loose", "loose"),
)
