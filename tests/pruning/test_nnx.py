"""Tests `pruning.nnx.prune` for NNX models, and `pruning.prune` for all frameworks."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pruning
from jaxnorm.models import MLP, CifarResNet
from jaxnorm.nnx import recalibrate
from pruning.channels import mask_channels
from tests.support.exported import FRAMEWORKS

pytestmark = pytest.mark.usefixtures("promotion")
RNG = np.random.default_rng(0)
SEED = RNG.bit_generator.state


class Mobile(nnx.Module):
    """A model with depthwise and transposed convolutions, group norm, dropout, LinearGeneral."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.depth = nnx.Conv(8, 16, (3, 3), feature_group_count=8, rngs=rngs)
        self.groups = nnx.GroupNorm(16, num_groups=4, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 12, (2, 2), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.general = nnx.LinearGeneral(12, (2, 3), rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.norm(self.first(x)))
        h = nnx.relu(self.up(nnx.relu(self.groups(self.depth(h)))))
        return self.general(self.dropout(h).mean((1, 2)))


class Attends(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(4, 8, decode=False, rngs=rngs)
        self.hidden, self.out = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.gelu(self.hidden(x + self.attention(x))))


class Recurs(nnx.Module):
    def __init__(self, cell, rngs):
        self.rnn = nnx.RNN(cell(3, 8, rngs=rngs))
        self.out = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        states: Any = self.rnn(x)
        return self.out(states)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.norm = nnx.GroupNorm(16, num_groups=4, rngs=rngs)

    def __call__(self, x):
        return x + self.out(nnx.relu(self.norm(self.hidden(x))))


class Scans(nnx.Module):
    """Layers of one shape in a scan, whose arrays `nnx.vmap` stacks."""

    def __init__(self, rngs):
        self.layers = nnx.split_rngs(splits=2)(nnx.vmap(Layer))(rngs)
        self.out = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        step = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.out(step(x, self.layers))


def images(side=8):
    return jnp.asarray(RNG.normal(size=(4, side, side, 3)), "float32")


def sequences(size):
    return jnp.asarray(RNG.normal(size=(4, 5, size)), "float32")


MODELS: Any = {
    "mlp": (lambda r: MLP(inputs=5, widths=(8, 6), classes=3, rngs=r), lambda: sequences(5)[:, 0]),
    "resnet": (lambda r: CifarResNet(8, classes=4, rngs=r), images),
    "depthwise, group norm, transposed": (Mobile, images),
    "attention": (Attends, lambda: sequences(8)),
    "layers in a scan": (Scans, lambda: sequences(8)),
    "lstm": (partial(Recurs, nnx.LSTMCell), lambda: sequences(3)),
    "fused lstm": (partial(Recurs, nnx.OptimizedLSTMCell), lambda: sequences(3)),
    "gru": (partial(Recurs, nnx.GRUCell), lambda: sequences(3)),
    "simple": (partial(Recurs, nnx.SimpleCell), lambda: sequences(3)),
}


def select_heads(scores, ratio=0.5, **options):
    """The masks of `select_layerwise`, except that groups of two channels keep both.

    Attention divides by the square root of the width of queries, so the width of queries must not
    change.
    """
    halves = pruning.channels.select_layerwise(scores, ratio=ratio)
    return [half if len(half) > 2 else np.ones(2, bool) for half in halves]


def built(name):
    """A model with random arrays, including statistics, and its inputs."""
    RNG.bit_generator.state = SEED  # the arrays then do not depend on earlier tests
    build, inputs = MODELS[name]
    model = build(nnx.Rngs(0))
    drawn = lambda p: jnp.asarray(RNG.uniform(0.5, 1, p.shape), p.dtype)  # noqa: E731
    nnx.update(model, jax.tree.map(drawn, nnx.state(model, nnx.BatchStat)))
    return model, inputs()


@pytest.mark.parametrize("asked", [{"ratios": [0.5]}, {"budget": 0.6}], ids=["ratio", "budget"])
@pytest.mark.parametrize("name", MODELS)
def test_a_smaller_model_computes_what_the_masked_one_does(name, asked):
    model, x = built(name)
    before = jax.tree.map(jnp.copy, nnx.state(model))
    asked = {"ratios": [0.5], "select": select_heads} if name == "attention" else asked
    small = pruning.nnx.prune(model, x, **asked, fold=False)
    assert type(small) is type(model)
    jax.tree.map(np.testing.assert_array_equal, plain(nnx.state(model)), plain(before))
    apply, params = pruning.nnx.evaluation(model)
    whole = pruning.prune(apply, params, x, **asked, fold=False)
    assert pruning.cost(apply, whole.params, x).macs < 0.8 * pruning.cost(apply, params, x).macs
    masked = mask_channels(params, whole.groups, whole.keep)
    expected = jax.jit(apply)(masked, x)
    for found in (
        nnx.jit(lambda model, x: model(x))(small, x),
        jax.jit(whole.apply)(whole.params, x),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def plain(state):
    """The leaves of a state, in which random keys are replaced by their integers."""
    return [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(state)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_layers_say_the_widths_that_their_arrays_have(name):
    """The attributes of each layer, which `repr` shows, equal the sizes of its arrays."""
    model, x = built(name)
    small = pruning.nnx.prune(model, x, ratios=[0.5], select=select_heads)
    pairs: Any = zip(nnx.iter_modules(small), nnx.iter_modules(model), strict=True)
    for (_, a), (_, b) in pairs:
        kernel: Any = getattr(a, "kernel", None)
        if isinstance(a, nnx.Linear):
            assert (a.in_features, a.out_features) == kernel.shape[-2:]
        elif isinstance(a, nnx.Conv | nnx.ConvTranspose):
            assert a.kernel_shape == kernel.shape
            assert a.out_features == kernel.shape[-1]
        elif isinstance(a, nnx.LinearGeneral):
            assert (*a.in_features, *a.out_features) == kernel.shape
        elif isinstance(a, nnx.GroupNorm):
            assert a.num_groups * a.group_size == nnx.state(a)["scale"].shape[-1]
            assert a.group_size == b.group_size
        elif isinstance(a, nnx.MultiHeadAttention):
            assert (a.num_heads, a.qkv_features, b.num_heads) == (2, 4, 4)
    shapes = re.findall(r"(?:features|num_groups|num_heads)=(\d+)", repr(small))
    assert shapes != re.findall(r"(?:features|num_groups|num_heads)=(\d+)", repr(model))


def test_retraining_is_of_models_in_place_and_ends_in_evaluation():
    model, x = built("mlp")
    model.train()
    seen = []

    def fine_tune(small, step):
        small.train()
        small(x)
        small.head.kernel[...] = 2 * small.head.kernel[...]
        seen.append((step, small.head.kernel.shape))
        return small  # a function is allowed to return the model that it changed

    small = pruning.nnx.prune(
        model,
        x,
        ratios=pruning.schedules.iterative(0.5, steps=2),
        recalibrate=lambda small: recalibrate(small, [x]),
        fine_tune=fine_tune,
        callback=lambda step, small: seen.append(small(x).shape),
    )
    assert seen == [(0, (5, 3)), (4, 3), (1, (3, 3)), (4, 3)]
    # In evaluation mode, the outputs of one sample do not depend on the other samples.
    once = small(x[:1])
    np.testing.assert_allclose(small(x)[:1], once, rtol=1e-4, atol=1e-5)
    small.train()
    assert abs(small(x)[:1] - small(x[:1])).max() > 1e-3


def test_the_large_model_stays_in_training_mode():
    model, _ = built("mlp")
    model.train()
    before = jax.tree.map(np.asarray, nnx.state(model))
    pruning.nnx.evaluation(model)
    assert [norm.use_running_average for norm in model.norms] == [False, False]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)


def test_a_model_is_read_from_its_checkpoint(tmp_path):
    model, x = built("depthwise, group norm, transposed")
    small = pruning.nnx.prune(model, x, ratios=[0.5], checkpoint_dir=tmp_path)
    abstract = nnx.eval_shape(lambda: Mobile(nnx.Rngs(0)))
    for large in (model, abstract):
        np.testing.assert_array_equal(pruning.nnx.load_pruned(tmp_path, large)(x), small(x))


def test_a_model_that_is_read_has_the_sizes_of_its_arrays(tmp_path):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(4, 6, rngs=rngs), nnx.relu, nnx.Linear(6, 2, rngs=rngs))
    apply, params = pruning.nnx.evaluation(model)
    x = jnp.ones((1, 4), "float32")
    pruning.save_pruned(tmp_path, pruning.prune(apply, params, x, ratios=[0.5], fold=False))
    first, _, last = pruning.nnx.load_pruned(tmp_path, model).layers
    assert (first.in_features, first.out_features) == (4, 3)
    assert (last.in_features, last.out_features) == (3, 2)


def test_a_resized_network_is_not_read_as_a_model(tmp_path):
    def build():
        rngs = nnx.Rngs(0)
        layers = (
            nnx.Linear(4, 6, rngs=rngs),
            nnx.LayerNorm(6, rngs=rngs),
            nnx.Linear(6, 2, rngs=rngs),
        )
        return nnx.Sequential(*layers)

    apply, params = pruning.nnx.evaluation(build())
    x = jnp.ones((1, 4), "float32")
    pruning.save_pruned(tmp_path, pruning.prune(apply, params, x, ratios=[0.5], resize=True))
    with pytest.raises(
        ValueError, match=r"must have a model that was pruned without resize.*like="
    ):
        pruning.nnx.load_pruned(tmp_path, build())


def test_an_array_is_named_by_the_attributes_of_its_module():
    model = MLP(inputs=4, widths=(6,), classes=3, rngs=nnx.Rngs(0))
    x = np.ones((1, 4), np.float32)
    (group,) = pruning.coupled_channels(*pruning.nnx.evaluation(model), x)
    names = {position.path for position in group.positions}
    assert {"layers/0/kernel", "head/kernel"} <= names
    assert all(name.endswith(("/kernel", "/bias", "/scale", "/mean", "/var")) for name in names)


def test_a_module_is_not_resized():
    model, x = built("mlp")
    for resize in (True, False):
        with pytest.raises(TypeError, match=r"resize must not be given, .*evaluation\(model\)"):
            pruning.nnx.prune(model, x, ratios=[0.5], resize=resize)
    pruned = pruning.prune(*pruning.nnx.evaluation(model), x, ratios=[0.5], resize=True)
    assert pruned.apply(pruned.params, x).shape == (4, 3)


def test_a_refused_width_names_the_call_that_resizes():
    """Half of the features of each head are removed, which would change the factor 1/√d."""
    layer = nnx.MultiHeadAttention(num_heads=4, in_features=8, decode=False, rngs=nnx.Rngs(0))
    x = jnp.ones((2, 3, 8))
    call = r"pruning\.prune\(\*pruning\.nnx\.evaluation\(model\), \.\.\., resize=True\)\)$"
    with pytest.raises(ValueError, match=rf"keep these channels, or run it .*{call}"):
        pruning.nnx.prune(layer, x, ratios=[0.5])
    pruned = pruning.prune(*pruning.nnx.evaluation(layer), x, ratios=[0.5], resize=True)
    assert pruned.apply(pruned.params, x).shape == x.shape


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize("fold", [False, True])
def test_a_pruned_network_runs_whichever_way_it_was_cut(framework, resize, fold):
    """A pruned network gives the same outputs compiled, batched and as a pytree."""
    apply, params, x = FRAMEWORKS[framework]()
    pruned = pruning.prune(apply, params, x, ratios=[0.5], resize=resize, fold=fold)
    expected = pruned.apply(pruned.params, x)
    assert expected.shape == apply(params, x).shape
    near = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    near(jax.jit(pruned.apply)(pruned.params, x), expected)
    near(jax.jit(lambda pruned, x: pruned.apply(pruned.params, x))(pruned, x), expected)
    each = jax.vmap(pruned.apply, (None, 0))(pruned.params, x[:, None])
    near(each[:, 0], expected)
    total = lambda pruned: pruned.apply(pruned.params, x).sum()  # noqa: E731
    gradient = jax.grad(total, allow_int=True)(pruned)
    assert isinstance(gradient, pruning.Pruned)
    assert jax.tree.structure(gradient.params) == jax.tree.structure(pruned.params)
    assert [a.shape for a in jax.tree.leaves(gradient)] == [
        a.shape for a in jax.tree.leaves(pruned.params)
    ]
    size = sum(abs(g).sum() for g in jax.tree.leaves(gradient) if g.dtype != jax.dtypes.float0)
    assert size > 0


@pytest.mark.usefixtures("unchecked")
def test_a_function_is_no_model():
    function: Any = abs
    with pytest.raises(
        TypeError, match=r"model must be a flax\.nnx\.Module; got builtin_function_or_method: give"
    ):
        pruning.nnx.prune(function, jnp.ones((1, 4)), ratios=[0.5])


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(3, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.b = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.b(self.dropout(nnx.relu(self.a(x))))


class TwoInputs(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = (nnx.Linear(3, 6, rngs=rngs) for _ in range(2))
        self.out = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x, train, y, function):
        assert not train
        return self.out(jnp.tanh(self.a(x)) * getattr(jnp, function)(self.b(y)))


def test_a_model_gets_all_of_its_inputs_and_flags():
    model = TwoInputs(nnx.Rngs(0))
    x, y = RNG.normal(3, 2, (2, 5, 3))
    apply, params = pruning.nnx.evaluation(model)
    inputs = x, False, y, "exp"
    np.testing.assert_array_equal(apply(params, *inputs), model(*inputs))
    small = pruning.nnx.prune(model, *inputs, ratios=[0.5])
    assert small.out.in_features == 3
    assert small(*inputs).shape == (5, 2)


def test_changes_in_place_reach_the_next_function_the_next_step_and_the_result():
    """Each step calls `recalibrate`, `fine_tune` and `callback` in this order."""
    model: Any = Plain(nnx.Rngs(0))
    x, seen = sequences(3)[:, 0], []

    def change(name, factor):
        def changed(small, *step):
            seen.append((name, *step, small.a.out_features, float(small.b.bias[...][0])))
            small.b.bias[...] = factor * small.b.bias[...] + 1

        return changed

    def show(step, small):
        seen.append(("callback", step, small.a.out_features, float(small.b.bias[...][0])))
        # Dropout is off, because the model is in evaluation mode.
        np.testing.assert_array_equal(small(x), small(x))

    options: Any = {"recalibrate": change("recalibrate", 2), "fine_tune": change("fine_tune", 3)}
    model.train()
    small = pruning.nnx.prune(model, x, ratios=[0.25, 0.5], fold=False, callback=show, **options)
    assert seen == [
        *(("recalibrate", 6, 0), ("fine_tune", 0, 6, 1), ("callback", 0, 6, 4)),
        *(("recalibrate", 4, 4), ("fine_tune", 1, 4, 9), ("callback", 1, 4, 28)),
    ]
    assert small.b.bias[...].tolist() == [28, 28]
    assert model.b.bias[...].tolist() == [0, 0]
    assert (model.a.out_features, small.a.out_features) == (8, 4)
    lengths = np.linalg.norm(np.asarray(model.a.kernel[...]), axis=0)
    kept = np.sort(np.argsort(lengths)[4:])
    np.testing.assert_array_equal(small.a.kernel[...], model.a.kernel[...][:, kept])


class Counting(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.count[...] += 1
        return self.count[...] * x


def test_what_a_call_changes_in_a_model_stays_out_of_its_arrays():
    apply, params = pruning.nnx.evaluation(Counting())
    found = [float(apply(params, jnp.ones(()))) for _ in range(2)]
    assert found == [1.0, 1.0]
    assert float(jax.tree.leaves(params)[0]) == 0.0


def test_labels_in_the_batches_of_a_repair_are_refused():
    model = MLP(inputs=4, widths=(8,), classes=2, rngs=nnx.Rngs(0))
    x, y = np.ones((4, 4), "float32"), np.ones(4)
    repair = partial(pruning.channels.least_squares, batches=[(x, y), (x + 1, y)])
    with pytest.raises(ValueError, match="as the model reads, 1 without labels; got 2"):
        pruning.nnx.prune(model, x, ratios=[0.5], repair=repair)
