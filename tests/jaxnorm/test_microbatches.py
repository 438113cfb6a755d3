"""Microbatches give the loss, the gradients and the statistics of the whole batch."""

import gc
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxnorm
from jaxnorm.models import MLP, PreActResNet
from jaxnorm.nnx import BatchNorm, UnitizedBatchNorm, microbatched, recalibrate
from tests.support.numpy_programs import output_of


def batch(shape, classes, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(1, 2, shape), "float32"), jnp.asarray(
        rng.integers(0, classes, shape[0])
    )


def cross_entropy(model, batch):
    x, y = batch
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def both(build, batch, microbatches):
    """The gradient, the updated state and the loss, for the whole batch and for microbatches."""
    for loss in (cross_entropy, microbatched(cross_entropy, microbatches)):

        def outcome(model, batch, loss=loss):
            value, gradient = nnx.value_and_grad(loss)(model, batch)
            return nnx.to_pure_dict(gradient), nnx.to_pure_dict(nnx.state(model)), value

        yield output_of(build(), batch, outcome)


def dense(norm):
    def build():
        rngs = nnx.Rngs(0)
        return MLP(inputs=5, widths=(7, 6, 4), classes=3, norm=norm, rngs=rngs)

    return build


def assert_equal(found, expected, tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


@pytest.mark.parametrize(
    "norm", [pytest.param(BatchNorm, marks=pytest.mark.slow), UnitizedBatchNorm]
)
def test_microbatches_have_the_gradient_and_statistics_of_the_whole_batch(norm):
    def wide(features, *, rngs):
        layer = norm(features, correction=jaxnorm.bessel, momentum=0.7, rngs=rngs)
        if norm is UnitizedBatchNorm:
            layer.alpha[...] = jnp.linspace(0, 1, features, dtype="float32")
        return layer

    whole, parts = both(dense(wide), batch((12, 5), 3), 3)
    assert_equal(parts, whole, 1e-5)  # parameters and running statistics have the dtype float32


# Over 8 devices, each of two microbatches has 8 samples, and each of eight has 2 samples.
@pytest.mark.parametrize("microbatches", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_a_batch_may_be_sharded_over_an_explicit_mesh(microbatches):
    def cubes(model, x):
        return jnp.mean(model(x) ** 3)

    x = batch((16, 5), 3)[0]
    value_and_grad = nnx.jit(nnx.value_and_grad(microbatched(cubes, microbatches)))
    expected = nnx.value_and_grad(cubes)(BatchNorm(5, rngs=nnx.Rngs(0)), x)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
        found = value_and_grad(BatchNorm(5, rngs=nnx.Rngs(0)), x)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_microbatches_of_a_residual_network():
    def build():
        return PreActResNet(8, classes=3, channels=2, rngs=nnx.Rngs(0))

    whole, parts = both(build, batch((6, 8, 8, 2), 3), 3)
    assert_equal(parts, whole, 2e-5)


def test_averaged_gradients_of_microbatches_are_others():
    x, y = batch((12, 5), 3)
    whole, (left, _, _), (right, _, _) = (
        next(both(dense(BatchNorm), part, 1)) for part in ((x, y), (x[:6], y[:6]), (x[6:], y[6:]))
    )
    averaged = jax.tree.map(lambda a, b: (a + b) / 2, left, right)
    differences = jax.tree.map(lambda a, b: abs(a - b).max(), averaged, whole[0])
    assert max(jax.tree.leaves(differences)) > 0.01


def test_every_one_of_three_norms_sees_the_whole_batch():
    """Each of the three norms follows another one; NumPy gives the expected statistics of all."""
    x = np.random.default_rng(0).gamma(2.0, size=(8, 3)) * np.arange(1, 9)[:, None]
    layers = [BatchNorm(3, momentum=0.0, rngs=nnx.Rngs(0)) for _ in range(3)]
    model = nnx.Sequential(*[part for norm in layers for part in (norm, jnp.square)])
    loss = microbatched(lambda model, x: model(x).mean(), 4)
    value = nnx.jit(loss)(model, jnp.asarray(x, "float32"))
    for norm in layers:
        np.testing.assert_allclose(norm.mean[...], x.mean(0), rtol=1e-4)
        np.testing.assert_allclose(norm.var[...], x.var(0, ddof=1), rtol=1e-4)
        x = np.square((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5))
    np.testing.assert_allclose(value, x.mean(), rtol=1e-4)


class Called(nnx.Module):
    """A model that passes the options `call` to its batch norm at every call."""

    def __init__(self, call, **options):
        self.call, self.norm = call, BatchNorm(3, rngs=nnx.Rngs(0), **options)

    def __call__(self, x):
        return self.norm(x, **self.call)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"use_running_average": None}, {"use_running_average": False}),
        ({"update_running_average": False}, {"update_running_average": None}),
        ({}, {"update_running_average": True}),
        ({"correction": jaxnorm.bessel}, {}),
        ({"running_correction": jnp.ones_like}, {}),
        ({"momentum": 0.3}, {}),
        ({"epsilon": 0.4}, {}),
        ({"recentering": False}, {}),
        ({"rescaling": False, "use_bias": False}, {}),
    ],
)
def test_options_have_the_effect_that_they_have_for_a_whole_batch(options, call):
    x = batch((8, 3), 3)[0]
    loss = lambda model, x: (model(x) ** 3).mean()  # noqa: E731
    results = []
    for function in (loss, microbatched(loss, 4)):

        def outcome(model, x, function=function):
            return function(model, x), model.norm.mean[...], model.norm.var[...]

        results.append(output_of(Called(call, **options), x, outcome))
    assert_equal(results[1], results[0], 1e-6)


def test_gradients_flow_through_all_statistics_but_the_running_ones():
    """The running statistics are NaN, as if an earlier training step had diverged.

    Shifting or scaling x changes no loss, so the gradient along a shift or a scaling is zero.
    """
    norms = [
        BatchNorm(3, epsilon=0.0, update_running_average=False, rngs=nnx.Rngs(0)) for _ in range(2)
    ]
    for norm in norms:
        norm.mean[...] = norm.var[...] = jnp.full(3, np.nan, "float32")
    model, x = nnx.Sequential(norms[0], jnp.square, norms[1]), batch((8, 3), 3)[0]
    loss = microbatched(lambda model, x: (model(x) ** 3).mean(), 2)
    gradient = jax.jit(jax.grad(partial(loss, model)))(x)
    assert np.abs(gradient).max() > 0.01
    np.testing.assert_allclose(gradient.sum(0), 0, atol=1e-5)
    np.testing.assert_allclose((x * gradient).sum(0), 0, atol=1e-5)


def test_a_mask_of_unequal_parts_counts_what_it_counts():
    x = batch((8, 3), 3)[0]
    mask = jnp.array([1, 1, 1, 1, 0, 0, 0, 1], bool)
    loss = lambda layer, batch: jnp.square(layer(batch[0], mask=batch[1]) - 1).mean()  # noqa: E731
    results = []
    for function in (loss, microbatched(loss, 2)):
        layer = BatchNorm(3, rngs=nnx.Rngs(0))
        value = nnx.jit(function)(layer, (x, mask))
        results.append((value, layer.mean[...], layer.var[...]))
    assert_equal(results[1], results[0], 1e-6)


def test_recomputed_blocks_are_counted_once():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(5, 5, rngs=rngs), BatchNorm(5, rngs=rngs)

        @nnx.remat
        def __call__(self, x):
            return nnx.relu(self.norm(self.linear(x)))

    def build():
        return nnx.Sequential(Block(nnx.Rngs(0)), Block(nnx.Rngs(1)))

    whole, parts = both(build, batch((8, 5), 3), 4)
    assert_equal(parts, whole, 1e-5)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 6])
def test_parts_are_consecutive_samples_of_the_whole_tree(microbatches):
    """A loss that is no mean over samples shows which samples form a microbatch."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(6, 2, 2)), rng.normal(size=6)

    def loss(_, batch):
        return jnp.square((batch["x"] * batch["weights"][:, None, None]).sum())

    tree = {"x": jnp.asarray(x), "weights": jnp.asarray(weights)}
    found = microbatched(loss, microbatches)(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), tree)
    size = 6 // microbatches
    sums = [(x[i : i + size].sum((1, 2)) @ weights[i : i + size]) for i in range(0, 6, size)]
    np.testing.assert_allclose(found, np.square(sums).mean(), rtol=1e-12)


class Chosen(nnx.Module):
    """A model whose call chooses between training and inference."""

    def __init__(self, norm, **options):
        rngs = nnx.Rngs(0)
        self.first, self.second = (norm(5, rngs=rngs, **options) for _ in range(2))

    def __call__(self, x, *, train):
        return self.second(nnx.relu(self.first(x, not train)), use_running_average=not train)


@pytest.mark.parametrize(("norm", "use"), [(BatchNorm, None), (UnitizedBatchNorm, False)])
def test_the_call_may_choose_training(norm, use):
    """The call's choice of training overrides the layer's option, also in microbatches."""

    def loss(model, x):
        return jnp.power(model(x, train=True), 3).mean()

    x = batch((12, 5), 3)[0]
    results = []
    for function in (loss, microbatched(loss, 4)):
        model = Chosen(norm, use_running_average=use)
        value, gradient = nnx.jit(nnx.value_and_grad(function))(model, x)
        results.append((value, nnx.to_pure_dict(gradient), nnx.to_pure_dict(nnx.state(model))))
    assert_equal(results[1], results[0], 1e-5)


class Stateful(nnx.Module):
    """A model with dropout, a spectral norm, a counter, and a variable that its call makes."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.SpectralNorm(nnx.Linear(5, 5, rngs=rngs), rngs=rngs)
        self.norm = BatchNorm(5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), int))

    def __call__(self, x):
        self.calls[...] += 1
        h = self.norm(self.linear(x, update_stats=True))
        self.last = nnx.Intermediate(h)
        return self.dropout(h)


def test_the_state_of_other_layers_is_that_after_one_batch():
    """Without updates of the state, each step would repeat the dropout mask and singular vector."""

    def loss(model, x):
        return jnp.square(model(x) - 1).mean()

    x = batch((6, 5), 3)[0]
    whole, parts = Stateful(), Stateful()
    microbatch_loss = nnx.jit(microbatched(loss, 2))
    for step in range(3):
        microbatch_loss(parts, x)
        loss(whole, x)
        assert parts.calls[...] == step + 1
    del whole.last
    without_keys = nnx.Not(nnx.RngKey)
    found, expected = (nnx.state(model, without_keys) for model in (parts, whole))
    assert_equal(nnx.to_pure_dict(found), nnx.to_pure_dict(expected), 1e-5)


class WithAttributes(BatchNorm):
    """A batch norm with attributes whose names a wrapper around the layer might also use."""

    seen = called = 7

    def __call__(self, *arguments, **options):
        assert self.seen == self.called == 7
        return super().__call__(*arguments, **options)


@pytest.mark.parametrize("kind", [nnx.Variable, nnx.Intermediate])
def test_state_that_depends_on_the_data_is_that_after_the_last_microbatch(kind):
    """Values that `sow` records are not state, so they remain as they were."""
    model: Any = WithAttributes(3, rngs=nnx.Rngs(0))
    model.last = kind(jnp.zeros(3))

    def loss(model, x):
        model.last[...] = x.mean(0)
        return model(x).mean()

    x = jnp.arange(18.0).reshape(6, 3)
    found = output_of(model, x, lambda model, x: (microbatched(loss, 3)(model, x), model.last[...]))
    expected = x[4:].mean(0) if kind is nnx.Variable else jnp.zeros(3)
    np.testing.assert_array_equal(found[1], expected)


def subclasses(kind):
    return {kind} | {c for child in kind.__subclasses__() for c in subclasses(child)}


def test_calls_leave_no_classes_behind():
    layer = BatchNorm(3, rngs=nnx.Rngs(0))
    flax = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    x = batch((4, 3), 3)[0]
    counts = []
    for _ in range(3):
        microbatched(lambda layer, x: layer(x).mean(), 2)(layer, x)
        for norm in (layer, flax):
            recalibrate(norm, [x])
        gc.collect()
        counts.append(len(subclasses(nnx.Module)))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_split_is_refused():
    def loss(model, x):
        return model(x).mean()

    def layer(**options):
        return BatchNorm(3, rngs=nnx.Rngs(0), **options)

    twice = layer()
    stacked = nnx.vmap(lambda _: layer(), axis_size=5)(None)
    for model, microbatches, message in [
        (layer(), 0, "must be at least 1; got 0"),
        (layer(), 3, "must divide the number of samples, 4; got 3"),
        (nnx.BatchNorm(3, rngs=nnx.Rngs(0)), 2, "must be layers of jaxnorm.nnx"),
        (layer(groups=2), 2, "must be in training mode and have groups=1"),
        (layer(use_running_average=True), 2, "must be in training"),
        (nnx.Sequential(twice, twice), 2, "it calls one batch norm twice"),
        (stacked, 2, r"the statistics of one have shape \(5, 3\): make the layers in a loop"),
        (Unused(layer()), 2, "never called"),
        (Called({"use_running_average": True}), 2, "training mode.*use_running_average=True"),
        (Called({}, use_running_average=None), 2, "training mode.*use_running_average=None"),
        (
            Called({"update_running_average": False}),
            2,
            "and without update_running_average.*=False",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            microbatched(loss, microbatches)(model, jnp.ones((4, 3), "float32"))
    for wrong, message in [
        (lambda model, x: (model(x).mean(), x), "must return one number, a mean; got tuple"),
        (lambda model, x: {"loss": model(x).mean()}, "must return one number, a mean; got dict"),
        (lambda model, x: model(x).mean(0), r"must return one number, a mean; got shape \(3,\)"),
        (lambda model, x: model(x, True).mean(), "one call has use_running_average=True"),
    ]:
        with pytest.raises(ValueError, match=message):
            microbatched(wrong, 2)(layer(), jnp.ones((4, 3), "float32"))


class Unused(nnx.Module):
    def __init__(self, norm):
        self.norm = norm

    def __call__(self, x):
        return x
