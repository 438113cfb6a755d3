"""Random draws of filters for claims in several sections of the pruning paper.

Filters are rows of independent normal weights, with standard deviation 1 unless stated otherwise.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

import pruning
from claims.draws import normal
from geometry.claims import Draws, Form, Sampled, Statistics
from jaxnorm.internal import chi_mean

DIMS = 9  # the number of dimensions of the three filters
LAYER_FILTERS, LAYER_DIMS = 64, 144
FIGURE_1_FILTERS, FIGURE_1_DIMS = 128, 576  # The sizes of the smaller layer in Figure 1.
# The predicted mean of Spearman's ρ neglects small terms. For each pair of criteria, the dictionary
# has the size of these terms for LAYER_FILTERS filters in LAYER_DIMS dimensions.
SPEARMAN_NEXT_TERM = {
    ("l1", "l2"): 1e-3,
    ("l1", "fermat"): 1e-3,
    ("l1", "gm"): 1e-3,
    ("l2", "fermat"): 2 / LAYER_FILTERS**2,
    ("l2", "gm"): 2 / LAYER_FILTERS**2,
    ("fermat", "gm"): 1e-5,
}


def norm_cv2(dims: int) -> float:
    """The squared coefficient of variation of the norm ‖v‖."""
    return float(pruning.gaussian.chi_variance(1.0, float(dims))) / chi_mean(dims) ** 2


def three_filters(key: Key[Array, ""]) -> Statistics:
    """The lengths, angles and distances of three filters a, b and c.

    The entry `inner_product` is for filters with standard deviation 0.7, and is divided by √d.
    The entry `distance_to_point` is the distance from (2, 0, …, 0) to a filter with standard
    deviation 1.7. The entry `scaled_norm` is the norm of a filter with a log-normal scale, divided
    by the mean norm of a filter with scale 1.
    """
    v = normal(key, 1000, 3, DIMS)
    a, b, c = v[:, 0], v[:, 1], v[:, 2]
    norm, norm_b = pruning.l2_norm(a), pruning.l2_norm(b)
    l1, inner_product = pruning.l1_norm(a), (a * b).sum(1)
    cosine = inner_product / (norm * norm_b)
    to_b, to_c = jnp.linalg.norm(a - b, axis=1), jnp.linalg.norm(a - c, axis=1)
    x, y = (part - part.mean(1, keepdims=True) for part in (a, b))
    correlation = (x * y).sum(1) / (jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(y, axis=1))
    scale = jnp.exp(0.5 * normal(jax.random.fold_in(key, 1), 1000))
    point = jnp.zeros(DIMS, jnp.float32).at[0].set(2.0)
    l1_mean = DIMS * (2 / math.pi) ** 0.5
    return {
        "norm": norm,
        "norm_difference": norm - norm_b,
        "scaled_norm": scale * norm / chi_mean(DIMS),
        "first_size": jnp.abs(a[:, 0]),
        "l1": l1,
        "l1_l2_covariance": (l1 / l1_mean - 1) * (norm / chi_mean(DIMS) - 1),
        "cosine": cosine,
        "cosine_size": jnp.abs(cosine),
        "angle": jnp.arccos(cosine),
        "squared_correlation": jnp.square(correlation),
        "inner_product": 0.49 * inner_product / DIMS**0.5,
        "distance": to_b,
        "distance_difference": to_b - to_c,
        "squared_distance_covariance": (jnp.square(to_b) - 2 * DIMS)
        * (jnp.square(to_c) - 2 * DIMS),
        "distance_to_point": jnp.linalg.norm(1.7 * a - point[None], axis=1),
        "product_of_opposites": -jnp.square(a[:, 0]),
    }


THREE_FILTERS = Draws(three_filters, 400_000, batch_size=20_000, draws_per_key=1000)


def layers(key: Key[Array, ""]) -> Statistics:
    """For random layers, criteria's rank correlations and spreads, and filters' moments."""
    v = normal(key, LAYER_FILTERS, LAYER_DIMS)
    scores = pruning.criteria.scores(v)
    ranks = {
        f"spearman_{a}_{b}": pruning.spearman(scores[a], scores[b])
        for a, b in pruning.ranking.PAIRS
    }
    spread = {
        f"squared_cv_{name}": jnp.var(x, ddof=1) / jnp.square(x.mean())
        for name, x in {**scores, "repr": pruning.criteria.repr_score(v)}.items()
    }
    gram = v @ v.T / LAYER_DIMS
    off_diagonal = jnp.square(gram).sum() - jnp.square(jnp.diagonal(gram)).sum()
    unrelated = pruning.l2_norm(normal(jax.random.fold_in(key, 1), LAYER_FILTERS, LAYER_DIMS))
    others = {
        "squared_cv_fermat_minus_l2": spread["squared_cv_fermat"] - spread["squared_cv_l2"],
        "squared_norm_of_median": jnp.square(pruning.geometric_median(v)).sum(),
        "squared_norm_of_centroid": jnp.square(v.mean(0)).sum(),
        "squared_covariance": off_diagonal / (LAYER_FILTERS * (LAYER_FILTERS - 1)),
        "largest_eigenvalue": jnp.linalg.eigvalsh(pruning.weight_tests.covariance(v))[-1],
        "spearman_of_unrelated": pruning.spearman(scores["l2"], unrelated),
    }
    return {name: x.astype(jnp.float32) for name, x in (ranks | spread | others).items()}


LAYERS = Draws(layers, 300, batch_size=30)


def layer_spearman(what: str, a: str, b: str, form: Form = "printed") -> Sampled:
    """Check the mean Spearman's ρ of two criteria over the layers that `layers` draws.

    The predicted mean is exact to first order in 1/N and 1/d.
    """

    def expected() -> Array:
        return pruning.expected_spearman(LAYER_FILTERS, float(LAYER_DIMS), (a, b))

    within = SPEARMAN_NEXT_TERM[a, b]
    return Sampled(what, expected, LAYERS, f"spearman_{a}_{b}", within=within, form=form)


FIGURE_1_SCALES = 0.049  # the standard deviation of the log of a filter's scale


def figure_1(key: Key[Array, ""]) -> Statistics:
    """Spearman's ρ of criteria for Gaussian filters, with equal and with different scales."""
    v = normal(key, FIGURE_1_FILTERS, FIGURE_1_DIMS)
    scale = jnp.exp(FIGURE_1_SCALES * normal(jax.random.fold_in(key, 1), FIGURE_1_FILTERS))
    l1, l2 = pruning.l1_norm(v), pruning.l2_norm(v)
    return {
        "spearman_l1_l2": pruning.spearman(l1, l2),
        "spearman_l2_gm": pruning.spearman(l2, pruning.gm(v)),
        "spearman_with_scales": pruning.spearman(scale * l1, scale * l2),
    }


LAYERS_OF_FIGURE_1 = Draws(figure_1, 150, batch_size=30)


def figure_1_spearman(pair: tuple[str, str] = ("l1", "l2")) -> float:
    """The expected Spearman's ρ between two criteria, for filters as in `figure_1`."""
    return float(pruning.expected_spearman(FIGURE_1_FILTERS, float(FIGURE_1_DIMS), pair))
