"""Replacement, recalibration and folding of batch norms in whole models."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxnorm
from jaxnorm.nnx import (
    UnitizedBatchNorm,
    fit_widths,
    fix_pixels,
    fold,
    recalibrate,
    replace_batch_norm,
)
from tests.support.numpy_layers import assert_rounded_once

forward = nnx.jit(lambda model, x: model(x))


def batch(seed=0, shape=(8, 6, 6, 3)):
    return jnp.asarray(np.random.default_rng(seed).gamma(2.0, size=shape), "float32")


class Network(nnx.Module):
    """Flax layers as attributes, in a list and in a nested module; one layer is used twice."""

    def __init__(self, norm: Any = nnx.BatchNorm):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = norm(4, momentum=0.8, rngs=rngs)
        self.again = self.norm
        self.inner = nnx.Sequential(nnx.Conv(4, 5, (3, 3), rngs=rngs), norm(5, rngs=rngs), nnx.relu)
        self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=rngs)
        self.head = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        x = self.again(nnx.relu(self.norm(self.conv(x))))
        return self.head(self.dropout(self.inner(x)).mean((1, 2)))


OPTIONS: dict[str, Any] = {
    "use_running_average": True,
    "axis": 1,
    "momentum": 0.7,
    "epsilon": 0.3,
    "dtype": jnp.bfloat16,
    "param_dtype": jnp.float16,
    "axis_name": "batch",
    "axis_index_groups": ((0, 1), (2, 3)),
    "correction": jaxnorm.bessel,
    "running_correction": jnp.ones_like,
    "groups": 3,
    "update_running_average": True,
    "use_scale": False,
    "use_bias": False,
}


@pytest.mark.parametrize("layer", [jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm])
def test_a_replaced_layer_keeps_every_option(layer):
    old = layer(4, rngs=nnx.Rngs(0), **OPTIONS)
    for other in (jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm):
        new: Any = replace_batch_norm(old, other)
        assert {name: getattr(new, name) for name in OPTIONS} == OPTIONS
        assert new.scale is new.bias is None


@pytest.mark.parametrize("layer", [jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm])
def test_replaced_layers_compute_what_flax_did(layer):
    theirs, ours = Network(), Network()
    assert replace_batch_norm(ours, layer) is ours
    assert isinstance(ours.inner.layers[1], layer)
    assert ours.norm is ours.again
    for seed in range(3):
        found, expected = (forward(model, batch(seed)) for model in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for model in (theirs, ours):
        model.eval()
    found, expected = (forward(model, batch(9)) for model in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_replaced_layers_keep_their_variables():
    model = Network()
    scale, mean = model.norm.scale, model.norm.mean
    replace_batch_norm(model)
    assert model.norm.scale is scale
    assert model.norm.mean is mean
    assert model.norm.momentum == 0.8


@pytest.mark.parametrize("old", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, UnitizedBatchNorm])
@pytest.mark.parametrize("new", [jaxnorm.nnx.BatchNorm, UnitizedBatchNorm])
def test_every_batch_norm_is_replaced_flaxs_and_ours(old, new):
    model, before = Network(old), Network(old)
    replace_batch_norm(model, new)
    assert type(model.norm) is type(model.inner.layers[1]) is new
    assert model.norm is model.again
    assert model.norm.momentum == 0.8
    found, expected = (forward(network, batch()) for network in (model, before))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.norm.var[...], before.norm.var[...], rtol=1e-6)


def test_a_second_replacement_puts_in_another_layer():
    model: Any = replace_batch_norm(replace_batch_norm(Network()), UnitizedBatchNorm)
    assert isinstance(model.norm, UnitizedBatchNorm)
    norm = model.norm
    norm.alpha[...] = jnp.full(4, 0.5)
    replace_batch_norm(model, partial(UnitizedBatchNorm, factor=jaxnorm.bounded))
    assert model.norm.factor is jaxnorm.bounded
    assert model.norm.alpha is norm.alpha


def test_our_own_models_can_be_unitized_and_an_optimizer_made_afterwards_trains_them():
    model = jaxnorm.models.MLP(inputs=3, widths=(4,), classes=2, rngs=nnx.Rngs(0))
    replace_batch_norm(model, UnitizedBatchNorm)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    x = batch(shape=(8, 3))

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model))

    step(model, optimizer)
    (norm,) = (m for _, m in nnx.iter_modules(model) if isinstance(m, UnitizedBatchNorm))
    assert jnp.abs(norm.alpha[...]).max() > 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layer", ["unitized", nnx.BatchNorm, lambda features, **options: None])
def test_a_constructor_of_other_layers_is_refused(layer):
    with pytest.raises(TypeError, match=r"layer must be jaxnorm.nnx.BatchNorm, .* got "):
        replace_batch_norm(Network(), layer)


def test_a_model_without_batch_norm_is_refused():
    with pytest.raises(ValueError, match="must hold at least one batch norm; it holds none"):
        replace_batch_norm(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), UnitizedBatchNorm)


def test_a_layer_without_recentering_cannot_become_unitized():
    layer = jaxnorm.nnx.BatchNorm(3, recentering=False, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"must recenter and rescale; got recentering=False"):
        replace_batch_norm(layer, UnitizedBatchNorm)
    replaced: Any = replace_batch_norm(layer, jaxnorm.nnx.BatchNorm)
    assert not replaced.recentering


def test_a_model_that_is_one_layer_is_replaced_too():
    model = replace_batch_norm(nnx.BatchNorm(3, use_bias=False, rngs=nnx.Rngs(0)))
    assert isinstance(model, jaxnorm.nnx.BatchNorm)
    assert model.bias is None


@pytest.mark.parametrize(
    "norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, jaxnorm.nnx.UnitizedBatchNorm]
)
def test_recalibration_takes_the_union_of_the_batches(norm):
    layer = norm(3, momentum=0.9, use_running_average=True, rngs=nnx.Rngs(0))
    parts = [batch(0), batch(1, (4, 6, 6, 3)) + 3, batch(2)]
    recalibrate(layer, iter(parts))
    union = np.concatenate(parts).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(layer.mean[...], union.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], union.var(0), rtol=1e-4)
    assert layer.use_running_average
    assert layer.momentum == 0.9


def test_recalibration_reaches_every_layer_and_changes_nothing_else():
    model = Network(jaxnorm.nnx.UnitizedBatchNorm)
    model.eval()
    kernel = np.array(model.conv.kernel[...])
    recalibrate(model, [batch()])
    own = jaxnorm.batch_statistics(model.conv(batch()))
    inner: Any = model.inner.layers[1]
    # `norm` is called twice. Its statistics come from the second call alone, and the input of that
    # call is the output of the first call.
    assert jnp.abs(inner.mean[...]).max() > 0
    assert jnp.abs(model.norm.mean[...] - own.mean).max() > 1e-3
    assert model.dropout.deterministic
    assert inner.running_correction is jaxnorm.bessel
    np.testing.assert_array_equal(model.conv.kernel[...], kernel)


@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, UnitizedBatchNorm])
def test_a_batch_counts_for_what_each_layer_saw_of_it(norm):
    """A batch may be a tree with leaves of different lengths, with numbers and with masks."""

    class Masked(nnx.Module):
        def __init__(self):
            self.dense = norm(3, rngs=nnx.Rngs(0))
            self.pooled = norm(3, rngs=nnx.Rngs(0))

        def __call__(self, batch):
            x = self.dense(batch["x"], mask=batch["mask"])
            return self.pooled(x.mean(1))

    def made(seed, rows):
        x = batch(seed, (rows, 5, 3)) + seed
        mask = np.random.default_rng(seed).random((rows, 5)) < 0.3 + 0.2 * seed
        where = jnp.asarray(mask[..., None] if norm is nnx.BatchNorm else mask)
        return {"a_scalar": 2.0, "a_weight": jnp.ones(seed + 1), "mask": where, "x": x}

    batches = [made(0, 30), made(1, 10), made(2, 4)]
    model = Masked()
    recalibrate(model, batches, call=lambda model, batch: model(batch))
    union = np.concatenate(
        [np.asarray(b["x"])[np.asarray(b["mask"]).reshape(b["x"].shape[:2])] for b in batches]
    )
    np.testing.assert_allclose(model.dense.mean[...], union.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.dense.var[...], union.var(0), rtol=1e-4)
    copy = Masked()
    copy.train()
    pooled = []
    for b in batches:
        dense = copy.dense(b["x"], mask=b["mask"])
        pooled.append(np.asarray(dense.mean(1), np.float64))
    np.testing.assert_allclose(
        model.pooled.mean[...], np.concatenate(pooled).mean(0), rtol=1e-4, atol=1e-5
    )


def test_recalibration_calls_the_model_as_it_is_told():
    layer = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    pairs = [(batch(seed), None) for seed in range(2)]
    recalibrate(layer, pairs, call=lambda layer, pair: layer(pair[0]))
    union = jnp.concatenate([x for x, _ in pairs])
    np.testing.assert_allclose(layer.mean[...], union.mean((0, 1, 2)), rtol=1e-5)


def test_a_failed_recalibration_leaves_the_model_as_it_was():
    layer = jaxnorm.nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="must hold 3 features"):
        recalibrate(layer, [batch(), batch(shape=(4, 2))])
    np.testing.assert_array_equal(layer.mean[...], 0)
    assert layer.use_running_average
    with pytest.raises(ValueError, match="at least one batch; got none"):
        recalibrate(layer, [])
    with pytest.raises(ValueError, match="must hold at least one batch norm; it holds none"):
        recalibrate(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), [batch()])


@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_a_folded_layer_computes_both(norm, use_bias, dense):
    rngs = nnx.Rngs(0)
    layer = (
        nnx.Linear(3, 4, use_bias=use_bias, rngs=rngs)
        if dense
        else nnx.Conv(3, 4, (3, 3), strides=2, use_bias=use_bias, rngs=rngs)
    )
    norm = norm(4, rngs=rngs)
    norm.scale[...] = norm.scale[...] * 1.7
    norm.bias[...] = norm.bias[...] - 0.3
    norm(layer(batch()))
    norm.use_running_average = True
    before = np.array(layer.kernel[...])
    folded = fold(layer, norm)
    np.testing.assert_allclose(folded(batch(1)), norm(layer(batch(1))), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(layer.kernel[...], before)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("use_bias", [False, True])
def test_a_folded_layer_keeps_dtype_and_metadata(dtype, use_bias):
    layer = nnx.Linear(3, 4, use_bias=use_bias, param_dtype=dtype, rngs=nnx.Rngs(0))
    layer.kernel = nnx.Param(layer.kernel[...], tag="kernel")
    if layer.bias is not None:
        layer.bias = nnx.Param(layer.bias[...], tag="bias")
    folded: Any = fold(layer, jaxnorm.nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    assert folded.kernel.get_metadata()["tag"] == "kernel"
    assert folded.kernel[...].dtype == folded.bias[...].dtype == dtype
    if use_bias:
        assert folded.bias.get_metadata()["tag"] == "bias"


@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm])
def test_a_folded_layer_has_the_epsilon_and_the_variances_of_its_norm(norm):
    layer = nnx.Linear(3, 4, use_bias=False, rngs=nnx.Rngs(0))
    norm = norm(4, epsilon=0.5, rngs=nnx.Rngs(0))
    norm.var[...] = jnp.array([0.0, 0.25, 1.0, 9.0], "float32")  # a dead feature has variance 0
    x = batch(shape=(8, 3))
    norm.use_running_average = True
    np.testing.assert_allclose(fold(layer, norm)(x), norm(layer(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "parts", [{"recentering": False}, {"rescaling": False}, {"use_bias": False}]
)
def test_parts_of_batch_norm_are_folded_as_they_are(parts):
    layer, norm = (
        nnx.Linear(3, 4, rngs=nnx.Rngs(0)),
        jaxnorm.nnx.BatchNorm(4, use_scale=False, rngs=nnx.Rngs(0), **parts),
    )
    x = batch(shape=(8, 3))
    norm(layer(x))
    expected = norm(layer(x), use_running_average=True)
    np.testing.assert_allclose(fold(layer, norm)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("rescaling", [True, False])
@pytest.mark.parametrize("recentering", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folded_layer_is_its_formula_in_numpy(recentering, rescaling, use_bias, dtype):
    """All parameters and statistics of the layer and the norm are neither 0 nor 1.

    Folding must round the kernel and the bias only once.
    """
    rng = np.random.default_rng(0)
    layer: Any = nnx.Linear(30, 4, param_dtype=dtype, rngs=nnx.Rngs(0))
    norm = jaxnorm.nnx.BatchNorm(
        4, recentering=recentering, rescaling=rescaling, use_bias=use_bias, rngs=nnx.Rngs(0)
    )
    own, mean, var, scale, bias = rng.uniform(0.5, 3, (5, 4))
    for variable, value in (
        (layer.bias, own),
        (norm.mean, mean),
        (norm.var, var),
        (norm.scale, scale),
        (norm.bias, bias),
    ):
        if variable is not None:
            variable[...] = jnp.asarray(value, variable[...].dtype)
    gain = scale / (np.sqrt(var + 1e-5) if rescaling else 1)
    own = np.asarray(layer.bias[...], float)
    folded: Any = fold(layer, norm)
    kernel = np.asarray(layer.kernel[...], float) * gain
    assert_rounded_once(folded.kernel[...], kernel, dtype, tolerance=1e-6)
    shift = gain * (own - mean * recentering) + bias * use_bias
    assert_rounded_once(folded.bias[...], shift, dtype, tolerance=1e-6)
    x = rng.normal(size=(8, 30))
    if dtype == "float32":
        found = folded(jnp.asarray(x, dtype))
        np.testing.assert_allclose(found, x @ kernel + shift, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_layers_that_cannot_be_folded_are_refused():
    rngs = nnx.Rngs(0)
    dense = nnx.Linear(3, 4, rngs=rngs)
    with pytest.raises(TypeError, match="a unitized batch norm depends on each sample's norm"):
        fold(dense, jaxnorm.nnx.UnitizedBatchNorm(4, rngs=rngs))
    with pytest.raises(TypeError, match="norm must be a batch norm; got LayerNorm"):
        fold(dense, nnx.LayerNorm(4, rngs=rngs))
    embed: Any = nnx.Embed(3, 4, rngs=rngs)
    with pytest.raises(TypeError, match="dense layer; got Embed"):
        fold(embed, jaxnorm.nnx.BatchNorm(4, rngs=rngs))
    with pytest.raises(ValueError, match="the layer's 4 features along axis -1; got 5"):
        fold(dense, jaxnorm.nnx.BatchNorm(5, rngs=rngs))


def test_pixels_of_training_are_used_at_other_sizes(key):
    small, large = jax.random.normal(key, (2, 8, 8, 3)), jax.random.normal(key, (2, 12, 16, 3))
    model = nnx.Sequential(
        nnx.Conv(3, 4, (3, 3), strides=2, param_dtype=jnp.float64, rngs=nnx.Rngs(0)),
        UnitizedBatchNorm(
            4, alpha_init=nnx.initializers.ones, param_dtype=jnp.float64, rngs=nnx.Rngs(1)
        ),
    )
    model.eval()
    fixed: Any = fix_pixels(model, small)
    assert fixed.layers[1].pixels == 16
    norm: Any = model.layers[1]
    assert norm.pixels is None
    np.testing.assert_array_equal(fixed(small), model(small))
    # At alpha 1, the output is proportional to the square root of the number of pixels.
    np.testing.assert_allclose(fixed(large), model(large) * (16 / 48) ** 0.5, rtol=1e-4)
    shape = jax.ShapeDtypeStruct(large.shape, large.dtype)
    fixed = fix_pixels(model, shape)
    assert fixed.layers[1].pixels == 48


def test_changes_of_a_new_model_do_not_reach_the_given_one():
    dense, norm = nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    unitized = nnx.Sequential(UnitizedBatchNorm(3, rngs=nnx.Rngs(0)))
    fixed: Any = fix_pixels(unitized, jax.ShapeDtypeStruct((2, 8, 5, 3), jnp.float32))
    assert fixed.layers[0].pixels == 40
    for new, given in ((fold(dense, norm), nnx.List([dense, norm])), (fixed, unitized)):
        before = nnx.to_pure_dict(nnx.state(given))
        assert new is not given
        for _, variable in nnx.iter_graph(new):
            if isinstance(variable, nnx.Variable):
                variable.set_value(variable.get_value() + 1)
        jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(given)), before)


@pytest.mark.parametrize("options", [{"pixels": 3}, {"per_pixel": True}, {"pixels": 2.5}])
def test_layers_that_do_not_depend_on_the_size_stay_as_they_are(options):
    ones = nnx.initializers.ones
    model = nnx.Sequential(UnitizedBatchNorm(3, alpha_init=ones, rngs=nnx.Rngs(0), **options))
    x = batch(shape=(2, 8, 8, 3))
    np.testing.assert_array_equal(fix_pixels(model, x)(x), model(x))
    fixed: Any = fix_pixels(model, x)
    assert fixed.layers[0].pixels == options.get("pixels")


def test_pixels_of_two_sizes_are_refused():
    class Twice(nnx.Module):
        def __init__(self):
            self.norm = UnitizedBatchNorm(3, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(x) + self.norm(x[:, ::2]).mean()

    with pytest.raises(
        ValueError, match=r"norm must be called on images of one size; got \[4, 8\]"
    ):
        fix_pixels(Twice(), jnp.ones((2, 4, 2, 3), jnp.float32))
    model: Any = nnx.Sequential(nnx.identity)
    model.unused = UnitizedBatchNorm(3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"^unused must be called on .*; got \[\] pixels"):
        fix_pixels(model, jnp.ones((2, 4, 2, 3), jnp.float32))


def test_a_layer_that_is_used_twice_has_one_replacement():
    old = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    model: Any = replace_batch_norm(nnx.Sequential(old, nnx.relu, old), UnitizedBatchNorm)
    assert model.layers[0] is model.layers[2]
    model.layers[0].alpha[...] = jnp.full(3, 0.5)
    back: Any = replace_batch_norm(model)
    assert type(back.layers[0]) is jaxnorm.nnx.BatchNorm
    assert not hasattr(back.layers[0], "alpha")
    assert back.layers[0].scale is old.scale


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "kept"),
    [(1, 8, 1, 6), (4, 4, 4, 3), (4, 8, 4, 6), (4, 8, 2, 4), (6, 8, 1, 5), (2, 2, 2, 1)],
)
def test_a_convolution_fits_the_outputs_that_are_kept(inputs, outputs, groups, kept):
    rngs = nnx.Rngs(0)
    conv = nnx.Conv(inputs, outputs, (3, 3), feature_group_count=groups, rngs=rngs)
    x = batch(shape=(2, 5, 5, inputs))
    expected = conv(x)
    depthwise = 1 < groups == inputs
    if depthwise:
        x = x[..., : kept * inputs // outputs]
    index = np.arange(kept)
    if 1 < groups < inputs:
        index = np.array([0, 1, 4, 5])  # keeps two channels in each of two groups
    conv.kernel = nnx.Param(conv.kernel[...][..., index])
    assert conv.bias is not None
    conv.bias = nnx.Param(conv.bias[...][index])
    found = fit_widths(conv)(x)
    np.testing.assert_allclose(found, expected[..., index], rtol=1e-5, atol=1e-6)


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    """A registered pytree whose parts cannot be assigned by an index."""

    first: Any
    second: Any


CONTAINERS: dict[str, Any] = {
    "nnx.List": nnx.List,
    "nnx.Dict": lambda norms: nnx.Dict(a=norms[0], b=norms[1]),
    "list": lambda norms: nnx.data(list(norms)),
    "tuple": lambda norms: nnx.data(tuple(norms)),
    "dict": lambda norms: nnx.data({"a": norms[0], "b": [norms[1]]}),
    "dataclass": lambda norms: nnx.data(Pair(*norms)),
    "nested": lambda norms: nnx.data([(nnx.Sequential(norms[0]),), {"a": norms[1]}]),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("old", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm])
def test_layers_in_containers_are_replaced(container, old):
    norms = [old(3, rngs=nnx.Rngs(0)) for _ in range(2)]
    model: Any = nnx.Module()
    model.norms = CONTAINERS[container](norms)
    before = [path for path, _ in nnx.to_flat_state(nnx.state(model))]
    replace_batch_norm(model, UnitizedBatchNorm)
    found = [m for _, m in nnx.iter_modules(model) if not isinstance(m, nnx.Sequential)]
    found = [m for m in found if hasattr(m, "mean")]
    assert [type(m) for m in found] == [UnitizedBatchNorm] * 2
    assert [m.scale for m in found] == [norm.scale for norm in norms]
    after = [path for path, _ in nnx.to_flat_state(nnx.state(model)) if path[-1] != "alpha"]
    assert after == before


@pytest.mark.parametrize("old", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm])
def test_layers_that_were_stacked_for_a_scan_are_replaced(old):
    """The parameter alpha has one vector for each layer of the stack."""

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make(rngs):
        return nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), old(4, rngs=rngs))

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def run(layers, x):
        return layers(x)

    model: Any = make(nnx.Rngs(0))
    x = batch(shape=(8, 4))
    expected = run(nnx.clone(model), x)
    replace_batch_norm(model, UnitizedBatchNorm)
    assert model.layers[1].alpha.shape == (3, 4)
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("old", [nnx.BatchNorm, UnitizedBatchNorm])
def test_layers_of_a_model_without_values_are_replaced(old):
    model: Any = nnx.eval_shape(lambda: nnx.Sequential(old(3, rngs=nnx.Rngs(0))))
    replace_batch_norm(model, UnitizedBatchNorm)
    assert model.layers[0].alpha.shape == model.layers[0].scale.shape == (3,)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("norm", [nnx.BatchNorm, jaxnorm.nnx.BatchNorm, UnitizedBatchNorm])
def test_a_layer_with_its_own_call_is_refused(norm: Any):
    """The layer's own call adds a ReLU, which a replaced or folded layer would leave out."""

    class Activated(norm):
        def __call__(self, x):
            return nnx.relu(super().__call__(x))

    class Renamed(norm):
        pass

    rngs = nnx.Rngs(0)
    own = Activated(4, rngs=rngs)
    with pytest.raises(TypeError, match=r"norm of the model must not have a __call__ .*; got Act"):
        replace_batch_norm(nnx.Sequential(own))
    if norm is not UnitizedBatchNorm:
        with pytest.raises(
            TypeError, match=r"^norm must not have a __call__ of its own, .*; got Act"
        ):
            fold(nnx.Linear(3, 4, rngs=rngs), own)
    assert isinstance(replace_batch_norm(Renamed(4, rngs=rngs)), jaxnorm.nnx.BatchNorm)


@pytest.mark.usefixtures("unchecked")
def test_a_dense_layer_with_an_adapter_is_not_folded():
    """If the layer were folded, its adapter's output would not be scaled."""
    rngs = nnx.Rngs(0)
    layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs)
    with pytest.raises(
        TypeError, match=r"^layer must not have a __call__ of its own, .*; got LoRAL"
    ):
        fold(layer, jaxnorm.nnx.BatchNorm(4, rngs=rngs))


@pytest.mark.usefixtures("unchecked")
def test_a_class_is_no_model():
    model: Any = nnx.BatchNorm
    with pytest.raises(TypeError, match=r"^model must be a module; got the class BatchNorm$"):
        replace_batch_norm(model)
