"""DyT, Derf, batch renormalization and unitization over features, compared with float64 NumPy."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jaxnorm
from jaxnorm import BatchStatistics, batch_norm, batch_statistics
from jaxnorm.models import MLP, CifarResNet
from tests.support import numpy_layers
from tests.support.gradients import several_keys
from tests.support.jitted import jitted

dyt, derf, batch_renorm = map(jitted, (jaxnorm.dyt, jaxnorm.derf, jaxnorm.batch_renorm))
SHAPES = [(6, 5), (4, 3, 7, 3)]
STATELESS = ("DyT", "Derf", "Unitization")


def case(shape, seed=0):
    """A random input x, four arrays with a number for each channel, and one gamma array."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * 3 + 1, *rng.normal(size=(4, shape[-1])), rng.gamma(2.0, size=3)


def arrays(*values, dtype="float64") -> Any:
    return [jnp.asarray(value, dtype) for value in values]


def renorm_in_numpy(x, scale, bias, mean, var, *, r_max, d_max, eps):
    """Algorithm 1 of Ioffe (2017) in NumPy, one channel at a time."""
    y = np.empty_like(x)
    for j in range(x.shape[-1]):
        channel = x[..., j]
        batch, std = channel.mean(), math.sqrt(channel.var() + eps)
        running = math.sqrt(var[j] + eps)
        r = min(max(std / running, 1 / r_max), r_max)
        d = min(max((batch - mean[j]) / running, -d_max), d_max)
        y[..., j] = scale[j] * ((channel - batch) / std * r + d) + bias[j]
    return y


@pytest.mark.parametrize("shape", SHAPES)
def test_pointwise_layers_element_by_element(shape):
    x, alpha, offset, scale, bias, _ = case(shape)
    tanh, erf = np.empty(shape), np.empty(shape)
    for index in np.ndindex(shape):
        a, s, g, b = (part[index[-1]] for part in (alpha, offset, scale, bias))
        tanh[index] = g * math.tanh(a * x[index]) + b
        erf[index] = g * math.erf(a * x[index] + s) + b
    np.testing.assert_allclose(dyt(*arrays(x, alpha, scale, bias)), tanh, rtol=1e-12, atol=1e-14)
    found = derf(*arrays(x, alpha, offset, scale, bias))
    np.testing.assert_allclose(found, erf, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", STATELESS)
def test_a_layer_without_statistics_accepts_one_vector(name):
    """A model may be written for one sample and mapped over the batch by `vmap`."""
    x = jnp.asarray(case((6, 5))[0], "float32")
    layer = getattr(jaxnorm.nnx, name)(5, rngs=nnx.Rngs(0))
    expected = layer(x)
    np.testing.assert_allclose(jax.vmap(layer)(x), expected, rtol=1e-6)
    np.testing.assert_allclose(layer(x[0]), expected[0], rtol=1e-6)
    module = getattr(jaxnorm.linen, name)()
    found, _ = module.init_with_output(jax.random.key(0), x[0])
    np.testing.assert_allclose(found, expected[0], rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_pointwise_layers_refuse_what_has_no_features():
    for shape in ((), (0,), (3, 0)):
        for layer in (jaxnorm.dyt, jaxnorm.derf):
            with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., features\); got"):
                layer(jnp.ones(shape), 0.5)


def test_dyt_and_derf_have_the_slopes_of_their_papers_at_zero():
    """At 0, DyT has slope α, and Derf 2α/√π; for large inputs, both give ±1, also in bfloat16."""
    for layer, slope in ((jaxnorm.dyt, 0.5), (jaxnorm.derf, 1 / math.sqrt(math.pi))):
        found = jax.grad(lambda x, layer=layer: layer(x, 0.5).sum())(jnp.zeros((1, 1)))
        np.testing.assert_allclose(found, slope, rtol=1e-12)
        far = layer(jnp.array([[1e30, -1e30]], "bfloat16"), 0.5)
        assert far.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(far, float), [[1, -1]])
        # For bfloat16 inputs, results are rounded to bfloat16 only once.
        x = jnp.linspace(-2, 2, 40).reshape(8, 5)
        found = layer(x.astype("bfloat16"), 0.3, scale=1.5, bias=0.25)
        exact = layer(x.astype("bfloat16").astype(float), float(jnp.float32(0.3)), scale=1.5)
        exact += 0.25
        np.testing.assert_array_equal(found, exact.astype("float32").astype("bfloat16"))


@several_keys
def test_gradients_of_pointwise_layers(key):
    x = jax.random.normal(key, (4, 3))
    a, s, g, b = jax.random.normal(jax.random.fold_in(key, 1), (4, 3))
    check_grads(jax.jit(jaxnorm.dyt), (x, a, g, b), order=2)
    check_grads(jax.jit(jaxnorm.derf), (x, a, s, g, b), order=2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("r_max", "d_max"), [(3.0, 5.0), (1.1, 0.2), (1.0, 0.0)])
def test_renormalization_channel_by_channel(shape, r_max, d_max):
    x, _, _, scale, bias, _ = case(shape)
    rng = np.random.default_rng(1)
    mean, var = rng.normal(size=shape[-1]), rng.gamma(2.0, size=shape[-1]) + 1
    running = BatchStatistics(*arrays(mean, var, 1.0))
    options: Any = {"r_max": r_max, "d_max": d_max, "eps": 1e-3}
    y, statistics = batch_renorm(*arrays(x, scale, bias), running=running, **options)
    expected = renorm_in_numpy(x, scale, bias, mean, var, **options)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(statistics.mean, x.reshape(-1, shape[-1]).mean(0), rtol=1e-12)


def test_within_its_limits_training_is_inference():
    x, _, _, scale, bias, _ = case((6, 5))
    running = batch_statistics(jnp.asarray(x) * 1.3 + 0.2)
    x, scale, bias = arrays(x, scale, bias)
    y, _ = batch_renorm(x, scale, bias, running=running)
    np.testing.assert_allclose(y, batch_norm(x, scale, bias, running)[0], rtol=1e-10, atol=1e-12)
    given, _ = batch_renorm(x, scale, bias, running)
    np.testing.assert_allclose(given, batch_norm(x, scale, bias, running)[0], rtol=1e-12)
    plain, _ = batch_renorm(x, scale, bias)
    np.testing.assert_allclose(plain, batch_norm(x, scale, bias)[0], rtol=1e-12)


@several_keys
def test_the_gradient_of_renormalization_is_that_of_a_batch_norm_times_r(key):
    """In gradients, r and d are constant, so the output is affine in the output of batch norm."""
    x = jax.random.gamma(key, 2.0, (6, 3)) + 1
    running = batch_statistics(x * 1.5 - 0.7)
    weights = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
    found = jax.jit(jax.grad(lambda x: jnp.sum(weights * batch_renorm(x, running=running)[0])))(x)
    r = np.sqrt((x.var(0) + 1e-5) / (running.var + 1e-5))[None]
    expected = jax.grad(lambda x: jnp.sum(r * weights * jaxnorm.batch_norm(x)[0]))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    fixed = partial(jaxnorm.batch_renorm, running=running, r_max=1.0, d_max=0.0)
    check_grads(jax.jit(lambda x: fixed(x)[0]), (x,), order=1)  # r is 1 and d is 0 for every x


def test_running_statistics_carry_no_gradient():
    x = jnp.asarray(case((6, 3))[0])

    def loss(mean, var):
        running = BatchStatistics(mean, var, jnp.asarray(1.0))
        return jnp.sum(jnp.sin(jaxnorm.batch_renorm(x, running=running)[0]))

    for gradient in jax.grad(loss, (0, 1))(x.mean(0) + 0.3, x.var(0) * 1.3):
        np.testing.assert_array_equal(gradient, 0)


def test_limits_may_be_traced():
    x = jnp.asarray(case((6, 3))[0])
    running = batch_statistics(x * 3 + 2)
    by_schedule = jax.jit(
        lambda r, d: jaxnorm.batch_renorm(x, running=running, r_max=r, d_max=d)[0]
    )
    fixed, _ = batch_renorm(x, running=running, r_max=1.2, d_max=0.1)
    np.testing.assert_allclose(by_schedule(1.2, 0.1), fixed, rtol=1e-12)


def test_masked_and_sharded_batches_are_renormalized_by_what_counts():
    x = np.random.default_rng(0).normal(size=(8, 3)) + 2
    keep = np.arange(8) % 3 > 0
    running = batch_statistics(jnp.asarray(x[:2]))
    options: Any = {"r_max": 1.5, "d_max": 0.5}
    expected = jaxnorm.batch_renorm(jnp.asarray(x[keep]), running=running, **options)[0]
    masked, _ = batch_renorm(jnp.asarray(x), running=running, where=jnp.asarray(keep), **options)
    np.testing.assert_allclose(masked[keep], expected, rtol=1e-10)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(x, keep):
        return jaxnorm.batch_renorm(x, running=running, where=keep, axis_name="data", **options)[0]

    spread = jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
    np.testing.assert_allclose(spread(jnp.asarray(x), jnp.asarray(keep)), masked, rtol=1e-10)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_a_large_mean_costs_no_digits(mean):
    x = np.random.default_rng(0).normal(mean, 1.0, (4096, 2))
    narrow = jnp.asarray(x, "float32")
    running = BatchStatistics(*arrays([mean - 1, mean], [1.0, 4.0], 1.0, dtype="float32"))
    y, _ = batch_renorm(narrow, running=running)
    wide = np.asarray(narrow, np.float64)
    expected = (wide - [mean - 1, mean]) / np.sqrt(np.array([1.0, 4.0]) + 1e-5)
    np.testing.assert_allclose(y, expected, atol=2e-3)


def test_a_constant_channel_and_an_empty_batch_have_finite_gradients():
    x = jnp.full((4, 2), 7.0, "float32")
    running = batch_statistics(x)
    for keep in (None, jnp.zeros(4, bool)):
        gradient = jax.grad(
            lambda x, keep=keep: jaxnorm.batch_renorm(x, running=running, where=keep)[0].sum()
        )(x)
        assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("options", [{"r_max": 0.5}, {"d_max": -1.0}])
def test_limits_are_checked(options):
    with pytest.raises(ValueError, match="_max must"):
        jaxnorm.batch_renorm(jnp.ones((2, 3)), **options)


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("options", [{}, {"use_scale": False, "use_bias": False}])
def test_nnx_and_linen_agree_bit_for_bit(name, options):
    x = jnp.asarray(case((6, 4, 3))[0], "float32")
    new = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, **options)
    old = getattr(jaxnorm.linen, name)(dtype=jnp.bfloat16, **options)
    variables = old.init(jax.random.key(0), x)
    y = old.apply(variables, x)
    assert isinstance(y, jax.Array)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(y, float), np.asarray(new(x), float))
    shapes = {k: v.shape for k, v in variables["params"].items()}
    own = nnx.to_pure_dict(nnx.state(new, nnx.Param))
    assert shapes == {k: v.shape for k, v in own.items()}


@pytest.mark.parametrize("dtype", [None, jnp.float32])
@pytest.mark.parametrize("name", jaxnorm.linen.__all__)
def test_layers_round_a_result_once(name, dtype):
    x, _, _, scale, bias, _ = arrays(*case((6, 4)), dtype="float32")
    x = x.astype(jnp.bfloat16)
    layer = getattr(jaxnorm.nnx, name)(4, rngs=nnx.Rngs(0), dtype=dtype)
    layer.scale[...], layer.bias[...] = scale, bias
    training = {} if name in STATELESS else {"use_running_average": False}
    module = getattr(jaxnorm.linen, name)(dtype=dtype, **training)
    variables = module.init(jax.random.key(0), x)
    variables["params"] |= {"scale": scale, "bias": bias}
    for call in (
        lambda x: nnx.clone(layer)(x),
        lambda x: module.apply(variables, x, mutable=["batch_stats"])[0],
    ):
        exact = call(x.astype("float32")).astype(dtype or x.dtype)
        assert call(x).dtype == exact.dtype
        np.testing.assert_array_equal(np.asarray(call(x), float), np.asarray(exact, float))


def test_a_unitization_layer_is_the_vector_by_its_norm():
    x, alpha, _, scale, bias, _ = case((6, 5))
    layer = jaxnorm.nnx.Unitization(
        5, transform=jaxnorm.unitize_bounded, param_dtype="float64", rngs=nnx.Rngs(0)
    )
    alpha = 1 / (1 + np.exp(alpha))
    for name, value in (("alpha", alpha), ("scale", scale), ("bias", bias)):
        getattr(layer, name)[...] = jnp.asarray(value)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    expected = scale * x / (alpha * norm + 1 - alpha) + bias
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-10)


NORMS = {
    **{name: getattr(jaxnorm.nnx, name) for name in (*STATELESS, "BatchRenorm")},
    "LayerNorm": nnx.LayerNorm,
    "RMSNorm": nnx.RMSNorm,
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_models_take_any_of_them(norm):
    x = jnp.asarray(case((4, 8, 8, 1))[0], "float32")
    model = MLP(inputs=64, widths=(5, 4), classes=3, norm=norm, rngs=nnx.Rngs(0))
    gradient = nnx.grad(lambda model, x: jnp.square(model(x)).sum())(model, x)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    build = partial(CifarResNet, 8, classes=3, channels=1, norm=norm)
    shape = nnx.eval_shape(lambda x: build(rngs=nnx.Rngs(0))(x), x).shape
    assert shape == (4, 3)


def test_fresh_statistics_of_a_renormalized_network_are_those_of_batch_norm():
    x = jnp.asarray(case((16, 6))[0], "float32")
    found = []
    for norm in (jaxnorm.nnx.BatchNorm, jaxnorm.nnx.BatchRenorm):
        model = MLP(inputs=6, widths=(5, 4), classes=3, norm=norm, rngs=nnx.Rngs(0))
        jaxnorm.nnx.recalibrate(model, [x])
        found.append(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *found)


def test_microbatches_refuse_renormalization():
    model = MLP(inputs=6, widths=(5,), classes=3, norm=jaxnorm.nnx.BatchRenorm, rngs=nnx.Rngs(0))
    microbatched = jaxnorm.nnx.microbatched(lambda model, x: model(x).sum(), 2)
    with pytest.raises(ValueError, match="r and d"):
        microbatched(model, jnp.ones((4, 6), "float32"))


def test_a_linen_network_trains_with_renormalization():
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = jaxnorm.linen.BatchRenorm(use_running_average=False)(linen.Dense(4)(x))
            return jaxnorm.linen.DyT()(x)

    x = jnp.asarray(case((8, 3))[0], "float32")
    variables = Network().init(jax.random.key(0), x)
    updated: Any = Network().apply(variables, x, mutable="batch_stats")[1]
    assert jnp.abs(updated["batch_stats"]["BatchRenorm_0"]["mean"]).max() > 0


@pytest.mark.parametrize("name", numpy_layers.STATELESS)
def test_nnx_layers_without_statistics_by_numpy_in_every_pair_of_options(name):
    layer = getattr(jaxnorm.nnx, name)
    for options, x, expected in numpy_layers.stateless_cases(name, layer):
        y = layer(numpy_layers.CHANNELS, **options, rngs=nnx.Rngs(0))(jnp.asarray(x))
        numpy_layers.assert_rounded_once(y, expected, options["dtype"] or x.dtype)
