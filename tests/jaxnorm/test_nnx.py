"""NNX modules update their state as the modules of Flax do."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import jaxnorm
from tests.support.layers import layer_classes

NAMES = layer_classes(jaxnorm.nnx)


def batch(seed=0, shape=(16, 4, 4, 3)):
    return jnp.asarray(np.random.default_rng(seed).gamma(2.0, size=shape), "float32")


def test_training_and_inference_are_those_of_flax():
    ours = jaxnorm.nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    theirs = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    for seed in range(3):
        np.testing.assert_allclose(ours(batch(seed)), theirs(batch(seed)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.mean[...], theirs.mean[...], rtol=1e-6)
    # Our running variance is unbiased, and Flax's is biased.
    count = batch()[..., 0].size
    start = 0.9**3
    corrected = start + (theirs.var[...] - start) * count / (count - 1)
    np.testing.assert_allclose(ours.var[...], corrected, rtol=1e-5)
    theirs.var[...] = ours.var[...]
    np.testing.assert_allclose(
        ours(batch(9), use_running_average=True),
        theirs(batch(9), use_running_average=True),
        rtol=1e-5,
        atol=1e-5,
    )


def test_unitized_starts_as_batch_norm():
    plain = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    unitized = jaxnorm.nnx.UnitizedBatchNorm(3, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(unitized(batch()), plain(batch()), atol=1e-6)
    np.testing.assert_array_equal(unitized.var[...], plain.var[...])


def test_unitized_passes_its_parameters_on():
    layer = jaxnorm.nnx.UnitizedBatchNorm(
        3, alpha_init=nnx.initializers.constant(0.4), pixels=3, epsilon=1e-3, rngs=nnx.Rngs(0)
    )
    expected, _ = jaxnorm.unitized_batch_norm(
        batch(), jnp.full(3, 0.4, "float32"), eps=1e-3, pixels=3
    )
    np.testing.assert_allclose(layer(batch()), expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_inference_updates_no_state_and_view_chooses_it(name):
    layer = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    frozen = nnx.view(layer, use_running_average=True)
    before = np.array(layer.mean[...])
    frozen(batch())
    np.testing.assert_array_equal(layer.mean[...], before)
    layer(batch())
    np.testing.assert_allclose(layer.mean[...], 0.01 * batch().mean((0, 1, 2)), rtol=1e-4)


def test_an_empty_batch_leaves_the_running_statistics():
    layer = jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    layer(batch(), mask=jnp.zeros((16, 1, 1, 1), bool))
    np.testing.assert_array_equal(layer.mean[...], 0)
    np.testing.assert_array_equal(layer.var[...], 1)


def test_without_scale_and_bias_there_are_none():
    layer = jaxnorm.nnx.BatchNorm(3, use_scale=False, use_bias=False, rngs=nnx.Rngs(0))
    assert not jax.tree.leaves(nnx.state(layer, nnx.Param))
    np.testing.assert_allclose(layer(batch()).mean((0, 1, 2)), 0, atol=1e-5)


def test_training_under_jit_and_grad_updates_state_once():
    layer = jaxnorm.nnx.UnitizedBatchNorm(3, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(layer, x):
        return nnx.grad(lambda layer: jnp.sum(layer(x) ** 3))(layer)

    gradient = step(layer, batch())
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(layer.mean[...], 0.01 * batch().mean((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_features_may_lie_on_any_axis_but_the_first(name):
    last, middle = (getattr(jaxnorm.nnx, name)(3, axis=a, rngs=nnx.Rngs(0)) for a in (-1, 1))
    x = batch()
    keep = jnp.arange(16) < 9
    transposed = middle(jnp.moveaxis(x, -1, 1), mask=keep[:, None, None, None])
    expected = last(x, mask=keep[:, None, None, None])
    np.testing.assert_array_equal(jnp.moveaxis(transposed, 1, -1), expected)
    np.testing.assert_array_equal(middle.mean[...], last.mean[...])
    for axis in (0, 4):
        with pytest.raises(ValueError, match=f"axis must name an axis .* got {axis}"):
            getattr(jaxnorm.nnx, name)(16, axis=axis, rngs=nnx.Rngs(0))(x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inference", [False, True])
def test_bfloat16_in_is_bfloat16_out_with_statistics_in_float32(name, inference):
    x = jnp.asarray(np.random.default_rng(1).normal(10.3, 0.1, (4096, 8)), jnp.bfloat16)
    layer = getattr(jaxnorm.nnx, name)(8, param_dtype=jnp.bfloat16, momentum=0.0, rngs=nnx.Rngs(0))
    layer(x)  # BatchRenorm uses running statistics of earlier batches, so it needs a first call
    y = layer(x)
    assert layer.mean[...].dtype == layer.var[...].dtype == jnp.float32
    if inference:
        y = layer(x, use_running_average=True)
    assert y.dtype == jnp.bfloat16
    # For Flax's layer, this maximum is 0.15.
    assert jnp.abs(jnp.asarray(y, "float32").mean(0)).max() < 0.005
    assert jnp.abs(jnp.asarray(y, "float32").std(0) - 1).max() < 0.005


def test_the_results_dtype_may_be_chosen():
    layer = jaxnorm.nnx.BatchNorm(3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert layer(batch()).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", [*NAMES, "DyT", "Derf", "Unitization"])
def test_metadata_reaches_the_variables(name):
    kind = getattr(jaxnorm.nnx, name)
    options = [
        option for option in inspect.signature(kind.__init__).parameters if "_metadata" in option
    ]
    layer = kind(3, **{option: {"tag": option} for option in options}, rngs=nnx.Rngs(0))
    parameters = {k: v for k, v in vars(layer).items() if isinstance(v, nnx.Param)}
    assert {f"{k}_metadata": v.get_metadata("tag") for k, v in parameters.items()} == dict(
        zip(options, options, strict=True)
    )


@pytest.mark.parametrize("name", [*NAMES, "DyT", "Derf", "Unitization"])
def test_parameters_are_drawn_from_their_own_stream_of_keys(name):
    kind = getattr(jaxnorm.nnx, name)
    options = [
        option for option in inspect.signature(kind.__init__).parameters if "_init" in option
    ]
    draw = dict.fromkeys(options, nnx.initializers.normal())
    first, same, other = (
        jax.tree.leaves(nnx.state(kind(3, **draw, rngs=nnx.Rngs(seed, params=params)), nnx.Param))
        for seed, params in ((0, 1), (2, 1), (0, 3))
    )
    jax.tree.map(np.testing.assert_array_equal, first, same)
    assert len(first) == len(options)
    assert not any((a == b).any() for a, b in zip(first, other, strict=True))


def test_ghost_batches_update_the_running_statistics_by_their_average():
    layer = jaxnorm.nnx.BatchNorm(3, groups=4, momentum=0.0, rngs=nnx.Rngs(0))
    x = batch()
    np.testing.assert_allclose(layer(x), jaxnorm.batch_norm(x, groups=4)[0], rtol=1e-5, atol=1e-6)
    parts = np.asarray(x, np.float64).reshape(4, -1, 3)
    np.testing.assert_allclose(layer.mean[...], parts.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], parts.var(1, ddof=1).mean(0), rtol=1e-5)
    inference = layer(x, use_running_average=True)
    np.testing.assert_allclose(inference[:1], layer(x[:1], use_running_average=True), rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        getattr(shell, name)
        for shell in (jaxnorm.nnx, jaxnorm.linen)
        for name in layer_classes(shell)
    ],
    ids=lambda layer: f"{layer.__module__}.{layer.__name__}",
)
def test_arguments_are_spelled_and_documented(layer):
    """Each argument is documented by the layer, or by the layer that its docstring refers to."""
    documented = inspect.getdoc(layer) or ""
    if layer is not jaxnorm.nnx.BatchNorm:
        assert re.search(r"([Aa]rguments are the same as for|meaning are those of)", documented)
        for other in layer_classes(jaxnorm.nnx):
            documented += inspect.getdoc(getattr(jaxnorm.nnx, other)) or ""
    parameters = list(inspect.signature(layer.__init__).parameters.values())
    assert not [p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for parameter in parameters:
        assert parameter.name in ("self", "parent", "name") or f"{parameter.name}:" in documented


@pytest.mark.parametrize("name", layer_classes(jaxnorm.nnx))
def test_only_the_number_of_features_may_go_without_its_name(name):
    parameters = inspect.signature(getattr(jaxnorm.nnx, name).__init__).parameters.values()
    assert [p.name for p in parameters if p.kind != p.KEYWORD_ONLY] == ["self", "num_features"]


def test_options_reach_the_functions():
    x, alpha = batch(), jnp.full(3, 0.4, "float32")
    options = {"per_pixel": True, "factor": jaxnorm.bounded, "correction": jaxnorm.bessel}
    layer = jaxnorm.nnx.UnitizedBatchNorm(
        3, alpha_init=nnx.initializers.constant(0.4), rngs=nnx.Rngs(0), **options
    )
    expected, _ = jaxnorm.unitized_batch_norm(x, alpha, **options)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6, atol=1e-6)
    layer = jaxnorm.nnx.BatchNorm(3, recentering=False, rescaling=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer(x), x, rtol=1e-6, atol=1e-6)
    layer = jaxnorm.nnx.BatchNorm(
        3, running_correction=jnp.ones_like, momentum=0.0, rngs=nnx.Rngs(0)
    )
    layer(x)
    np.testing.assert_allclose(layer.var[...], np.var(x, (0, 1, 2)), rtol=1e-5)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_call_says_whether_running_statistics_are_used_before_the_layer(name, made):
    """In inference, the running mean 2 and variance 9 normalize the input, and do not change."""
    x = batch(shape=(16, 3))
    for said, used in ((None, made), (True, True), (False, False)):
        layer = getattr(jaxnorm.nnx, name)(3, use_running_average=made, rngs=nnx.Rngs(0))
        layer.mean[...], layer.var[...] = jnp.full(3, 2, "float32"), jnp.full(3, 9, "float32")
        y = layer(x, use_running_average=said)
        expected = (np.asarray(x) - 2) / np.sqrt(9 + 1e-5, dtype="float32")
        of_running = np.allclose(y, expected, rtol=1e-5, atol=1e-5)
        assert (layer.mean[...] == 2).all() == used
        assert of_running == used or (name == "BatchRenorm" and not used)


@pytest.mark.parametrize("name", NAMES)
def test_state_is_unchanged_under_vmap_also_the_second_time(name):
    x = jnp.stack([batch(0), batch(1) + 2])
    layer = getattr(jaxnorm.nnx, name)

    @nnx.vmap
    def make(key):
        return layer(3, rngs=nnx.Rngs(key))

    stacked = make(jax.random.split(jax.random.key(0), 2))
    call = nnx.jit(nnx.vmap(lambda layer, x: layer(x)))
    alone = [layer(3, rngs=nnx.Rngs(0)) for _ in range(2)]
    for _ in range(2):
        y = call(stacked, x)
        for i in range(2):
            np.testing.assert_allclose(y[i], alone[i](x[i]), rtol=1e-5, atol=1e-5)
    assert stacked.mean[...].shape == (2, 3)
    np.testing.assert_allclose(stacked.var[...][1], alone[1].var[...], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_has_a_shape_without_values(name):
    shapes = nnx.eval_shape(lambda: getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0)))
    assert {leaf.shape for leaf in jax.tree.leaves(nnx.state(shapes))} == {(3,)}


@pytest.mark.parametrize("name", NAMES)
def test_orbax_saves_and_restores_a_layer(name, tmp_path):
    layer = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    layer(batch())
    saver = ocp.StandardCheckpointer()
    saver.save(tmp_path / "layer", nnx.to_pure_dict(nnx.state(layer)))
    saver.wait_until_finished()
    other = getattr(jaxnorm.nnx, name)(3, rngs=nnx.Rngs(0))
    state = nnx.state(other)
    restored = saver.restore(tmp_path / "layer", nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, restored)
    nnx.update(other, state)
    np.testing.assert_array_equal(
        other(batch(1), use_running_average=True), layer(batch(1), use_running_average=True)
    )


def test_the_choice_between_training_and_inference_must_be_made():
    layer = jaxnorm.nnx.BatchNorm(3, use_running_average=None, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"use_running_average must be True or False, .* got None"):
        layer(batch())
    layer(batch(), use_running_average=True)


@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="pixels must be positive; got 0"):
        jaxnorm.nnx.UnitizedBatchNorm(3, pixels=0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="groups must be at least 1; got 0"):
        jaxnorm.nnx.BatchNorm(3, groups=0, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="x must be of a floating dtype; got int32"):
        jaxnorm.nnx.BatchNorm(3, rngs=nnx.Rngs(0))(jnp.ones((4, 3), jnp.int32))


def test_other_feature_counts_are_refused():
    with pytest.raises(ValueError, match="num_features must be at least 1; got 0"):
        jaxnorm.nnx.BatchNorm(0, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="axis -1 of x must hold 4 features"):
        jaxnorm.nnx.BatchNorm(4, rngs=nnx.Rngs(0))(batch())
