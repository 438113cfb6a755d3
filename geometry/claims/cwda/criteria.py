"""Section 1 of the pruning paper: criteria, and how alike they rank filters."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

import pruning
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
from geometry.claims.cwda._draws import LAYERS_OF_FIGURE_1, figure_1_spearman

claim = claims_of("CWDA")


def invariances(key: Key[Array, ""]) -> Values:
    """Scores of permuted and (but for l1) of rotated filters minus those of the filters."""
    rng = generator(key)
    v = rng.normal(size=(20, 12))
    rotation, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    scores = jax.jit(pruning.criteria.scores)
    plain, permuted, rotated = (scores(jnp.asarray(x)) for x in (v, v[:, ::-1], v @ rotation))
    gaps = [permuted[name] - plain[name] for name in plain]
    return gaps + [rotated[name] - plain[name] for name in plain if name != "l1"]


SECTION_1 = claim(
    "Section 1, filters and one-shot pruning",
    "Scores do not depend on the order of the weights, and but for l1 not on a rotation",
    Computed("scores of permuted and of rotated filters", invariances),
    remark=Remark("over-reading", "protocol"),
)

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


def table_1(key: Key[Array, ""]) -> Cases:
    """Number of filters that two criteria share, minus the number counted by hand."""
    counted = ((5, 7, 7, 6, 6, 8), (8,) * 6)
    for filters, counts in zip(FIRST_PRUNED.values(), counted, strict=True):
        pairs = itertools.combinations([set(first) for first in filters], 2)
        yield [len(a & b) - count for (a, b), count in zip(pairs, counts, strict=True)]


def table_1_overlap(key: Key[Array, ""]) -> Values:
    return float(pruning.gaussian.expected_overlap(256, 2304, ("l1", "l2"), ratio=8 / 256))


TABLE_1 = claim(
    "Table 1",
    "l1, l2, GM and Fermat prune almost the same eight filters first",
    Computed("filters that two criteria share, as counted by hand", table_1),
    Computed.corrected(
        "Gaussian filters share 0.68 of 8 in 256 by l1 and l2",
        table_1_overlap,
        predicted=0.68,
        tolerance=5e-3,
    ),
    corrected="l1 and l2 share 5 of 8 in ResNet18, as Gaussian filters would",
    remark=Remark("hypothesis", "holds for VGG16"),
)

FIGURE_1 = claim(
    "Figure 1",
    "Spearman's ρ of l1 and l2 is 0.98 in a layer of 128 filters in 576 dimensions",
    Sampled.rejected("E Sp = 0.98 under CWDA", 0.98, LAYERS_OF_FIGURE_1, "spearman_l1_l2"),
    Sampled.corrected(
        "E Sp = 6(asin ρ + (N − 2) asin(ρ/2))/(π(N + 1))",
        figure_1_spearman,
        LAYERS_OF_FIGURE_1,
        "spearman_l1_l2",
    ),
    printed="0.98 and 0.99",
    corrected="0.927 for Gaussian filters: more needs a spread of the filters' scales",
)


def medians(key: Key[Array, ""]) -> Values:
    """Fermat points minus their known values, and the share of Σ‖x − v‖ to be saved."""
    rng = generator(key)
    find = jax.jit(pruning.geometric_median)
    turn = 2 * math.pi * np.arange(3) / 3
    inner = np.array([[0.0, 0], [4, 0], [0, 4], [1, 1]])
    square = np.array([[0.0, 0], [2, 0], [3, 3], [0, 1]])
    # The diagonals of the second quadrilateral, from (0, 0) to (3, 3) and from (2, 0) to (0, 1).
    examples = (
        (np.stack([np.cos(turn), np.sin(turn)], 1), (0, 0)),
        (np.array([[0.0, 0], [5, 0.1], [-5, 0.1]]), (0, 0)),
        (inner, (1, 1)),
        (square, (2 / 3, 2 / 3)),
    )
    gaps = [np.asarray(find(jnp.asarray(v))) - expected for v, expected in examples]
    half = rng.standard_t(2, (10, 4))
    symmetric = jnp.asarray(np.concatenate([half, -half]))
    spread = jnp.asarray(rng.standard_t(2, (20, 4)))
    return [*gaps, find(symmetric), pruning.criteria.optimality_gap(find(spread), spread)]


TABLE_2 = claim(
    "Table 2 and its footnote",
    "Fermat: F = argmin Σ‖x − vⱼ‖; GM: Σₖ‖vₖ − vⱼ‖",
    Computed("known Fermat points, and the optimality gap", medians, tolerance=1e-6),
)


def random_rankings(key: Key[Array, ""]) -> Statistics:
    x = normal(key, 2, 64)
    return {"overlap": pruning.overlap(x[0], x[1], ratio=0.5)}


RANKINGS = Draws(random_rankings, 20_000)
OVERLAP_MEAN, OVERLAP_VARIANCE = pruning.ranking.chance_overlap(64, ratio=0.5)


def least_overlap(key: Key[Array, ""]) -> Cases:
    """max(0, 2 − 1/p) minus the overlap, of unrelated and of opposite rankings."""
    scores = jnp.asarray(generator(key).normal(size=(200, 20)))
    for ratio in (0.3, 0.8):
        overlap = jax.jit(jax.vmap(functools.partial(pruning.overlap, ratio=ratio)))
        for other in (scores[::-1], -scores):
            yield max(0, 2 - 1 / ratio) - np.asarray(overlap(scores, other))


def overlap_at_one_half(key: Key[Array, ""]) -> Values:
    """Φ₂(0, 0; ρ)/½ minus ½ + asin(ρ)/π."""
    rho = float(pruning.l1_l2_correlation(64.0))
    overlap = float(pruning.gaussian.expected_overlap(64, 64.0, ("l1", "l2"), ratio=0.5))
    return overlap - 0.5 - math.asin(rho) / math.pi


EQUATION_1 = claim(
    "Equation 1, Figure 2",
    "Overlap OD = #(C₁ ∩ C₂)/#C₂",
    Sampled("E OD of unrelated rankings = m/N", OVERLAP_MEAN, RANKINGS, "overlap"),
    Sampled("Var OD is hypergeometric", OVERLAP_VARIANCE, RANKINGS, "overlap", "variance"),
    Computed("OD ≥ max(0, 2 − 1/p)", least_overlap, "inequality"),
    Computed("OD of a normal pair at ½ is ½ + asin(ρ)/π", overlap_at_one_half),
)
