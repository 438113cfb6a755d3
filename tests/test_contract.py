"""Properties of all public functions, tested with one example call of each function."""

import inspect
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import geometry
import jaxnorm
import pruning
from tests.support.layers import layer_functions
from tests.support.numpy_programs import evaluated
from tests.support.public_functions import NUMERICAL, OTHERS, X, example, public_functions

KEYWORDS = {
    *("axis", "eps", "where", "axis_name", "ratio", "batch_size"),
    *("r_max", "d_max"),
    *("groups", "pixels", "projections", "radius", "steps"),
}
# The results of these functions have another dtype than the inputs: orders, masks, overlaps,
# correlations.
DTYPE_CHANGES = {
    pruning.order,
    pruning.ranking.lowest,
    pruning.overlap,
    pruning.spearman,
    pruning.kendall,
    pruning.ranking.similarity,
}
# For narrow inputs such as bfloat16, functions of `pruning` and `jaxnorm.shift` return float32,
# except for the functions in `NARROW`. Functions in `STATISTICS` also return float32.
STATISTICS = {jaxnorm.batch_statistics, jaxnorm.moments, geometry.tree_gram}
NARROW = {pruning.filter_matrix, jaxnorm.shift.clipped_power, jaxnorm.shift.certified_upper_bound}
named = pytest.mark.parametrize("function", NUMERICAL, ids=lambda f: f"{f.__module__}.{f.__name__}")


@cache
def compiled(function):
    return jax.jit(example(function)[1])


def assert_same(found, expected):
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), found, expected)


def name(function: Any) -> str:
    return function.__name__


def test_the_table_holds_every_public_function():
    assert public_functions() == set(NUMERICAL) | OTHERS


@named
def test_jit_changes_nothing(function):
    """NumPy evaluates the program operation by operation, and gives the expected result."""
    arguments, _ = example(function)
    program = compiled(function)
    assert_same(program(*arguments), evaluated(program, *arguments))


@pytest.mark.slow
@named
def test_operations_by_themselves_have_the_same_result(function):
    arguments, call = example(function)
    assert_same(call(*arguments), compiled(function)(*arguments))


@named
def test_vmap_changes_nothing(function):
    arguments, call = example(function)
    arguments = jax.tree.map(np.asarray, arguments)
    twice = jax.tree.map(lambda x: np.stack([x, 2 * x]), arguments)
    batched = jax.tree.map(np.asarray, jax.jit(jax.vmap(call))(*twice))
    for i in range(2):
        single = compiled(function)(*jax.tree.map(lambda x, i=i: x[i], twice))
        assert_same(jax.tree.map(lambda y, i=i: y[i], batched), single)


MESH = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])  # its axes are Explicit
KEYED = (
    partial(geometry.random_network, jax.random.key(0), depth=3, width=4),
    partial(geometry.ranks.rows_needed, jax.random.key(0)),
    partial(pruning.lilliefors, jax.random.key(0), samples=4),
    partial(pruning.weight_tests.ks_generalized_gaussian, jax.random.key(0), samples=4),
)
# JAX's `rankdata` fails in a `shard_map`. In versions before 0.12, JAX's `betainc` fails, too.
FAIL_IN_JAX = (pruning.ranking.similarity, pruning.weight_tests.mean_equivalence)


@pytest.mark.parametrize(
    "function",
    [f for f in (*NUMERICAL, *KEYED) if f not in FAIL_IN_JAX],
    ids=lambda f: getattr(f, "func", f).__name__,
)
def test_a_shard_map_may_give_each_device_its_own_arrays(function):
    """In JAX, the state of a loop must vary over the devices in all steps or in none."""
    arguments, call = example(function) if function in NUMERICAL else ((jnp.asarray(X),), function)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), arguments)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def on_each(arguments):
        result = call(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda y: jnp.asarray(y)[None], result)

    mapped = jax.shard_map(on_each, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    expected, found = jax.eval_shape(call, *arguments), jax.eval_shape(mapped, both)
    for one, each in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert each.shape == (2, *one.shape)


@pytest.mark.parametrize(
    "function", [*NUMERICAL, *KEYED], ids=lambda f: getattr(f, "func", f).__name__
)
def test_vmap_maps_over_an_axis_that_is_sharded_on_an_explicit_mesh(function):
    arguments, call = example(function) if function in NUMERICAL else ((jnp.asarray(X),), function)
    sharding = NamedSharding(MESH, P("d"))
    both = jax.tree.map(lambda x: jax.device_put(np.stack([x, x]), sharding), arguments)
    with jax.set_mesh(MESH):
        found = jax.jit(jax.vmap(call)).lower(*both).out_info
    expected = jax.eval_shape(call, *arguments)
    for one, each in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert each.shape == (2, *one.shape)


def in_float32(function):
    """Whether results for narrow inputs, such as bfloat16, are in float32."""
    wide = function.__module__.startswith(("pruning", "jaxnorm.shift"))
    return function in STATISTICS or (wide and function not in NARROW)


@named
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_dtype_is_kept(function, dtype):
    """The first result has the input's dtype; statistics that layers also return are ≥ float32."""
    if function in DTYPE_CHANGES:
        pytest.skip("its result is an order, a count or a correlation of ranks")
    arguments, call = example(function, dtype)
    result = jax.eval_shape(call, *arguments)
    first, *others = result if function in layer_functions() else (result,)
    wide = np.promote_types(dtype, np.float32)
    for leaves, expected in ((first, wide if in_float32(function) else dtype), (others, wide)):
        for leaf in jax.tree.leaves(leaves):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                assert leaf.dtype == expected


def of_a_mesh(function):
    """Whether the tests of meshes already check for this function that gradients are finite."""
    module, alone = function.__module__, (geometry.tree, pruning.gaussian)
    return module.startswith(("jaxnorm.shift", "pruning", "geometry")) and not module.startswith(
        tuple(package.__name__ for package in alone)
    )


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, marks=[pytest.mark.slow] if of_a_mesh(f) else []) for f in NUMERICAL],
    ids=lambda f: f"{f.__module__}.{f.__name__}",
)
def test_gradients_are_finite(function):
    arguments, call = example(function)

    def total(*arguments):
        leaves = jax.tree.leaves(call(*arguments))
        return sum(jnp.sum(y) for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    found = jax.tree.leaves(jax.eval_shape(call, *arguments))
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in found):
        pytest.skip("its result is an order, a count or a mask")
    gradient = evaluated(jax.grad(total, tuple(range(len(arguments)))), *arguments)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("function", sorted(public_functions(), key=name), ids=name)
def test_it_is_documented_and_its_options_are_keywords(function):
    assert inspect.getdoc(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in KEYWORDS and "ChannelGroup" not in str(parameter.annotation):
            assert parameter.kind is parameter.KEYWORD_ONLY
