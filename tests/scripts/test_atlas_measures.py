"""The training and the measurements of the atlas, compared with numbers computed by hand."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.data.datasets import Images
from experiments.measures import atlas, atlas_findings
from tests.support.recorded import assert_as_recorded, condense

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")


def made_up_program(seen, keys):
    """A program with a weight w and a running average r, which are 0 at first.

    A step changes w to 2w + 1 and r to r + w. All outputs are at distance w + r from 0, so the
    distance between two states is the difference of w + r. With statistics of the whole training
    set instead of running averages, r is 0.
    """

    def state_of(w, r):
        scale = nnx.Param(jnp.array([w, -w / 2]))
        return nnx.State({"norms": nnx.State({0: nnx.State({"scale": scale})})}), r, None

    def weight(state):
        return float(state[0]["norms"][0]["scale"][...][0])

    def step(state, rows):
        w = weight(state)
        seen.append(np.asarray(rows).tolist())
        return state_of(2 * w + 1, state[1] + w), w

    def outputs(state):
        return {"norms.0": jnp.full((5, 2), weight(state) + state[1]) * jnp.array([[0.6, 0.8]])}

    parts: Any = {
        "init": lambda key: keys.append(key) or state_of(0.0, 0.0),
        "step": step,
        "whole_set": lambda state: (state[0], 0.0),
        "evaluate": lambda state: (weight(state) + state[1], 0.25),
        "outputs": outputs,
    }
    return atlas.Program(**parts)


def epochs_of(seed, seen, monkeypatch):
    keys: list[Any] = []
    monkeypatch.setattr(atlas, "FROZEN", 2)
    own: Any = SimpleNamespace(epochs=2, x_train=range(11), batch_size=2, layers=("norms.0",))
    lines = list(atlas.train(own, made_up_program(seen, keys), "RMS norm", seed))
    assert keys == [jax.random.key(seed)]
    return lines


def test_an_epoch_is_measured_from_the_one_before_it(monkeypatch):
    """After five steps, w = 31 and r = 26. After ten steps, w = 1023 and r = 1013."""
    first, second = epochs_of(0, [], monkeypatch)
    # The first entry is the mean of the losses 0 and 1. Every further entry is one loss.
    assert first["loss"] == [0.5, 3, 7, 15]
    assert second["loss"] == [47, 127, 255, 511]
    assert [line["test_loss"] for line in (first, second)] == [31 + 26, 1023 + 1013]
    assert [line["accuracy"] for line in (first, second)] == [0.25, 0.25]
    layers = [line["layers"]["norms.0"] for line in (first, second)]
    expected = {
        "epoch": [31, 1023 - 31],
        "step": [63 - 31, 2047 - 1023],
        # While the weights are frozen, each of two batches adds w to r.
        "floor": [2 * 31, 2 * 1023],
        "moment_bound": [31, 1023 - 31],  # The variances are 0.
        "certificate": [2**0.5 * 31, 2**0.5 * (31 + 1023)],
        "spread": [0, 0],
        "baseline": [0, 0],
    }
    for name, values in expected.items():
        found = [layer[name] for layer in layers]
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-3, err_msg=name)


def test_an_epoch_has_whole_batches_in_an_order_of_its_own(monkeypatch):
    orders = []
    for seed in (0, 1, 0):
        seen: list[list[int]] = []
        epochs_of(seed, seen, monkeypatch)
        # Each epoch asks for eight batches: five for training, one for the further step, and two
        # that update averages while the weights are frozen.
        assert len(seen) == 2 * 8
        for epoch in (seen[:8], seen[8:]):
            rows = [*itertools.chain(*epoch[:5])]
            assert len(set(rows)) == 10
            assert set(rows) < set(range(11))
            assert epoch[5] == epoch[0]
            assert epoch[6:] not in (epoch[:2], epoch[1:3])
            orders.append(rows)
    assert orders[4:] == orders[:2]
    assert len(set(map(str, orders))) == 4


def test_spread_and_baseline_are_of_the_outputs_after_the_epoch():
    y = np.array([0, 0, 0, 5, 5, 5, 100.0])[:, None] * [[0.6, 0.8]]
    parts = [jnp.asarray(y + 7), jnp.asarray(y), *[jnp.asarray(y - 1)] * 3]
    found: Any = atlas._measured("batch norm", parts, [{}, {}])
    spread = np.sqrt(y.var(0).sum())  # the spread ignores the features' means, which are not zero
    np.testing.assert_allclose(found["spread"], spread, rtol=1e-5)
    np.testing.assert_allclose(found["baseline"], 5, rtol=1e-5)
    np.testing.assert_allclose(found["epoch"], 7 * 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(found["step"], 2**0.5, rtol=1e-5)
    assert found["certificate"] is None
    wide: Any = atlas._measured("batch norm", [3 * parts[0], *parts[1:]], [{}, {}])
    assert [wide[name] for name in ("spread", "baseline")] == [found["spread"], found["baseline"]]


@pytest.mark.parametrize(
    ("normalizer", "radii"),
    [  # the largest length of an output vector (two channels), before and after the epoch
        ("unitized, bounded", (2**0.5 * 3 / 0.5, 2**0.5 * 2 / 1)),
        ("RMS norm", (2**0.5 * 3, 2**0.5 * 2)),
        ("DyT", (10**0.5, 5**0.5)),  # tanh is at most 1
        ("Derf", (10**0.5, 5**0.5)),
    ],
)
def test_a_certificate_has_both_radii_and_the_distance_of_biases(normalizer, radii):
    alphas = ([0.5], [7.0]) if "unitized" in normalizer else (2.0, 0.1)
    before, after = (
        {"scale": jnp.array(scale), "bias": jnp.array(bias), "alpha": jnp.array(alpha)}
        for scale, bias, alpha in zip(
            ([1.0, -3.0], [2.0, 1.0]), ([5.0, 1.0], [2.0, -3.0]), alphas, strict=True
        )
    )
    found: Any = atlas.certificate(normalizer, (9, 2, 2, 2), before, after)
    np.testing.assert_allclose(found, 4**0.5 * (sum(radii) + 5), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "count"),
    [  # elements of kernels and biases, with a scale and a bias for each normalized channel
        (atlas.ConvNet, 9 * (16 + 16 * 32 + 32 * 32) + 80 + 32 * 10 + 10 + 2 * 80),
        (
            atlas.Reader,
            (128 + 32) * 32  # The embeddings of characters and positions.
            + 2 * 4 * (32 * 32 + 32)  # The layers for queries, keys, values and outputs.
            + 2 * (2 * 32 * 128 + 128 + 32)
            + 32 * 128
            + 128
            + 5 * 2 * 32,  # each block has two norms, and the head has one
        ),
    ],
)
def test_each_normalization_of_a_network_has_its_own_parameters(build, count):
    network = nnx.eval_shape(lambda: build(norm=nnx.LayerNorm, rngs=nnx.Rngs(0)))
    parameters = jax.tree.leaves(nnx.state(network, nnx.Param))
    assert sum(x.size for x in parameters) == count


class Small(nnx.Module):
    """A normalization and a dense layer."""

    def __init__(self, *, norm, rngs):
        self.norms = nnx.List([norm(3, rngs=rngs)])
        self.head = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norms[0](x))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(atlas, "PROBE", 3)
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (1220, 3)).astype(np.float32)
    x[1000:] += 4  # the first 1,000 samples have other moments than all samples
    y = rng.integers(0, 4, 1220)
    return atlas.Task(Small, x[:1200], y[:1200], x[1200:], y[1200:], ("norms.0",), epochs=1)


def flat(state):
    return {"/".join(map(str, k)): np.array(v[...]) for k, v in nnx.to_flat_state(state)}


def loss_by_hand(w, x, y, moments=None):
    mean, var = moments or (x.mean(0), x.var(0))
    h = (x - mean) / jnp.sqrt(var + 1e-5) * w["norms/0/scale"] + w["norms/0/bias"]
    logits = h @ w["head/kernel"] + w["head/bias"]
    log_p = logits - jax.scipy.special.logsumexp(logits, axis=1, keepdims=True)
    return -log_p[jnp.arange(len(y)), y].mean(), logits


@pytest.mark.parametrize("name", ["RMS norm", "batch norm"])
def test_each_seed_begins_with_weights_of_its_own(name, small):
    norm = atlas.norms(per_pixel=False)[name]
    ours = atlas.program(small, norm)
    found = [flat(ours.init(jax.random.key(seed))[0]) for seed in (0, 3)]
    for seed, weights in zip((0, 3), found, strict=True):
        network = small.build(norm=norm, rngs=nnx.Rngs(seed))
        expected = flat(nnx.state(network, nnx.Param))
        assert weights.keys() == expected.keys()
        for key in weights:
            np.testing.assert_array_equal(weights[key], expected[key])
    assert (found[0]["head/kernel"] != found[1]["head/kernel"]).all()


@jax.numpy_rank_promotion("allow")
def test_a_network_of_the_atlas_is_trained_by_adam_and_measured_with_running_averages(small):
    ours = atlas.program(small, atlas.norms(per_pixel=False)["batch norm"])
    state = ours.init(jax.random.key(5))
    w = flat(state[0])
    mean, var = small.x_train[:1000].mean(0), small.x_train[:1000].var(0)
    first, second = ({name: 0 * leaf for name, leaf in w.items()} for _ in range(2))
    for t, rows in enumerate((np.arange(1000, 1100), np.arange(50, 90)), 1):
        x, y = small.x_train[rows], small.y_train[rows]
        (value, _), g = jax.value_and_grad(loss_by_hand, has_aux=True)(w, x, y)
        state, found = ours.step(state, jnp.asarray(rows))
        np.testing.assert_allclose(found, value, rtol=1e-4)
        for name in w:  # Adam, Algorithm 1 of Kingma and Ba (2015)
            first[name] = 0.9 * first[name] + 0.1 * g[name]
            second[name] = 0.999 * second[name] + 0.001 * g[name] ** 2
            m, v = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
            w[name] = w[name] - 3e-3 * m / (np.sqrt(v) + 1e-8)
        n = len(rows)
        mean, var = 0.9 * mean + 0.1 * x.mean(0), 0.9 * var + 0.1 * x.var(0) * n / (n - 1)
    for name, leaf in flat(state[0]).items():
        np.testing.assert_allclose(leaf, w[name], atol=3e-5, err_msg=name)
    value, logits = loss_by_hand(w, small.x_test, small.y_test, (mean, var))
    test_loss, accuracy = ours.evaluate(state)
    np.testing.assert_allclose(test_loss, value, rtol=1e-3)
    np.testing.assert_allclose(accuracy, np.mean(np.argmax(logits, 1) == small.y_test), rtol=1e-6)
    moments = {False: (mean, var), True: (small.x_train.mean(0), small.x_train.var(0))}
    for whole, (mean, var) in moments.items():
        seen = ours.outputs(ours.whole_set(state) if whole else state)["norms.0"]
        h = (small.x_test[:3] - mean) / np.sqrt(var + 1e-5)
        np.testing.assert_allclose(seen, h * w["norms/0/scale"] + w["norms/0/bias"], atol=2e-3)


def test_statistics_of_the_whole_set_are_of_all_training_samples(small):
    norm = atlas.norms(per_pixel=False)["batch norm"]
    _, params, rest = nnx.split(small.build(norm=norm, rngs=nnx.Rngs(0)), nnx.Param, ...)
    found = flat(atlas.program(small, norm).whole_set((params, rest))[1])
    np.testing.assert_allclose(found["norms/0/mean"], small.x_train.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found["norms/0/var"], small.x_train.var(0), rtol=2e-3)


def test_the_outputs_for_a_text_are_of_its_last_token(small):
    class Table(Small):
        def __call__(self, x):
            return self.head(self.norms[0](jax.nn.one_hot(x, 3)))

    x = np.array([[0, 1], [2, 0], [1, 1], [0, 2]], np.int32)
    own = atlas.Task(Table, x, x, x, x, ("norms.0",), epochs=1)
    ours = atlas.program(own, atlas.norms(per_pixel=True)["RMS norm"])
    found = ours.outputs(ours.init(jax.random.key(0)))["norms.0"]
    np.testing.assert_allclose(found, 3**0.5 * np.eye(3)[[1, 0, 1]], rtol=1e-5)


def test_held_out_texts_are_no_texts_of_the_training():
    own = atlas.texts(40)
    assert own.x_train.shape == (40, 32)
    assert own.x_test.shape == (500, 32)
    for x, y in ((own.x_train, own.y_train), (own.x_test, own.y_test)):
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])  # the target is the next character
        assert (x[:, 0] != y[:, 0]).any()
    fewer = atlas.texts(20)
    np.testing.assert_array_equal(fewer.x_test, own.x_test)
    np.testing.assert_array_equal(fewer.x_train, own.x_train[:20])
    both = {row.tobytes() for row in own.x_train} & {row.tobytes() for row in own.x_test}
    assert len(both) < 10  # some texts of the manual repeat, such as the spaces of tables


def test_a_unitized_layer_keeps_the_scale_of_its_outputs_and_alpha_its_range(key):
    """For alpha 9, which is clipped to 1, an output of c channels has the squared length c."""
    x = 3 + 2 * jax.random.normal(key, (6, 2, 4, 5), jnp.float32)
    for per_pixel, axes, pixels in ((True, (3,), 1), (False, (1, 2, 3), 8)):
        layer = atlas.norms(per_pixel=per_pixel)["unitized, bounded"](5, rngs=nnx.Rngs(0))
        np.testing.assert_allclose(layer.alpha[...], 0.5)
        layer.alpha[...] = jnp.full_like(layer.alpha[...], 9.0)
        lengths = np.square(layer(x)).sum(axes)
        np.testing.assert_allclose(lengths, 5 * pixels, rtol=1e-3)
        assert layer.momentum == 0.9
        outputs = []
        for alpha in (0.2, 0.1, 0.03, -2.0):  # values below 0.1 are clipped to 0.1
            layer.alpha[...] = jnp.full_like(layer.alpha[...], alpha)
            outputs.append(np.asarray(layer(x)))
        assert np.abs(outputs[0] - outputs[1]).max() > 0.01
        np.testing.assert_array_equal(outputs[2:], [outputs[1]] * 2)


def test_a_task_has_its_share_of_the_data(monkeypatch):
    """A task with the size 36 has 36 training and 2,000 test images, or 9 training texts."""
    x, y = np.arange(2100.0), np.arange(2100)
    seen: list[Any] = []
    images = Images("made", "", 10, x, y, -x, y + 5)

    def load(name, data_dir):
        seen.append((name, data_dir))
        return images

    monkeypatch.setattr(atlas.datasets, "load", load)
    folder = Path("a folder of this test")
    for name in atlas.TASKS[:2]:
        own = atlas.task(name, folder, 36)
        parts = (x[:36], y[:36], -x[:2000], y[:2000] + 5)
        for found, expected in zip(own[1:5], parts, strict=True):
            np.testing.assert_array_equal(found, expected)
        assert (own.epochs, own.batch_size) == (5, 128)
    assert seen == [("mnist", folder), ("fashion_mnist", folder)]
    own = atlas.task(atlas.TASKS[2], folder, 36)
    assert (len(own.x_train), len(own.x_test), own.epochs, own.batch_size) == (9, 500, 8, 32)


def test_a_sample_of_a_unitized_layer_is_a_token_only_for_texts(monkeypatch):
    monkeypatch.setattr(atlas, "task", lambda *given: given)
    monkeypatch.setattr(atlas, "program", lambda own, norm: (own, norm(4, rngs=nnx.Rngs(0))))
    for name in atlas.TASKS:
        found: Any = atlas._program(name, "unitized", None, 47)
        own, layer = found
        assert own == (name, None, 47)
        assert layer.per_pixel == (name == atlas.TASKS[2])
    atlas._program.cache_clear()


def test_convolutions_start_with_the_variance_of_he():
    norm = atlas.norms(per_pixel=True)["RMS norm"]
    for conv in atlas.ConvNet(norm=norm, rngs=nnx.Rngs(0)).convs:
        kernel = np.asarray(conv.kernel[...])
        error = (2 / kernel.size) ** 0.5  # relative error of a Gaussian sample's variance
        np.testing.assert_allclose(kernel.var(), 2 / len(kernel), rtol=4 * error)


def run(epochs):
    """A run with given epochs; each layer is (spread, shift over an epoch, shift over a step)."""
    return {
        "task": "t",
        "normalizer": "n",
        "seed": 0,
        "epochs": [
            {
                "layers": {
                    str(i): {"spread": s, "epoch": e, "step": d, "floor": e / 4}
                    | {"moment_bound": 6 * e, "certificate": None}
                    for i, (s, e, d) in enumerate(layers)
                },
                "loss": loss,
                "test_loss": loss[-1] / 2,
                "accuracy": loss[0] / 8,
            }
            for layers, loss in epochs
        ],
    }


MEASURED = ("spread", "epoch", "step", "baseline", "floor", "moment_bound", "certificate")


def test_findings_of_random_runs_are_as_recorded():
    """Runs of two tasks, three normalizers and three seeds, and an incomplete third task."""
    rng, runs = np.random.default_rng(0), []
    whole = itertools.product("tu", range(3), "abc")
    for task, seed, name in [*whole, ("v", 0, "a"), ("v", 0, "b")]:
        epochs = [
            {
                "loss": rng.uniform(1, 2, 4),
                "test_loss": rng.uniform(1, 2),
                "accuracy": rng.uniform(),
                "layers": {
                    layer: dict(zip(MEASURED, rng.uniform(1, 9, len(MEASURED)), strict=True))
                    | ({"certificate": None} if name == "b" else {})
                    for layer in ("norms.0", "norms.1")
                },
            }
            for _ in range(2)
        ]
        runs.append({"task": task, "normalizer": name, "seed": seed, "epochs": epochs})
    assert_as_recorded("runs/atlas_findings", condense(atlas_findings.findings(runs)))


def test_a_shift_is_the_geometric_mean_over_layers_and_epochs():
    found = run([(((2, 2, 4), (1, 8, 2)), [3.0, 1.0]), (((4, 8, 1), (1, 1, 2)), [5.0, 7.0])])
    # The ratios over an epoch are 1, 8, 2 and 1.
    assert atlas_findings.shift_of(found, "epoch") == pytest.approx(16**0.25)
    # The ratios over a step are 2, 2, ¼ and 2.
    assert atlas_findings.shift_of(found, "step") == pytest.approx(2**0.25)
    (row,) = atlas_findings.rows([found])
    means = {name: row[name]["mean"] for name in atlas_findings._MEASURES}
    assert means == pytest.approx(
        {
            "accuracy": 5 / 8,  # accuracy and test loss come from the last epoch
            "test_loss": 3.5,
            "first_epoch_loss": 2.0,
            "epoch_shift": 2.0,
            "step_shift": 2**0.25,
            "floor": 1 / 4,  # the noise floor of the last layer, divided by its spread
            "moment_bound": 6,
            "certificate": None,
        }
    )
    assert row["accuracy"]["stderr"] is None
    runs = [{"value": 1.0}, {"value": 3.0}]
    found = atlas_findings._mean(runs, lambda run: run["value"])
    assert found == {"mean": 2.0, "stderr": 1.0}
    runs[0]["value"] = np.nan  # this seed has no value
    found = atlas_findings._mean(runs, lambda run: run["value"])
    assert found == {"mean": None, "stderr": None}


def test_runs_of_another_size_folder_or_code_are_not_resumed(monkeypatch):
    found = [
        atlas.fingerprint(size, folder)
        for size, folder in ((8, None), (9, None), (8, atlas.Path("a")), (8, atlas.Path("b")))
    ]
    monkeypatch.setattr(atlas.provenance, "code", lambda: [atlas.Path(__file__)])
    found.append(atlas.fingerprint(8, None))
    assert len(set(found)) == 5
