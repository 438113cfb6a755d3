"""Sharded parameters keep their sharding after removal. Programs use `shard_map`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from pruning import coupled_channels, mask_channels, prune, remove_channels
from pruning.channels import check_program, fixed_channels, least_squares, rescale, resized

RNG = np.random.default_rng(0)
PARAMS = {
    "a": RNG.normal(size=(4, 8)),
    "c": RNG.normal(size=(8, 16)),
    "b": RNG.normal(size=(16, 3)),
}
X = RNG.normal(size=(4, 4))
SPECS = {"a": P(None, "m"), "c": P("m", "d"), "b": P(("d", "m"), None)}


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=str)
def mesh(request):
    return jax.make_mesh((2, 4), ("d", "m"), axis_types=(request.param,) * 2)


def auto_mesh():
    return jax.make_mesh((2, 4), ("d", "m"), axis_types=(AxisType.Auto,) * 2)


def mlp(p, x):
    return jax.nn.relu(jax.nn.relu(x @ p["a"]) @ p["c"]) @ p["b"]


def expected(spec, shape, mesh):
    """The sharding `spec`, without the mesh axes that do not divide their array axis evenly."""
    split = lambda names: np.prod([mesh.shape[n] for n in np.atleast_1d(names)])  # noqa: E731
    pairs = zip(spec, shape, strict=True)
    return P(*(names if names and n % split(names) == 0 else None for names, n in pairs))


@pytest.mark.parametrize("repair", [None, least_squares, rescale])
def test_biases_are_repaired_by_sharded_samples(mesh, repair):
    def biased(p, x):
        return jax.nn.relu(x @ p["a"] + p["bias"][None]) @ p["c"] + p["last"][None]

    def pruned(params, place):
        x = place(samples)
        batches = [(x,), (place(samples[::-1] ** 2),)]
        repaired = partial(repair, batches=batches) if repair else None
        return prune(biased, params, x, ratios=[0.5], repair=repaired).params

    params = {"a": PARAMS["a"], "c": PARAMS["c"], "bias": np.full(8, 3.0), "last": np.ones(16)}
    placed = jax.device_put(params, NamedSharding(mesh, P()))
    samples = np.random.default_rng(1).normal(3, 2, (8, 4))
    found = pruned(placed, lambda x: jax.device_put(x, NamedSharding(mesh, P("d"))))
    for a, b in zip(*map(jax.tree.leaves, (found, pruned(params, jnp.asarray))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("counts", [(8, 16), (4, 8), (4, 6), (5, 8), (1, 1)])
def test_what_is_left_is_sharded_as_it_was(mesh, counts):
    """Parameters and Adam's moments keep their sharding, and equal the arrays on one device."""
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    params = jax.device_put(PARAMS, shardings)
    groups = coupled_channels(mlp, PARAMS, X)
    keep = [np.arange(g.size) < n for g, n in zip(groups, counts, strict=True)]
    whole = remove_channels(PARAMS, groups, keep)
    state = optax.adam(1e-3).init(params)
    (moments, *_) = remove_channels(state, groups, keep)
    shapes = {
        n: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=p.sharding) for n, p in params.items()
    }
    for tree in (remove_channels(params, groups, keep), moments.mu, moments.nu):
        for name, leaf in tree.items():
            assert leaf.sharding.spec == expected(SPECS[name], leaf.shape, mesh)
            assert leaf.sharding.device_set == set(mesh.devices.flat)
    for name, leaf in remove_channels(params, groups, keep).items():
        np.testing.assert_array_equal(leaf, whole[name])
    for name, leaf in remove_channels(shapes, groups, keep).items():
        assert leaf.shape == whole[name].shape
        assert leaf.sharding.spec == expected(SPECS[name], leaf.shape, mesh)


def test_a_pruned_network_is_sharded_as_the_large_one():
    mesh = auto_mesh()
    params = jax.device_put(PARAMS, {n: NamedSharding(mesh, s) for n, s in SPECS.items()})
    pruned = prune(mlp, params, X, ratios=[0.5])
    for name, leaf in pruned.params.items():
        assert leaf.sharding.spec == expected(SPECS[name], leaf.shape, mesh)


def test_an_array_stays_on_its_device():
    device = jax.devices()[3]
    groups = coupled_channels(mlp, PARAMS, X)
    small = remove_channels(
        jax.device_put(PARAMS, device), groups, [np.arange(8) < 3, np.arange(16) < 2]
    )
    assert all(leaf.devices() == {device} for leaf in small.values())


def test_an_array_that_was_put_on_no_device_is_combined_with_arrays_on_any():
    params = jax.tree.map(jnp.asarray, PARAMS)
    groups = coupled_channels(mlp, PARAMS, X)
    small = remove_channels(params, groups, [np.arange(8) < 3, np.arange(16) < 2])
    device = jax.devices()[3]
    assert mlp(small, jax.device_put(X, device)).devices() == {device}


@pytest.mark.parametrize("count", [4, 3])
def test_a_sharded_array_stays_in_its_kind_of_memory(count):
    sharding = NamedSharding(auto_mesh(), SPECS["a"], memory_kind="pinned_host")
    params = PARAMS | {"a": jax.device_put(PARAMS["a"], sharding)}
    groups = coupled_channels(mlp, PARAMS, X)
    small = remove_channels(params, groups, [np.arange(8) < count, np.arange(16) < 2])
    assert small["a"].sharding.memory_kind == "pinned_host"


def tensor_parallel(p, x):
    """A network that splits the channels between its last two layers over four devices."""
    body = lambda h, c, b: jax.lax.psum(jax.nn.relu(h @ c) @ b, "m")  # noqa: E731
    specs = (P("d"), P(None, "m"), P("m", None))
    h = jax.nn.relu(x @ p["a"])
    return jax.shard_map(body, mesh=auto_mesh(), in_specs=specs, out_specs=P("d"))(
        h, p["c"], p["b"]
    )


def data_parallel(p, x):
    """A network that is replicated on every device, with statistics over all samples.

    JAX cannot verify that the gathered result is equal on all devices.
    """

    def body(p, x):
        h = jax.nn.relu(x @ p["a"])
        h = h - jax.lax.pmean(h.mean(0), "d")[None]
        y = jax.nn.relu(h @ p["c"]) @ p["b"]
        return jax.lax.all_gather(y, "d", tiled=True), jax.lax.psum(y.sum(0), "d")

    options: dict = {"in_specs": (P(), P("d")), "out_specs": P(), "check_vma": False}
    return jax.shard_map(body, mesh=auto_mesh(), **options)(p, x)


def manual_in_part(p, x):
    """A network that a sharding constraint lets the compiler shard along the mesh axis `m`."""

    def body(p, x):
        h = jax.nn.relu(x @ p["a"])
        h = jax.lax.with_sharding_constraint(h, P(None, "m"))
        y = jax.nn.relu(h @ p["c"]) @ p["b"]
        return y, jax.lax.psum(y.sum(0), "d")

    options: dict = {"in_specs": (P(), P("d")), "out_specs": (P("d"), P()), "axis_names": {"d"}}
    run = jax.shard_map(body, mesh=auto_mesh(), **options)
    return jax.jit(run)(p, x)


@pytest.mark.parametrize(
    ("apply", "sizes"),
    [(tensor_parallel, [8]), (data_parallel, [8, 16]), (manual_in_part, [8, 16])],
)
def test_axes_that_no_mesh_axis_splits_are_cut_inside_a_shard_map(apply, sizes):
    groups = coupled_channels(apply, PARAMS, X)
    assert sorted(group.size for group in groups) == sizes
    keep = [np.arange(group.size) % 3 > 0 for group in groups]
    small, masked = (f(PARAMS, groups, keep) for f in (remove_channels, mask_channels))
    check_program(apply, small, groups, keep, X)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)  # noqa: E731
    whole = apply(masked, X)
    for run in (apply, resized(apply, groups, keep)):
        jax.tree.map(near, run(small, X), whole)

    def gradient(f, params):
        total = lambda p: sum(jnp.square(y).sum() for y in jax.tree.leaves(f(p, X)))  # noqa: E731
        return jax.grad(total)(params)

    expected = remove_channels(gradient(apply, masked), groups, keep)
    jax.tree.map(near, gradient(resized(apply, groups, keep), small), expected)


def test_constants_are_folded_beside_a_shard_map():
    pruned = prune(tensor_parallel, PARAMS, X, ratios=[0.5])
    assert pruned.params["a"].shape == (4, 4)


def test_axes_that_the_mesh_splits_name_the_cure():
    reports = fixed_channels(tensor_parallel, PARAMS, X)
    (report,) = [r for r in reports if r.primitive == "shard_map"]
    assert report.paths == ("b", "c")
    assert "test_sharded_removal.py" in report.line
    apply = lambda p, x: tensor_parallel(p | {"a": PARAMS["a"]}, x)  # noqa: E731
    params = {"c": PARAMS["c"], "b": PARAMS["b"]}
    with pytest.raises(ValueError, match=r"; shard_map needs all .*: give the function without"):
        prune(apply, params, X, ratios=[0.5])


def test_the_cure_for_axes_that_the_mesh_splits_cuts_them():
    """`prune` gets the network without `shard_map`, and keeps multiples of four channels."""
    pruned = prune(mlp, PARAMS, X, ratios=[0.5], round_to=4)
    assert pruned.params["c"].shape == (4, 8)
    masked = mask_channels(PARAMS, pruned.groups, pruned.keep)
    for params in (pruned.params, masked):
        found = tensor_parallel(params, X)
        np.testing.assert_allclose(found, mlp(masked, X), rtol=1e-10, atol=1e-10)


def test_an_axis_over_two_mesh_axes_is_split_if_one_of_them_has_one_device():
    mesh = jax.make_mesh((8, 1), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

    def apply(p, x):
        both = ("d", "m")
        body = lambda x, c, b: jax.lax.psum(jax.nn.relu(x @ c) @ b, both)  # noqa: E731
        specs = (P(), P(None, both), P(both, None))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, p["c"], p["b"])

    params = {"c": PARAMS["c"], "b": PARAMS["b"]}
    assert coupled_channels(apply, params, np.ones((8, params["c"].shape[0]))) == ()


def test_a_mesh_axis_of_one_device_splits_nothing():
    mesh = jax.make_mesh((8, 1), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

    def body(x, c, b):
        return jax.lax.psum(jax.nn.relu(x @ c) @ b, "m")

    def apply(p, x):
        specs = (P("d"), P(None, "m"), P("m", None))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("d"))(x, p["c"], p["b"])

    params = {"c": PARAMS["c"], "b": PARAMS["b"]}
    x = np.random.default_rng(4).normal(3, 2, (8, params["c"].shape[0]))
    (group,) = coupled_channels(apply, params, x)
    assert group.size == params["c"].shape[1]


@pytest.mark.parametrize("over", [jax.lax.psum, jax.lax.pmean, jax.lax.pmax])
def test_a_sum_over_samples_and_devices_keeps_channels_apart(over):
    """The primitive reduces the axis of `jax.vmap` and the devices of a mesh axis at once."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))

    def body(p, x):
        h = jax.vmap(lambda s: over(jnp.exp(s @ p["a"]), ("i", "d")), axis_name="i")(x)
        return h @ p["b"]

    def apply(p, x):
        specs = {"in_specs": (P(), P("d")), "out_specs": P("d"), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(p, x)

    params = {"a": PARAMS["a"] / 4, "b": PARAMS["b"][:8]}
    x = np.random.default_rng(5).normal(0.3, 0.5, (16, 4))
    (group,) = coupled_channels(apply, params, x)
    keep = [np.arange(8) % 3 > 0]
    small, masked = (f(params, [group], keep) for f in (remove_channels, mask_channels))
    found, expected = apply(small, x), apply(masked, x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(resized(apply, [group], keep)(small, x), expected, rtol=1e-12)
