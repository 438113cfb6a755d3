"""Theorems 13 and 14: what one layer does to the invariant representation."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import geometry
from geometry.claims._draws import generator, normal
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
from jaxnorm import recenter

claim = claims_of("Batch Normalization Decomposed")

POINTS = 5  # in the batch of Theorems 13 and 14
WIDTH = 20
CASES = 200


def centred_geometry(key: Key[Array, ""]) -> Values:
    """x̃₁ + (n − 1) ν̃ of random batches: opposite, with norms n − 1 to one."""
    x = generator(key).normal(size=(CASES, 7, 4))
    centred = x - x.mean(1, keepdims=True)
    return centred[:, 0] + 6 * centred[:, 1:].mean(1)


EQUATIONS_99_TO_104 = claim(
    "Equations 99 to 104",
    "Once centred, x₁ and the centre of the others are opposite, with norms n − 1 to 1",
    Computed("x̃₁ + (n − 1)ν̃ = 0", centred_geometry, tolerance=1e-12),
)


def definition_12(key: Key[Array, ""]) -> Values:
    """Whether an invariant representation is not recognised, of several sizes."""
    invariant = jax.jit(lambda x: geometry.is_invariant(geometry.gram(x)))
    return [not invariant(_invariant(n)) for n in (2, 7)]


DEFINITION_12 = claim(
    "Definition 12",
    "Invariant representation: ‖x₁‖ = 1, others equal, orthogonal, n − 1 times shorter",
    Computed("is recognised", definition_12),
)


def next_layer(key: Key[Array, ""]) -> Statistics:
    """Norms after one layer of an invariant representation, squared and not, and mean entries."""
    n = POINTS
    x = geometry.invariant_representation(n, 2).astype(jnp.float32)
    w = normal(key, 2, WIDTH) * (2 * geometry.odd_points.cluster_growth(n) / WIDTH) ** 0.5
    y = jax.nn.relu(recenter(x @ w))
    odd, other = jnp.square(y[0]).sum(), jnp.square(y[1]).sum() * (n - 1) ** 2
    return {
        "squared_norm": odd,
        "norm": jnp.sqrt(odd),
        "squared_cluster_norm": other,
        "cluster_norm": jnp.sqrt(other),
        "entry": y[0].mean() * WIDTH**0.5,
    }


LAYER = Draws(next_layer, 60_000, batch_size=5000)


def expected_entry() -> float:
    """√d E x₁ⱼ′ after one layer, exactly."""
    x = geometry.invariant_representation(POINTS, 2).astype(jnp.float64)
    gain = geometry.odd_points.cluster_growth(POINTS)
    return WIDTH**0.5 * float(geometry.odd_points.expected_entries(x, width=WIDTH, gain=gain)[0])


def expected_gram(key: Key[Array, ""]) -> Values:
    """Expected Gram matrix after a layer of an invariant representation minus its own."""
    gap = jax.jit(lambda x: geometry.odd_points.next_layer(x).gram[:-1, :-1] - geometry.gram(x))
    return [gap(_invariant(n)) for n in (3, 12)]


THEOREM_13 = claim(
    "Theorem 13, Equations 105 to 110",
    "E[X′] of an invariant representation is one again",
    Sampled.rejected("√d E x₁ⱼ′ = 1, as ‖E x₁′‖ = 1 asks", 1.0, LAYER, "entry"),
    Sampled.corrected("√d E x₁ⱼ′ = 1/√π", expected_entry, LAYER, "entry"),
    Sampled.corrected("E‖x₁′‖² = 1", 1.0, LAYER, "squared_norm"),
    Sampled.corrected("(n − 1)² E‖ν′‖² = 1", 1.0, LAYER, "squared_cluster_norm"),
    Computed.corrected("E X′X′ᵀ = XXᵀ by the kernel", expected_gram),
    printed="E[X′]",
    corrected="E[X′X′ᵀ]; the entrywise mean has rank one",
)


def _invariant(n: int) -> Array:
    """An invariant representation in float64, without compiling its operations one by one."""
    x = np.zeros((n, 3))
    x[0, 0], x[1:, 1] = 1, 1 / (n - 1)
    return jnp.asarray(x)


def radius_of_invariant(key: Key[Array, ""]) -> Values:
    """n/(n − 1) minus R of an invariant representation: Theorem 14 asks for less than 0."""
    n = np.arange(2, 1000)
    return n / (n - 1) - np.sqrt(n**2 - 2 * n + 2) / (n - 1)


HYPOTHESES_OF_THEOREM_14 = claim(
    "Theorem 14, hypotheses",
    "An invariant representation with R > n/(n − 1)",
    Computed.rejected("n/(n − 1) − R ≤ 0, n = 2..999", radius_of_invariant, "inequality"),
    printed="R > n/(n − 1)",
    corrected="R = √(n² − 2n + 2)/(n − 1) is forced, and smaller",
)

EXPECTED_NORM = geometry.mean_field.expected_norm_factor(WIDTH)

THEOREM_14_1 = claim(
    "Theorem 14, item 1",
    "E‖x₁′‖ after one layer of width d = 20",
    Sampled.rejected("E‖x₁′‖ = 1", 1.0, LAYER, "norm"),
    Sampled.corrected("E‖x₁′‖ = 1 − 5/(8d) + …", EXPECTED_NORM, LAYER, "norm"),
    printed="E‖x₁′‖ = 1",
    corrected="E‖x₁′‖² = 1, and E‖x₁′‖ = 1 − 5/(8d) + O(d⁻²), known exactly",
)

THEOREM_14_2 = claim(
    "Theorem 14, item 2",
    "(n − 1) E‖ν̂‖ after one layer of width d = 20",
    Sampled.rejected("(n − 1) E‖ν̂‖ = 1", 1.0, LAYER, "cluster_norm"),
    Sampled.corrected("(n − 1) E‖ν̂‖ = 1 − 5/(8d) + …", EXPECTED_NORM, LAYER, "cluster_norm"),
    printed="E‖ν̂‖ = 1/(n − 1)",
    corrected="E‖ν̂‖² = 1/(n − 1)²",
)


def inner_product_after_a_layer(key: Key[Array, ""]) -> Values:
    """x₁′ · ν̂ of random batches and weights."""
    rng = generator(key)
    x = np.asarray(recenter(jnp.asarray(rng.normal(size=(CASES, 6, 4))), axis=1))
    ends = np.stack([x[:, 0], x[:, 1:].mean(1)], 1)
    y = np.maximum(ends @ rng.normal(size=(4, 30)), 0)
    return (y[:, 0] * y[:, 1]).sum(1)


THEOREM_14_3 = claim(
    "Theorem 14, item 3",
    "x₁′ · ν̂ = 0 for all weights",
    Computed("x₁′ · ν̂", inner_product_after_a_layer, tolerance=1e-12),
)


def distances_after_a_layer(key: Key[Array, ""]) -> Values:
    """E‖xᵢ′ − xⱼ′‖²/‖xᵢ − xⱼ‖² − 1 of the cluster and its centre, R from n/(n − 1) on."""
    rng = generator(key)
    n = 6
    x = rng.normal(size=(CASES, n, 3)) / n**2
    direction = rng.normal(size=(CASES, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    x[:, 0] = x[:, 1:].mean(1) + direction * rng.uniform(1, 3, (CASES, 1)) * n / 5
    extended = np.concatenate([x, x[:, 1:].mean(1, keepdims=True)], 1)
    square = np.square(extended[:, :, None] - extended[:, None]).sum(-1)
    g = np.asarray(jax.jit(jax.vmap(geometry.odd_points.next_layer))(jnp.asarray(x)).gram)
    norms = np.diagonal(g, axis1=1, axis2=2)
    after = norms[:, :, None] + norms[:, None] - 2 * g
    pairs = np.triu_indices(n, 1)
    return (after[:, 1:, 1:] / np.where(square > 0, square, 1)[:, 1:, 1:])[:, *pairs] - 1


def growth_of_a_cluster(key: Key[Array, ""]) -> Cases:
    """Growth of the relative squared spread of a tiny cluster, over what is predicted."""
    step = jax.jit(geometry.mean_field_step)
    for n in (4, 20):
        x = np.array(_invariant(n))
        x[1:] += 1e-4 * generator(key).normal(size=(n - 1, 3)) / n
        g = x @ x.T
        spreads = [_relative_spread(np.asarray(h)) for h in (g, step(jnp.asarray(g)))]
        yield spreads[1] / spreads[0] / geometry.odd_points.cluster_growth(n)


def _relative_spread(g: np.ndarray) -> float:
    """Mean squared distance of the cluster from its centre, over that of the odd sample."""
    n = len(g)
    weights = np.full(n, 1 / (n - 1))
    weights[0] = 0
    centre = weights @ g @ weights
    square = np.diag(g) - 2 * g @ weights + centre
    return float(square[1:].mean() / square[0])


THEOREM_14_4 = claim(
    "Theorem 14, item 4, Equations 112 to 117",
    "E‖xᵢ′ − xⱼ′‖² < ‖xᵢ − xⱼ‖² in the cluster, so that it is stable",
    Computed("for R ≥ n/(n − 1)", distances_after_a_layer, "inequality"),
    Computed.corrected(
        "relative to R² the spread grows by n²/(n² − 2n + 2)",
        growth_of_a_cluster,
        predicted=1.0,
        tolerance=5e-3,
    ),
    printed="the cluster contracts",
    corrected="only by the rescaling of R: relative to R the collapsed cluster is unstable",
    remark=Remark("over-reading", "true, no stability"),
)
