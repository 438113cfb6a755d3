"""Every array function of `geometry` gives the same result on meshes of Explicit and Auto axes."""

import inspect
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import geometry
import jaxnorm
from tests.support.numpy_programs import evaluated
from tests.support.products import assert_full_precision

NAMESPACES = (
    *(geometry.cells, geometry.filters, geometry.mean_field, geometry.networks),
    *(geometry.odd_points, geometry.ranks, geometry.sampling, geometry.tree),
)
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)) + 1
PLANE, SPACE = RNG.normal(size=(8, 2)), RNG.normal(size=(8, 3))
LINE = RNG.normal(size=8)
GRAM = X @ X.T
COSINES = np.linspace(-0.9, 0.9, 16)


def network(x, normalization=lambda x: x):
    return geometry.random_network(
        KEY, x, depth=3, width=8, normalization=normalization, layers=(1, 3)
    )


def noisy_mean(key, x):
    return (x * jax.random.normal(key, x.shape)).mean(0)


def estimate(function, x, **options):
    return function(noisy_mean, KEY, 100, parameters=(x,), **options)


# For each function: an array, which the tests shard along each axis with a multiple of 8 elements.
FUNCTIONS = {
    "gram": (geometry.gram, X),
    "angles": (geometry.angles, X),
    "distances": (geometry.distances, X),
    "filter_geometry": (geometry.filter_geometry, X),
    "numerical_rank": (geometry.numerical_rank, X),
    "effective_rank": (geometry.effective_rank, X),
    "effective_rank_wide": (geometry.effective_rank, X.T),
    "stable_rank": (geometry.stable_rank, X),
    "isometry_gap": (geometry.isometry_gap, GRAM[:8, :8]),
    "orthogonality_gap": (geometry.orthogonality_gap, GRAM),
    "arccosine_kernel": (geometry.arccosine_kernel, GRAM),
    "mean_field_step": (geometry.mean_field_step, GRAM),
    "rescale_step": (geometry.mean_field.rescale_step, GRAM),
    "rescale_rms_step": (geometry.mean_field.rescale_rms_step, GRAM),
    "standardize_step": (geometry.mean_field.standardize_step, GRAM),
    "cosine_step": (geometry.mean_field.cosine_step, COSINES),
    "rms_cosine_step": (geometry.mean_field.rms_cosine_step, abs(COSINES)),
    "recenter_gram": (geometry.mean_field.recenter_gram, GRAM),
    "rescale_gram": (geometry.mean_field.rescale_gram, GRAM),
    "rms_norm_gram": (geometry.mean_field.rms_norm_gram, GRAM),
    "activation_step": (
        partial(geometry.mean_field.activation_step, activation=jnp.tanh, terms=8),
        GRAM / 100,
    ),
    "kernel_map": (lambda x: geometry.mean_field.kernel_map(jnp.tanh, terms=8)(x), COSINES),
    "odd_point": (geometry.odd_point, GRAM),
    "is_odd": (geometry.is_odd, GRAM),
    "is_invariant": (geometry.is_invariant, GRAM),
    "next_layer": (geometry.odd_points.next_layer, X),
    "expected_entries": (partial(geometry.odd_points.expected_entries, width=3), X),
    "step": (geometry.tree.step, X),
    "neurons": (partial(geometry.tree.neurons, depth=2), X),
    "tree_gram": (partial(geometry.tree_gram, depth=3), X),
    "tree_gram_vector": (partial(geometry.tree_gram, depth=3), LINE),
    "depth_bound": (geometry.tree.depth_bound, LINE),
    "limit_ratio": (partial(geometry.tree.limit_ratio, depth=3), LINE),
    "limits": (lambda r: jax.vmap(partial(geometry.tree.limits, 5))(r), abs(LINE)),
    "cell_volumes_2d": (geometry.cell_volumes_2d, PLANE),
    "cell_volumes_3d": (geometry.cells.cell_volumes_3d, SPACE),
    "gamma_2d": (geometry.gamma_2d, PLANE),
    "gamma_3d": (geometry.cells.gamma_3d, SPACE),
    "sampled_cells": (partial(geometry.cells.sampled_cells, KEY, samples=100), X[:8]),
    "full_rank_reachable": (geometry.ranks.full_rank_reachable, X),
    "full_rank_probability": (lambda x: geometry.ranks.full_rank_probability(x, x), PLANE),
    "rows_needed": (partial(geometry.ranks.rows_needed, KEY, max_rows=50), X),
    "hull_vertices": (geometry.networks.hull_vertices, X),
    "neuron_per_point": (geometry.networks.neuron_per_point, X),
    "point_initializers": (
        lambda x: geometry.networks.point_initializers(KEY, x)[1](KEY, (16,), x.dtype),
        X,
    ),
    "random_network": (network, X),
    "random_network_recentred": (partial(network, normalization=jaxnorm.recenter), X),
    **{
        name: (partial(estimate, getattr(geometry.sampling, name)), X)
        for name in ("monte_carlo", "monte_carlo_moments")
    },
}
# The arguments of these functions are numbers, so there is no array to shard.
OF_NUMBERS = {
    "cluster_growth",
    "cluster_spread",
    "cubic_term",
    "end_bounds",
    "escape_ratio",
    "escape_step",
    "expected_norm_factor",
    "fixed_point",
    "gaussian_filter_geometry",
    "invariant_representation",
    "layer_norm_map",
    "mean_rows_bound",
    "mixed_map",
    "norm_envelope",
    "number_of_cells",
    "odd_stability",
    "odd_state",
    "rank_tail",
    "rank_tail_bound",
    "recentred_angle",
    "rms_angle",
    "spread_distribution",
    "symmetric_stability",
    "welch_bound",
}
ON_HOST = {"hull_vertices", "neuron_per_point", "point_initializers"}
NOT_DIFFERENTIABLE = {
    "numerical_rank",
    "is_odd",
    "is_invariant",
    "full_rank_reachable",
    "rows_needed",
    "sampled_cells",
    "monte_carlo",  # the loop over draws has no derivative in reverse mode
    "monte_carlo_moments",
}
MESHES = {
    "explicit": jax.make_mesh((8,), ("data",)),
    "auto": jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)),
}
# Explicit axes raise more errors than Auto axes, so the fast tests shard samples over Explicit
# axes. All other cases are slow tests.
each_mesh = pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(mesh, id=kind, marks=[pytest.mark.slow] if kind == "auto" else [])
        for kind, mesh in MESHES.items()
    ],
)
# Each function of trees takes several seconds to compile. Fast tests include only random networks
# with recentering.
SLOW = {"tree_gram", "tree_gram_vector", "step", "neurons", "depth_bound", "limit_ratio", "limits"}
SLOW |= {"random_network"}
PLACES = [
    pytest.param(
        name,
        spec,
        id=f"{name}-{axis}",
        marks=[pytest.mark.slow] if axis == "features" or name in SLOW else [],
    )
    for name, (_, x) in FUNCTIONS.items()
    for axis, spec in {"samples": P("data"), "features": P(None, "data")}.items()
    if x.ndim >= len(spec) and x.shape[len(spec) - 1] % 8 == 0
]
each_place = pytest.mark.parametrize(("name", "spec"), PLACES)


def with_gradient(name):
    """The function with its gradient (or None), compiled unless the function runs on the host."""
    function = FUNCTIONS[name][0]
    if name in ON_HOST:
        return lambda x: (function(x), None)
    if name in NOT_DIFFERENTIABLE:
        return jax.jit(lambda x: (function(x), None))

    def total(x):
        result = function(x)
        numbers = [y for y in jax.tree.leaves(result) if jnp.issubdtype(y.dtype, float)]
        return sum(jnp.sum(jnp.sin(y)) for y in numbers), result

    return jax.jit(lambda x: jax.grad(total, has_aux=True)(x)[::-1])


@cache
def alone(name):
    """The result without a mesh, evaluated in NumPy unless the function runs on the host."""
    call, x = with_gradient(name), jnp.asarray(FUNCTIONS[name][1])
    found, gradient = call(x) if name in ON_HOST else evaluated(call, x)
    assert gradient is None or np.isfinite(gradient).all()
    return found, gradient


def sharded(name, mesh, spec):
    return jax.device_put(jnp.asarray(FUNCTIONS[name][1]), NamedSharding(mesh, spec))


def assert_close(found, expected):
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    jax.tree.map(lambda a, b: close(np.asarray(a), np.asarray(b)), found, expected)


def test_the_table_holds_every_public_function():
    names = {
        name
        for namespace in (geometry, *NAMESPACES)
        for name, value in inspect.getmembers(namespace, inspect.isfunction)
        if not name.startswith("_") and value.__module__.startswith(namespace.__name__)
    }
    assert names == (set(FUNCTIONS) & names) | OF_NUMBERS


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - ON_HOST))
def test_products_do_not_depend_on_the_precision_of_a_device(name):
    function, x = FUNCTIONS[name]
    assert_full_precision(jax.make_jaxpr(function)(x))


# In float32, these functions draw other random numbers than in float64.
DRAWN = {"random_network_recentred", "rows_needed", "sampled_cells"}
DRAWN |= {"monte_carlo", "monte_carlo_moments"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - ON_HOST - SLOW - DRAWN))
def test_single_precision_has_the_result_of_double_precision(name):
    function, x = FUNCTIONS[name]
    found = evaluated(function, np.float32(x))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, found, jax.tree.map(np.asarray, alone(name)[0]))


def test_a_plain_mesh_is_explicit():
    assert MESHES["explicit"].axis_types == (AxisType.Explicit,)


def test_sharded_features_are_not_gathered():
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    (of_others,) = (
        eqn.params["dst_sharding"].spec
        for eqn in jax.make_jaxpr(geometry.gram)(x).eqns
        if eqn.primitive.name == "reshard"
    )
    assert of_others == P(None, "j")


@each_mesh
@each_place
def test_a_sharded_argument_changes_neither_result_nor_gradient(name, spec, mesh):
    assert_close(with_gradient(name)(sharded(name, mesh, spec)), alone(name))


# These functions branch on shapes, so the test also runs them without `jit`.
EAGER = {"angles", "filter_geometry"}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param(*place.values, id=place.id, marks=[] if fast else [pytest.mark.slow])
        for place in PLACES
        for fast in [place.values[0] in EAGER and not place.marks]
    ],
)
def test_a_sharded_argument_changes_no_result_outside_jit(name, spec):
    found = FUNCTIONS[name][0](sharded(name, MESHES["explicit"], spec))
    assert_close(found, alone(name)[0])


@pytest.mark.parametrize("spec", [P("data"), P(None, "data")])
@pytest.mark.parametrize(
    "name", ["gram", "arccosine_kernel", "orthogonality_gap", "rescale_gram", "neurons"]
)
def test_a_mesh_may_be_the_context_too(name, spec):
    with jax.set_mesh(MESHES["explicit"]):
        found = FUNCTIONS[name][0](sharded(name, MESHES["explicit"], spec))
    assert_close(found, alone(name)[0])


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        ("gram", P("data"), P("data", None)),
        ("gram", P(None, "data"), P(None, None)),
        ("angles", P("data"), P(None, "data")),
        ("distances", P("data"), P(None, "data")),
        ("arccosine_kernel", P("data"), P("data", None)),
        ("expected_entries", P("data"), P("data")),
        ("neurons", P("data"), P("data", None)),
    ],
)
def test_what_can_stay_sharded_does(name, spec, expected):
    found = FUNCTIONS[name][0](sharded(name, MESHES["explicit"], spec))
    assert jax.typeof(found).sharding.spec == expected


def test_the_batch_of_a_random_network_stays_sharded():
    found = jax.jit(network)(sharded("random_network", MESHES["explicit"], P("data")))
    assert jax.typeof(found.x).sharding.spec == P("data", None)
