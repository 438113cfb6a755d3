"""The layers on meshes from `jax.make_mesh`, with Explicit and with Auto axes."""

from functools import cache, partial
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxnorm
from jaxnorm.internal import split_batch
from tests.support.layers import layer_classes, layer_functions
from tests.support.numpy_programs import evaluated

MESHES = {
    "default": jax.make_mesh((4, 2), ("data", "model")),  # axes are Explicit by default
    "auto": jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
}
ALPHA = np.array([0.3, 0.8, -0.2, 0.5])
FUNCTIONS = {
    "recenter": lambda x, keep: jaxnorm.recenter(x),
    "rescale": lambda x, keep: jaxnorm.rescale(x),
    "rescale_rms": lambda x, keep: jaxnorm.rescale_rms(x),
    "standardize": lambda x, keep: jaxnorm.standardize(x),
    "unit_vector": lambda x, keep: jaxnorm.unit_vector(x),
    "unitize": lambda x, keep: jaxnorm.unitize(x, jnp.asarray(ALPHA)),
    "unitize_bounded": lambda x, keep: jaxnorm.unitize_bounded(x, 0.5),
    "moments": lambda x, keep: jaxnorm.moments(x),
    "merge_moments": lambda x, keep: jaxnorm.merge_moments(
        jaxnorm.moments(x), jaxnorm.moments(x + 1), counts=(2, 3)
    ),
    "batch_statistics": lambda x, keep: jaxnorm.batch_statistics(x),
    "merge_statistics": lambda x, keep: jaxnorm.merge_statistics(
        jaxnorm.batch_statistics(x), jaxnorm.batch_statistics(x, where=keep)
    ),
    **{
        layer.__name__: lambda x, keep, layer=layer, n=n: layer(x, *[jnp.asarray(ALPHA)] * n)
        for layer, n in layer_functions().items()
    },
    "batch_norm, masked": lambda x, keep: jaxnorm.batch_norm(x, where=keep),
    "batch_norm, groups": lambda x, keep: jaxnorm.batch_norm(x, groups=4),
    "unitized, Eq. 9": lambda x, keep: jaxnorm.unitized_batch_norm(x, 0.5, factor=jaxnorm.bounded),
    "unitized, masked": lambda x, keep: jaxnorm.unitized_batch_norm(x, 0.5, where=keep),
    "unitized, per pixel": lambda x, keep: jaxnorm.unitized_batch_norm(x, 0.5, per_pixel=True),
    "unitized, inference": lambda x, keep: jaxnorm.unitized_batch_norm(
        x, 0.5, statistics=jaxnorm.BatchStatistics(jnp.zeros(4), jnp.ones(4), jnp.ones(()))
    ),
}
on_both_meshes = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)


def spread(mesh, x, channels=None):
    spec = P("data", *(None for _ in x.shape[1:-1]), channels)
    return jax.device_put(x, NamedSharding(mesh, spec))


def batch(shape):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.gamma(2.0, size=shape) + 5), jnp.asarray(rng.random(shape[:-1]) < 0.7)


@cache
def with_gradient(name):
    def loss(x, keep):
        results = FUNCTIONS[name](x, keep)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results)), results

    return jax.jit(jax.grad(loss, has_aux=True))


def assert_close(found, expected, tolerance=1e-9):
    close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(close, found, expected)


PLACES = {
    "vectors": ("default", None, (8, 4)),
    "images over channels too": ("default", "model", (8, 3, 2, 4)),
    "images on Auto axes": ("auto", None, (8, 3, 2, 4)),
}
# The fast tests have two parts: all layers with Explicit axes over batch and channels, which raise
# the most errors; and the layers `EVERYWHERE` with all meshes. All other combinations are slow
# tests.
EVERYWHERE = {"unitized_batch_norm", "batch_norm, masked", "batch_norm, groups"}


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(
            place,
            name,
            id=f"{name}-{place}",
            marks=[]
            if name in EVERYWHERE or place == "images over channels too"
            else [pytest.mark.slow],
        )
        for place in PLACES
        for name in FUNCTIONS
    ],
)
def test_functions_and_gradients_of_a_sharded_batch(place, name):
    axes, channels, shape = PLACES[place]
    x, keep = batch(shape)
    mesh = MESHES[axes]
    args = spread(mesh, x, channels), jax.device_put(keep, NamedSharding(mesh, P("data")))
    assert_close(with_gradient(name)(*args), evaluated(with_gradient(name), x, keep))


def test_functions_of_a_sharded_batch_run_without_jit():
    x, keep = batch((8, 3, 4))
    for function in (FUNCTIONS["unitized_batch_norm"], FUNCTIONS["batch_norm, masked"]):
        assert_close(function(spread(MESHES["default"], x), keep), evaluated(function, x, keep))


@on_both_meshes
# The batch is sharded over 4 devices, which are more than 2 groups and fewer than 8 groups.
@pytest.mark.parametrize("groups", [2, 8])
def test_any_number_of_groups_of_a_sharded_batch(mesh, groups):
    x, _ = batch((8, 3, 4))
    layer = jax.jit(partial(jaxnorm.unitized_batch_norm, alpha=0.5, groups=groups))
    assert_close(layer(spread(mesh, x)), layer(x))


@pytest.mark.parametrize(
    ("groups", "axes", "sharded"),
    [
        (8, "data", 0),  # the batch is sharded over 4 devices
        (2, "data", 1),
        (12, "data", 0),
        (6, "data", 1),
        (16, ("data", "model"), 0),  # the batch is sharded over 8 devices
        (2, ("data", "model"), 1),
        (12, ("data", "model"), 1),
        (4, ("data", "model"), 1),
    ],
)
def test_groups_of_a_sharded_batch_stay_sharded_where_they_divide(groups, axes, sharded):
    x = jax.device_put(np.ones((96, 3)), NamedSharding(MESHES["default"], P(axes)))
    split = jax.eval_shape(partial(split_batch, groups=groups), x)
    assert split.sharding.spec[sharded] == axes
    assert split.sharding.spec[1 - sharded] is None


each_mesh_of_a_module = pytest.mark.parametrize(
    ("mesh", "channels"),
    [
        pytest.param(MESHES["default"], None, marks=pytest.mark.slow),
        (MESHES["default"], "model"),
        pytest.param(MESHES["auto"], "model", marks=pytest.mark.slow),
    ],
)


def each_layer(shell):
    """Parametrize over layers; `UnitizedBatchNorm` covers `BatchNorm`, which is marked slow."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=[pytest.mark.slow] if name == "BatchNorm" else [])
            for name in layer_classes(shell)
        ],
    )


@each_mesh_of_a_module
@each_layer(jaxnorm.nnx)
def test_nnx_modules_train_on_a_sharded_batch(mesh, channels, name):
    x = jnp.asarray(batch((8, 3, 3, 4))[0], "float32")
    alone, sharded = (getattr(jaxnorm.nnx, name)(4, rngs=nnx.Rngs(0)) for _ in range(2))

    @nnx.jit
    def step(layer, x):
        return nnx.value_and_grad(lambda layer, x: jnp.sin(layer(x)).sum())(layer, x)

    for _ in range(2):
        assert_close(step(sharded, spread(mesh, x, channels)), step(alone, x), 1e-4)
    assert_close(sharded.var[...], alone.var[...], 1e-6)
    with jax.set_mesh(mesh):
        assert_close(sharded(spread(mesh, x, channels)), alone(x), 1e-5)


@each_mesh_of_a_module
@each_layer(jaxnorm.linen)
def test_linen_modules_train_on_a_sharded_batch(mesh, channels, name):
    x = jnp.asarray(batch((8, 3, 3, 4))[0], "float32")
    layer: flax.linen.Module = getattr(jaxnorm.linen, name)(use_running_average=False)
    variables: Any = layer.init(jax.random.key(0), x)
    apply = jax.jit(partial(layer.apply, mutable="batch_stats"))
    assert_close(apply(variables, spread(mesh, x, channels)), apply(variables, x), 1e-5)
    with jax.set_mesh(mesh):
        assert_close(layer.init(jax.random.key(0), spread(mesh, x, channels)), variables)
