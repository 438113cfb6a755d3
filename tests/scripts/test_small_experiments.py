"""Small networks outside the recipes: layers, steps and statistics, compared with NumPy."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pruning
import repair
from experiments.cli import InputError
from experiments.data import datasets
from experiments.measures import filter_tests, recalibration, repair_digits, repair_images
from experiments.training.scan import scan_steps
from pruning import channels
from tests.support.recorded import assert_as_recorded, condense

pytestmark = pytest.mark.usefixtures("users_jax")


def test_every_batch_is_a_step_with_momentum():
    """Each batch is a number b. The loss is ½ (w − b)². The velocity is v ← 0.9 v + gradient."""
    batches = jnp.array([1.0, 4.0, -2.0])
    optimizer = optax.sgd(0.1, momentum=0.9)
    w, v = 3.0, 0.0
    for b in (1.0, 4.0, -2.0):
        v = 0.9 * v + (w - b)
        w -= 0.1 * v
    start = jnp.float32(3)
    found, state = scan_steps(
        lambda w, b: 0.5 * (w - b) ** 2, optimizer, start, optimizer.init(start), batches
    )
    np.testing.assert_allclose(found, w, rtol=1e-6)
    np.testing.assert_allclose(optax.tree.get(state, "trace"), v, rtol=1e-6)


def padded_products(x, kernel):
    """A 3×3 convolution with zero padding, by a loop over pixels."""
    n, height, width, _ = x.shape
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros((n, height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            out[:, i, j] = np.einsum("nhwc,hwcd->nd", around[:, i : i + 3, j : j + 3], kernel)
    return out


def standardized(h, scale, bias, mean=None, var=None):
    mean = h.mean(axis=tuple(range(h.ndim - 1))) if mean is None else mean
    var = h.var(axis=tuple(range(h.ndim - 1))) if var is None else var
    return (h - mean) / np.sqrt(var + 1e-5) * scale + bias


def test_a_setting_is_summed_up_over_layers_and_then_over_seeds():
    def row(seed, layer, value, fails):
        sizes = {name: value * (i + 1) for i, name in enumerate(filter_tests.SIZES)}
        return {"seed": seed, "layer": layer, "fails": fails, **sizes}

    before = [row(0, 2, 1.0, []), row(0, 3, 3.0, ["normal"])]
    before += [row(1, 2, 4.0, ["normal"]), row(1, 3, 8.0, ["normal", "spherical"])]
    after = [row(seed, layer, 10.0, []) for seed in (0, 1) for layer in (2, 3)]
    found = filter_tests.summary(
        {"group": "g", "seconds": 2.0, "accuracy": [0.5, 0.9], "before": before, "after": after}
    )
    assert found["before"]["ks"]["values"] == [2, 6]
    assert found["before"]["ks"]["stderr"] == pytest.approx(2)
    assert found["before"]["shape"]["mean"] == 8  # `row` makes `shape` twice as large as `ks`
    assert found["before"]["layers"] == 4
    assert found["before"]["fails"]["normal"] == 3
    assert found["before"]["fails"]["spherical"] == 1
    assert found["after"]["ks"]["mean"] == 10
    assert found["accuracy"]["mean"] == pytest.approx(0.7)


def statistics(mean, var):
    return SimpleNamespace(mean=np.array(mean), var=np.array(var))


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        ("means", [(5.0, 2.0), (6.0, 4.0)]),
        ("variances", [(1.0, 7.0), (3.0, 8.0)]),
        ("stem", [(5.0, 7.0), (3.0, 4.0)]),
        ("halfway", [(3.0, 4.5), (4.5, 6.0)]),
    ],
)
def test_statistics_are_mixed_as_they_are_named(mix, expected):
    old = [statistics(1.0, 2.0), statistics(3.0, 4.0)]
    fresh = [statistics(5.0, 7.0), statistics(6.0, 8.0)]
    for i, (a, b) in enumerate(zip(old, fresh, strict=True)):
        getattr(recalibration, mix)(i, a, b)
    assert [(float(a.mean), float(a.var)) for a in old] == expected


@pytest.mark.parametrize("count", [3, 500, 1499, 1700])
def test_every_test_image_of_a_repaired_network_is_classified(count):
    """Each image is a number; the fake network classifies the even numbers correctly."""
    x = np.arange(count, dtype=np.float32)[:, None]
    labels = np.arange(count) % 3
    graph: Any = "graph"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            repair_images,
            "applied",
            lambda graph: (
                lambda tree, part: np.eye(4)[
                    np.where(part[:, 0] % 2 == 0, part[:, 0] % 3, 3).astype(int)
                ]
            ),
        )
        found = repair_images.correct(graph, None, (x, labels))
    np.testing.assert_array_equal(found, np.arange(count) % 2 == 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"images": 75, "batch": 50},
            "--images must be a multiple of --batch, 50, and of 25; got 75",
        ),
        ({"images": 60, "batch": 30}, "--images must be a multiple of --batch, 30, and of 25"),
    ],
)
def test_images_of_a_repair_fill_their_batches(changes, sentence, tmp_path):
    options = repair.Options("resnet20", tmp_path / "w", tmp_path, out=tmp_path / "out", **changes)
    with pytest.raises(InputError, match=sentence):
        repair.main(options)


@jax.numpy_rank_promotion("allow")
def test_networks_on_digits_normalize_by_their_batch_or_by_what_they_keep():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (6, 4, 4, 2)).astype(np.float32)
    tree: Any = {
        f"layer{i}": {
            "kernel": rng.normal(size=(3, 3, n, m)),
            "scale": rng.normal(2, 1, m),
            "bias": rng.normal(1, 1, m),
            "mean": rng.normal(1, 1, m),
            "var": rng.uniform(1, 5, m),
        }
        for i, (n, m) in enumerate(((2, 5), (5, 3)))
    }
    tree["head"] = {"kernel": rng.normal(size=(3, 10)), "bias": rng.normal(size=10)}
    given = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)
    for fresh in (True, False):
        h, moments = x.astype(float), []
        for i in range(2):
            layer = tree[f"layer{i}"]
            h = padded_products(h, layer["kernel"])
            moments.append((h.mean((0, 1, 2)), h.var((0, 1, 2))))
            used = moments[-1] if fresh else (layer["mean"], layer["var"])
            h = np.maximum(standardized(h, layer["scale"], layer["bias"], *used), 0)
        expected = h.mean((1, 2)) @ tree["head"]["kernel"] + tree["head"]["bias"]
        found, after = repair_digits.logits(given, jnp.asarray(x), fresh=fresh)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * scale)
        for i, (mean, var) in enumerate(moments):
            np.testing.assert_allclose(after[f"layer{i}"]["mean"], mean, rtol=1e-3, atol=1e-2)
            np.testing.assert_allclose(after[f"layer{i}"]["var"], var, rtol=1e-3, atol=1e-2)
    running = repair_digits.logits(given, jnp.asarray(x))[0]
    np.testing.assert_array_equal(repair_digits.apply(given, jnp.asarray(x)), running)
    np.testing.assert_array_equal(
        given["layer0"]["mean"], jnp.asarray(tree["layer0"]["mean"], jnp.float32)
    )


def test_networks_on_digits_see_whole_batches_in_an_order_of_each_epoch(monkeypatch):
    rows: list[Any] = []

    def training(steps, rate):
        assert (steps, rate) == (6, 0.25)
        return lambda tree, x, y, order: rows.extend(order.tolist()) or tree

    monkeypatch.setattr(repair_digits, "training", training)
    monkeypatch.setattr(repair_digits, "recalibrated", lambda tree, x: ("fresh", len(x)))
    x, y = np.zeros((140, 2)), np.zeros(140)
    assert repair_digits.train({}, x, y, 3, 0.25) == ("fresh", 140)
    assert [len(row) for row in rows] == [64] * 6
    epochs = [rows[i] + rows[i + 1] for i in (0, 2, 4)]
    assert all(len(set(epoch)) == 128 for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 3


def test_each_repair_of_digits_is_the_one_that_its_name_says():
    """A fake `prune` returns its options."""

    def prune(**options: Any) -> SimpleNamespace:
        return SimpleNamespace(params=options)

    x, y = np.zeros((16, 2)), np.zeros(16, int)
    makers = repair_digits.repairs(x, y, prune)
    found = {n: makers[n]()["repair"] for n in ("merged, transport", "scaled", "least squares")}
    found["merged, clusters"] = repair_digits.choices(x, prune)["merged, clusters"]()["repair"]
    greedy = repair_digits.choices(x, prune)["greedy, least squares"]()
    assert {name: (f.func, f.keywords.get("plan")) for name, f in found.items()} == {
        "merged, transport": (channels.merge_channels, channels.transport),
        "scaled": (channels.rescale, None),
        "least squares": (channels.least_squares, None),
        "merged, clusters": (channels.merge_channels, None),
    }
    assert greedy["score"].func is channels.reconstruction_scores
    assert greedy["repair"].func is channels.least_squares
    assert makers["folded"]() == {}


def test_images_that_repair_are_eight_equal_parts():
    found = repair_digits.parts(np.arange(27))
    assert [part.tolist() for (part,) in found] == [list(range(3 * i, 3 * i + 3)) for i in range(8)]


@jax.enable_x64(True)  # in float32, rounding would change which channels are removed
@jax.numpy_rank_promotion("allow")
def test_repaired_networks_on_digits_are_as_recorded(monkeypatch):
    """Two criteria prune two small networks at two ratios."""
    widths = {"perceptron": (64, 9, 12)}
    constants = {"SEEDS": 2, "EPOCHS": 9, "RATIOS": (0.3, 0.5), "WIDTHS": widths}
    for name, value in constants.items():
        monkeypatch.setattr(repair_digits, name, value)
    whole, few = datasets.load("digits"), {}
    for name, dtype in (("x", np.float64), ("y", np.int32)):
        images = getattr(whole, f"{name}_train").astype(dtype)
        few |= {f"{name}_train": images[:200], f"{name}_test": images[200:]}
    monkeypatch.setattr(datasets, "load", {"digits": whole._replace(**few)}.get)
    criteria = {name: pruning.CRITERIA[name] for name in ("l1", "gm")}
    monkeypatch.setattr(pruning, "CRITERIA", criteria)
    saved: list[Any] = []
    repair_digits.run(lambda found: saved.append(condense(found)))
    assert len(saved) == 2  # results are saved after each network
    assert_as_recorded("runs/repair_digits", saved[-1], rtol=0.01)
