"""Wrong functions, each with the claims of "Batch Normalization Decomposed" that must notice it."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometry
import jaxnorm
from claims import PAPERS
from claims.bn_decomposed.tree_angles import printed_end_bounds
from geometry import cells, mean_field, networks, odd_points, ranks, tree
from tests.support.mutations import Mutation, result, times, unnoticed

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "geometry" / "results.json"
EQ_1, SEC_1, SEC_2 = "Equations 1 to 4", "Section I, rank of a product", "Section II"
FIG_1, FIG_3, FIG_6 = "Figure 1", "Figure 3", "Figure 6"
FIG_5A, FIG_5B = "Figure 5, without recentering", "Figure 5, with recentering"
DEF_1, CIRCLE, LEM_2 = "Definition 1, Equation 5", "Definition 1, example", "Lemma 2, Equation 6"
THM_3_1, THM_3_2 = "Theorem 3, item 1", "Theorem 3, item 2, Equations 7a and 7b"
COV, COR_4 = "Theorem 3, independence of the steps", "Corollary 4"
DEF_5, THM_10 = "Definition 5, Equations 9 and 10, Figure 4", "Theorem 10"
GRAM, EQ_11 = "Gram matrix of the tree (ours)", "Equation 11"
THM_11_1, THM_11_2 = "Theorem 11, item 1", "Theorem 11, item 2"
THM_11_3, THM_11_4 = "Theorem 11, item 3", "Theorem 11, item 4, Equation 12"
EQ_36, EQ_39 = "Equations 36 to 38, Figure 7", "Equations 39 and 40"
EQ_44, EQ_63 = "Equations 44 to 55 and 57 to 60", "Equations 63 to 73"
EQ_8, EQ_111, INEQUALITY = "Equation 8", "Equation 111", "Inequality after Equation 111"
EQ_99, DEF_12 = "Equations 99 to 104", "Definition 12"
THM_13, THM_14 = "Theorem 13, Equations 105 to 110", "Theorem 14, hypotheses"
THM_14_1, THM_14_2, THM_14_3 = (f"Theorem 14, item {i}" for i in (1, 2, 3))
THM_14_4, STABILITY = "Theorem 14, item 4, Equations 112 to 117", "Stability, before Theorem 14"
SYMMETRIC, REMARK = "Symmetric batches (ours)", "Remark on the odd point"
DISCUSSION = "Discussion, one neuron per data point"

TWICE, HALF, MORE, LESS = times(2.0), times(0.5), times(1.1), times(0.9)
ALWAYS = result(lambda value: jnp.ones_like(value))
NEVER = result(lambda value: jnp.zeros_like(value))


def field(name, change):
    """Change one field of the result of a function."""
    return result(lambda value: value._replace(**{name: change(getattr(value, name))}))


def of(*, first=lambda x: x, last=lambda x: x):
    """Let a function get a changed first or last argument."""

    def make(right):
        def wrong(*args, **options):
            args = [first(args[0]), *args[1:]]
            return right(*args[:-1], last(args[-1]), **options)

        return wrong

    return make


def with_one_less(recenter):
    """Subtract Σx/(n − 1) instead of the mean."""

    def wrong(x, *, axis=0):
        n = x.shape[axis]
        return x - (x - recenter(x, axis=axis)) * (n / (n - 1) if n > 1 else 1)

    return wrong


def corrected(rescaling):
    return lambda x, *, axis=0, eps=0.0: (
        rescaling(x, axis=axis, eps=eps) * ((1 - 1 / x.shape[axis]) ** 0.5)
    )


def constant_volumes(volumes):
    return lambda x: jnp.full(2 * len(x), 1 / (2 * len(x)), x.dtype)


def largest_cell(gamma):
    return lambda x: cells.cell_volumes_2d(x).max()


def one_more(rows_needed):
    def wrong(*args, **options):
        rows, rank = rows_needed(*args, **options)
        return rows + 1, rank

    return wrong


def weaker(bound):
    """Multiply the exponent of the bound by 0.999."""
    return lambda n, alpha, gamma: 1 - (1 - bound(n, alpha, gamma)) ** 0.999


def without_zeros(reachable):
    return lambda x: reachable(jnp.where(jnp.any(x != 0, axis=1)[:, None], x, jnp.ones_like(x)))


def without_parallels(reachable):
    """Shift the samples slightly, so that no two samples are parallel."""
    return lambda x: reachable(x + 1e-3 * jnp.stack([jnp.sin(3 * x[:, 1]), jnp.cos(x[:, 0])], 1))


def off_the_diagonal(kernel):
    return lambda gram: kernel(gram) * (1 + 0.02 * (1 - jnp.eye(len(gram))))


def at_45_degrees(is_odd):
    return lambda gram: is_odd(gram) & (geometry.odd_point(gram).spread <= math.radians(45))


def always_odd(is_odd):
    return lambda gram: jnp.ones((), bool)


def shortest(odd_point):
    return lambda gram: odd_point(gram)._replace(index=jnp.argmin(jnp.diagonal(gram)))


def without_recentering(step):
    return geometry.arccosine_kernel


def only_children(step):
    return lambda x: jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], 1)


def of_one_layer_less(gram):
    return lambda x, depth: gram(x, depth - 1)


def inverse_ratio(limits):
    return lambda n, r: limits(n, 1 / r)


def more_samples(function):
    return lambda n, *rest: function(n + 1, *rest)


def one_success_less(tail):
    return lambda n, gamma, rows: tail(n + 1, gamma, rows)


def rms(step):
    return mean_field.rescale_rms_step


def plain(step):
    return mean_field.cosine_step


MUTATIONS = [
    Mutation(jaxnorm.recenter, "by n − 1", with_one_less, (SEC_2, EQ_99, DEF_5)),
    Mutation(jaxnorm.rescale, "by n − 1", corrected, (EQ_1,)),
    Mutation(jaxnorm.standardize, "by n − 1", corrected, (EQ_1,)),
    Mutation(jaxnorm.standardize, "about zero", lambda _: jaxnorm.rescale_rms, (EQ_1, FIG_6)),
    Mutation(jaxnorm.rescale_rms, "recentered", lambda _: jaxnorm.standardize, (FIG_6,)),
    Mutation(ranks.numerical_rank, "off by one", result(lambda r: r + 1), (SEC_1, COR_4)),
    Mutation(cells.cell_volumes_2d, "halved", HALF, (DEF_1, CIRCLE, LEM_2)),
    Mutation(cells.cell_volumes_2d, "constant", constant_volumes, (DEF_1,)),
    Mutation(cells.gamma_2d, "doubled", TWICE, (DEF_1, CIRCLE, LEM_2)),
    Mutation(cells.gamma_2d, "largest", largest_cell, (DEF_1, LEM_2)),
    Mutation(ranks.full_rank_probability, "halved", HALF, (LEM_2,)),
    Mutation(ranks.full_rank_probability, "constant", result(lambda p: 0 * p + 0.5), (LEM_2,)),
    Mutation(ranks.full_rank_probability, "10 % more", MORE, (LEM_2,)),
    Mutation(ranks.rows_needed, "one more", one_more, (THM_3_1, COV, COR_4)),
    Mutation(ranks.mean_rows_bound, "halved", HALF, (THM_3_1,)),
    Mutation(ranks.mean_rows_bound, "doubled", TWICE, (THM_3_1,)),
    Mutation(ranks.rank_tail_bound, "weaker", weaker, (THM_3_2,)),
    Mutation(ranks.rank_tail_bound, "γ = 0", of(last=lambda gamma: 0.0), (THM_3_2,)),
    Mutation(ranks.rank_tail, "of n + 1", one_success_less, (THM_3_2,)),
    Mutation(ranks.rank_tail, "halved", HALF, (THM_3_2,)),
    Mutation(ranks.full_rank_reachable, "always", ALWAYS, (COR_4,)),
    Mutation(ranks.full_rank_reachable, "never", NEVER, (COR_4,)),
    Mutation(ranks.full_rank_reachable, "without zeros", without_zeros, (COR_4,)),
    Mutation(ranks.full_rank_reachable, "of any directions", without_parallels, (COR_4,)),
    Mutation(tree.step, "without recentering", only_children, (DEF_5, EQ_63)),
    Mutation(tree.step, "halved", HALF, (DEF_5, EQ_63)),
    Mutation(tree.neurons, "halved", HALF, (GRAM, EQ_36, EQ_39, EQ_44)),
    Mutation(tree.depth_bound, "halved", HALF, (THM_10,)),
    Mutation(tree.depth_bound, "+10 %", MORE, (THM_10,)),
    Mutation(geometry.tree_gram, "a layer less", of_one_layer_less, (GRAM,)),
    Mutation(geometry.tree_gram, "halved", field("gram", lambda g: g / 2), (GRAM,)),
    Mutation(
        geometry.tree_gram,
        "with raised products",
        field("gram", lambda g: g + 1e-3 * g.max()),
        (THM_11_1, THM_11_4),
    ),
    Mutation(
        geometry.tree_gram,
        "with raised norms",
        field("gram", lambda g: g * (1 + 1e-3 * jnp.eye(len(g)))),
        (THM_11_2,),
    ),
    Mutation(
        geometry.tree_gram,
        "with distances for their squares",
        field("squared_distances", jnp.sqrt),
        (THM_11_2, THM_11_4),
    ),
    Mutation(tree.end_bounds, "of n + 1", more_samples, (THM_11_3, EQ_44)),
    Mutation(
        tree.end_bounds, "10 % looser", field("norm_ratio", lambda r: 1.1 * r), (THM_11_3, EQ_44)
    ),
    Mutation(tree.limits, "1/r for r", inverse_ratio, (THM_11_4,)),
    Mutation(tree.limits, "of n + 1", more_samples, (THM_11_4,)),
    Mutation(printed_end_bounds, "1.2 for 3", field("norm_ratio", lambda r: 0.4 * r), (THM_11_3,)),
    Mutation(
        printed_end_bounds, "0.8 for √2", field("angle", lambda a: 0.8 * a + 0.3), (THM_11_3,)
    ),
    Mutation(geometry.angles, "halved", HALF, (EQ_11,)),
    Mutation(geometry.arccosine_kernel, "halved", HALF, (EQ_111, INEQUALITY)),
    Mutation(geometry.arccosine_kernel, "2 % more", off_the_diagonal, (INEQUALITY,)),
    Mutation(
        geometry.mean_field_step, "unrecentered", without_recentering, (EQ_8, SYMMETRIC, FIG_3)
    ),
    Mutation(geometry.mean_field_step, "10 % more", off_the_diagonal, (SYMMETRIC,)),
    Mutation(mean_field.expected_norm_factor, "of width + 1", more_samples, (THM_14_1, THM_14_2)),
    Mutation(mean_field.expected_norm_factor, "1", result(lambda _: 1.0), (THM_14_1,)),
    Mutation(geometry.is_invariant, "always", ALWAYS, (DEF_12,)),
    Mutation(geometry.is_invariant, "never", NEVER, (DEF_12,)),
    Mutation(
        geometry.invariant_representation,
        "n for n − 1",
        result(lambda x: x.at[1:].multiply(1 - 1 / len(x))),
        (THM_13,),
    ),
    Mutation(
        odd_points.next_layer, "R halved", field("radius", lambda radius: radius / 2), (THM_14,)
    ),
    Mutation(
        odd_points.next_layer,
        "10 % more",
        field("gram", lambda g: 1.1 * g),
        (THM_13, THM_14_3, THM_14_4),
    ),
    Mutation(
        odd_points.next_layer,
        "without products",
        field("gram", lambda g: g * jnp.eye(len(g))),
        (THM_13, THM_14_4),
    ),
    Mutation(odd_points.expected_entries, "√2 less", times(0.5**0.5), (THM_13,)),
    Mutation(odd_points.cluster_growth, "1", result(lambda _: 1.0), (STABILITY, THM_13)),
    Mutation(odd_points.cluster_growth, "of n + 1", more_samples, (STABILITY, THM_13)),
    Mutation(odd_points.recentred_angle, "of n + 1", more_samples, (SYMMETRIC,)),
    Mutation(odd_points.recentred_angle, "10 % less", LESS, (SYMMETRIC, FIG_5B)),
    Mutation(odd_points.odd_state, "of n + 1", more_samples, (FIG_3,)),
    Mutation(odd_points.odd_state, "wider", field("spread", lambda s: 1.1 * s), (FIG_3,)),
    Mutation(
        odd_points.escape_ratio, "excess 20 % off", result(lambda s: 1.2 * s - 0.2), (REMARK,)
    ),
    Mutation(odd_points.escape_ratio, "excess halved", result(lambda s: (1 + s) / 2), (REMARK,)),
    Mutation(geometry.is_odd, "never", NEVER, (REMARK, FIG_3)),
    Mutation(geometry.is_odd, "always", always_odd, (REMARK,)),
    Mutation(geometry.is_odd, "up to 45°", at_45_degrees, (REMARK, FIG_3)),
    Mutation(geometry.odd_point, "shortest", shortest, (REMARK,)),
    Mutation(mean_field.standardize_step, "about zero", rms, (FIG_5B,)),
    Mutation(mean_field.rescale_step, "about zero", rms, (FIG_5A,)),
    Mutation(mean_field.rms_cosine_step, "without rescaling", plain, (FIG_5A,)),
    Mutation(mean_field.rms_angle, "10 % less", LESS, (FIG_5A,)),
    Mutation(networks.hull_vertices, "always", result(np.ones_like), (DISCUSSION,)),
    Mutation(
        networks.neuron_per_point, "unbiased", result(lambda wb: (wb[0], 0 * wb[1])), (DISCUSSION,)
    ),
]
# No claim fails if the outputs of a network are doubled, because all figures compare samples with
# each other.
SURVIVORS = [Mutation(geometry.random_network, "scaled", field("x", lambda x: 2 * x), (FIG_1,))]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_wrong_function_is_noticed(mutation, monkeypatch, key):
    assert unnoticed(monkeypatch, mutation, PAPERS["bn-decomposed"], key) == []


def test_what_is_noticed_is_far_more_than_what_is_not():
    assert len(SURVIVORS) <= 0.05 * (len(MUTATIONS) + len(SURVIVORS))
