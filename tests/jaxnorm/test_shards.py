"""The layers on eight devices: a sharded batch is normalized as one batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxnorm
from tests.support.jitted import jitted
from tests.support.layers import layer_classes

MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
GRID = jax.make_mesh((2, 4), ("host", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
ALPHA = np.array([0.3, 0.8])
LAYERS = {
    "batch_norm": jaxnorm.batch_norm,
    "unitized": lambda x, **options: jaxnorm.unitized_batch_norm(x, jnp.asarray(ALPHA), **options),
    "bounded": lambda x, **options: jaxnorm.unitized_batch_norm(
        x, jnp.asarray(ALPHA), factor=jaxnorm.bounded, **options
    ),
    "per_pixel": lambda x, **options: jaxnorm.unitized_batch_norm(
        x, jnp.asarray(ALPHA), per_pixel=True, **options
    ),
}
two_layers = pytest.mark.parametrize("layer", [LAYERS["batch_norm"], LAYERS["unitized"]])
each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def images(n=16):
    return jnp.asarray(np.random.default_rng(0).gamma(2.0, size=(n, 3, 2)) + 5)


def assert_close(found, expected):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), found, expected)


@each_layer
def test_shard_map_and_sharded_jit_equal_one_device(layer):
    x = images()
    expected = jax.jit(layer)(x)
    spread = jax.shard_map(
        lambda x: layer(x, axis_name="data"),
        mesh=MESH,
        in_specs=P("data"),
        out_specs=(P("data"), P()),
    )
    assert_close(jax.jit(spread)(x), expected)
    assert_close(jax.jit(layer)(jax.device_put(x, NamedSharding(MESH, P("data")))), expected)


@two_layers
def test_a_grid_of_devices_is_one_batch(layer):
    x = images()
    axes = ("host", "data")
    spread = jax.shard_map(
        lambda x: layer(x, axis_name=axes), mesh=GRID, in_specs=P(axes), out_specs=(P(axes), P())
    )
    assert_close(jax.jit(spread)(x), jax.jit(layer)(x))


@each_layer
def test_gradients_cross_devices(layer):
    x, upstream = images(), np.random.default_rng(1).normal(size=(16, 3, 2))

    def loss(x, upstream):
        return jnp.sum(layer(x)[0] * upstream)

    @partial(jax.shard_map, mesh=MESH, in_specs=(P("data"), P("data")), out_specs=P())
    def spread(x, upstream):
        return jax.lax.psum(jnp.sum(layer(x, axis_name="data")[0] * upstream), "data")

    assert_close(
        jax.jit(jax.grad(spread))(x, jnp.asarray(upstream)),
        jax.jit(jax.grad(loss))(x, jnp.asarray(upstream)),
    )


@pytest.mark.parametrize("per_pixel", [False, True])
def test_gradients_of_replicated_parameters_are_summed_over_devices(per_pixel):
    x, upstream = images(), jnp.asarray(np.random.default_rng(1).normal(size=(16, 3, 2)))
    parameters = tuple(jnp.asarray(p) for p in (ALPHA, 1 + ALPHA, 2 - ALPHA))

    def loss(parameters, x, upstream, **options):
        y, _ = jaxnorm.unitized_batch_norm(x, *parameters, per_pixel=per_pixel, **options)
        return jnp.sum(y * upstream)

    @partial(jax.shard_map, mesh=MESH, in_specs=(P(), P("data"), P("data")), out_specs=P())
    def spread(parameters, x, upstream):
        return jax.lax.psum(loss(parameters, x, upstream, axis_name="data"), "data")

    found, expected = (jax.jit(jax.grad(f))(parameters, x, upstream) for f in (spread, loss))
    assert_close(found, expected)


def test_uneven_masked_shards_are_one_batch():
    x = images()
    keep = np.zeros((16, 3), bool)
    for shard, valid in enumerate((6, 1, 0, 3, 5, 0, 2, 4)):  # two shards have no valid sample
        keep[2 * shard : 2 * shard + 2].reshape(-1)[:valid] = True
    dirty = jnp.asarray(np.where(keep[..., None], x, np.nan))
    spread = jax.shard_map(
        lambda x, keep: jaxnorm.batch_statistics(x, where=keep, axis_name="data"),
        mesh=MESH,
        in_specs=P("data"),
        out_specs=P(),
    )
    found = jax.jit(spread)(dirty, jnp.asarray(keep))
    assert_close(found, jitted(jaxnorm.batch_statistics)(x[keep]))


@pytest.mark.parametrize("width", [2, 256])
def test_gradients_of_masked_vectors_cross_devices(width):
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(3, 2, (16, width)))
    upstream = jnp.asarray(rng.normal(size=x.shape))
    keep = jnp.asarray(rng.random(16) < 0.6).at[6:8].set(False)  # one shard has no valid sample
    alpha = jnp.linspace(0.2, 0.9, width)

    def loss(x, alpha, upstream, keep, **options):
        y, _ = jaxnorm.unitized_batch_norm(x, alpha, where=keep, **options)
        return jnp.sum(y * upstream)

    @partial(
        jax.shard_map, mesh=MESH, in_specs=(P("data"), P(), P("data"), P("data")), out_specs=P()
    )
    def spread(*args):
        return jax.lax.psum(loss(*args, axis_name="data"), "data")

    found, expected = (
        jax.jit(jax.grad(f, (0, 1)))(x, alpha, upstream, keep) for f in (spread, loss)
    )
    assert_close(found, expected)


@two_layers
def test_groups_on_every_device_are_those_of_the_whole_batch(layer):
    x = images(32)
    y, statistics = jax.jit(
        jax.shard_map(
            lambda x: layer(x, groups=2), mesh=MESH, in_specs=P("data"), out_specs=P("data")
        )
    )(x)
    assert_close((y, statistics), jitted(layer)(x, groups=16))


def test_groups_of_devices_are_batches_of_their_own():
    x = images()
    spread = jax.shard_map(
        lambda x: jaxnorm.batch_norm(
            x, axis_name="data", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]
        )[0],
        mesh=MESH,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    expected = np.concatenate([jitted(jaxnorm.batch_norm)(half)[0] for half in (x[:8], x[8:])])
    assert_close(jax.jit(spread)(x), expected)


@pytest.mark.parametrize("name", layer_classes(jaxnorm.nnx))
def test_a_module_on_a_sharded_batch_keeps_replicated_state(name):
    x = jnp.asarray(images(), "float32")
    replicated, spread = NamedSharding(MESH, P()), NamedSharding(MESH, P("data"))
    alone, sharded = (getattr(jaxnorm.nnx, name)(2, rngs=nnx.Rngs(0)) for _ in range(2))
    nnx.update(sharded, jax.device_put(nnx.state(sharded), replicated))
    step = nnx.jit(lambda layer, x: layer(x))
    for _ in range(2):
        y = step(sharded, jax.device_put(x, spread))
        np.testing.assert_allclose(y, step(alone, x), rtol=1e-5, atol=1e-5)
    assert sharded.mean[...].sharding.is_fully_replicated
    np.testing.assert_allclose(sharded.var[...], alone.var[...], rtol=1e-6)
