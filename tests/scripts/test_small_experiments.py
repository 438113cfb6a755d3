"""Small networks outside the recipes: layers, steps and statistics, compared with NumPy."""

import itertools
import math
from functools import partial
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
        ({"images": 50, "batch": 50}, "--images must be at least twice --batch, 50, .*; got 50"),
        (
            {"experiment": "recalibration", "images": 3},
            "--images must be at least 4, one for each batch; got 3",
        ),
        (
            {"experiment": "recalibration", "batch": 25},
            "--batch must not be given to recalibration, which does not use it; got 25",
        ),
        ({"experiment": "digits"}, "--weights must not be given to digits, which does not use it"),
    ],
)
def test_options_of_a_repair_are_used_and_images_fill_batches(changes, sentence, tmp_path):
    given = {"experiment": "resnet20", "weights": tmp_path / "w", "data_dir": tmp_path}
    options = repair.Options(**given | changes, out=tmp_path / "out")
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


@pytest.mark.parametrize(("name", "window"), [("perceptron", ()), ("convolutional", (3, 3))])
def test_networks_on_digits_begin_with_the_gain_of_their_inputs(name, window, key, monkeypatch):
    """Weights have the variance 2/inputs; in the last layer, the variance is 1/inputs."""
    monkeypatch.setitem(repair_digits.WIDTHS, name, (40, 30, 50))
    tree = repair_digits.init(key, name)
    shapes = {"layer0": (*window, 40, 30), "layer1": (*window, 30, 50), "head": (50, 10)}
    assert {part: arrays["kernel"].shape for part, arrays in tree.items()} == shapes
    for part, shape in shapes.items():
        kernel, inputs = np.asarray(tree[part]["kernel"]), math.prod(shape[:-1])
        deviation = ((1 if part == "head" else 2) / inputs) ** 0.5
        assert kernel.std() == pytest.approx(deviation, rel=4 / (2 * kernel.size) ** 0.5)
        assert abs(kernel.mean()) < 4 * deviation / kernel.size**0.5
    firsts = [arrays["kernel"].ravel()[:9] / arrays["kernel"].std() for arrays in tree.values()]
    assert (abs(np.corrcoef(firsts)[np.triu_indices(3, 1)]) < 0.95).all()  # each has its own key
    for part, width in (("layer0", 30), ("layer1", 50)):
        for array, value in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1)):
            np.testing.assert_array_equal(tree[part][array], np.full(width, value))
    np.testing.assert_array_equal(tree["head"]["bias"], np.zeros(10))


def dense_tree(rng, widths):
    """Random arrays of a perceptron, in float64."""
    tree: Any = {
        f"layer{i}": {
            "kernel": rng.normal(0, n**-0.5, (n, m)),
            "scale": rng.uniform(0.5, 2, m),
            "bias": rng.normal(0.5, 1, m),
            "mean": rng.normal(1, 1, m),
            "var": rng.uniform(1, 5, m),
        }
        for i, (n, m) in enumerate(itertools.pairwise(widths))
    }
    return tree | {
        "head": {"kernel": rng.normal(size=(widths[-1], 10)), "bias": rng.normal(size=10)}
    }


def dense_logits(tree, x, fresh=False):
    """The outputs of a perceptron in NumPy, and the moments of each layer."""
    h, moments = x.reshape(len(x), -1), {}
    for name in sorted(set(tree) - {"head"}):
        layer = tree[name]
        h = h @ layer["kernel"]
        moments[name] = {"mean": h.mean(0), "var": h.var(0)}
        used = moments[name] if fresh else layer
        h = np.maximum(standardized(h, layer["scale"], layer["bias"], used["mean"], used["var"]), 0)
    return h @ tree["head"]["kernel"] + tree["head"]["bias"], moments


@jax.enable_x64(True)
@jax.numpy_rank_promotion("allow")
def test_networks_on_digits_are_trained_by_adam_at_a_rate_that_falls_to_zero():
    """Three batches; gradients are central differences, and layers use the batch's statistics."""
    rng = np.random.default_rng(5)
    tree = dense_tree(rng, (3, 4))
    x, y = rng.normal(1, 2, (9, 3)), rng.integers(0, 10, 9)
    order = rng.permutation(9).reshape(3, 3)
    given = jax.tree.map(jnp.asarray, tree)
    found = repair_digits.training(3, 0.1)(given, jnp.asarray(x), jnp.asarray(y), order)

    def loss(tree, rows):
        out = dense_logits(tree, x[rows], fresh=True)[0]
        return (np.log(np.exp(out).sum(1)) - out[np.arange(len(rows)), y[rows]]).mean()

    names = [(part, name) for part, arrays in tree.items() for name in arrays]
    first, second = ({n: np.zeros_like(tree[n[0]][n[1]]) for n in names} for _ in range(2))
    for t, rows in enumerate(order):
        slopes = {n: np.zeros_like(first[n]) for n in names}
        for part, name in names:
            for i in np.ndindex(slopes[part, name].shape):
                unit = np.zeros_like(slopes[part, name])
                unit[i] = 1e-5
                up, down = (
                    loss(tree | {part: tree[part] | {name: tree[part][name] + d}}, rows)
                    for d in (unit, -unit)
                )
                slopes[part, name][i] = (up - down) / 2e-5
        rate = 0.1 * (1 + np.cos(np.pi * t / 3)) / 2
        moved: Any = {part: {} for part in tree}
        for n in names:
            first[n] = 0.9 * first[n] + 0.1 * slopes[n]
            second[n] = 0.999 * second[n] + 0.001 * slopes[n] ** 2
            mean, square = first[n] / (1 - 0.9 ** (t + 1)), second[n] / (1 - 0.999 ** (t + 1))
            moved[n[0]][n[1]] = tree[n[0]][n[1]] - rate * mean / (np.sqrt(square) + 1e-8)
        tree = moved
    # Adam's steps do not depend on the size of a gradient, so gradients of zero are left out: those
    # of the running statistics, which training does not use.
    for part, name in names:
        if name in ("mean", "var"):
            np.testing.assert_array_equal(found[part][name], given[part][name])
        else:
            np.testing.assert_allclose(found[part][name], tree[part][name], rtol=1e-4, atol=1e-4)


@jax.enable_x64(True)
@jax.numpy_rank_promotion("allow")
def test_repairs_on_digits_that_recalibrate_use_all_images(monkeypatch):
    """A fake `prune` multiplies the first kernel by 2 for a repair and by 3 for a score."""
    monkeypatch.setattr(repair_digits, "BATCH", 12)
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 1, (20, 3)), rng.integers(0, 10, 20)
    tree = dense_tree(rng, (3, 5))

    def scaled(factor):
        first = tree["layer0"] | {"kernel": factor * tree["layer0"]["kernel"]}
        return tree | {"layer0": first}

    def prune(**options: Any) -> SimpleNamespace:
        factor = math.prod({"repair": 2.0, "score": 3.0}[name] for name in options)
        return SimpleNamespace(params=jax.tree.map(jnp.asarray, scaled(factor)))

    makers = repair_digits.repairs(x, y, prune) | repair_digits.choices(x, prune)
    expected = {"recalibrated": 1, "merged, clusters, recalibrated": 2, "greedy, recalibrated": 3}
    for name, factor in expected.items():
        given, found = scaled(factor), makers[name]()
        moments = dense_logits(given, x, fresh=True)[1]["layer0"]
        for array, value in (given["layer0"] | moments).items():
            np.testing.assert_allclose(found["layer0"][array], value, rtol=1e-9, err_msg=name)
    tuned = jax.tree.map(np.asarray, makers["fine-tuned, one epoch"]())
    # The first step of Adam moves each weight by the rate 1e-3, unless its gradient is zero.
    moved = np.abs(tuned["head"]["bias"] - tree["head"]["bias"])
    np.testing.assert_allclose(moved, 1e-3, rtol=1e-3)
    moments = dense_logits(tuned, x, fresh=True)[1]["layer0"]
    for array, value in moments.items():
        np.testing.assert_allclose(tuned["layer0"][array], value, rtol=1e-9)


def test_the_seconds_of_a_repair_are_those_in_which_it_is_made(monkeypatch):
    times = iter([3.0, 5.5, 10.0, 10.25])
    monkeypatch.setattr(repair_digits, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    found = list(repair_digits.timed({"folded": lambda: {"a": 1}, "scaled": lambda: {"b": 2}}))
    assert found == [("folded", {"a": 1}, 2.5), ("scaled", {"b": 2}, 0.25)]


@jax.enable_x64(True)
@jax.numpy_rank_promotion("allow")
def test_networks_on_digits_are_measured_for_each_seed_ratio_and_criterion(monkeypatch):
    """A fake `prune` returns the trained network; each fake repair shifts one class's logits."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(1, 2, (70, 3, 2, 1)), rng.integers(0, 10, 70)
    images = SimpleNamespace(
        note="made up", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:]
    )
    monkeypatch.setattr(repair_digits.datasets, "load", {"digits": images}.get)
    sizes = {"SEEDS": 2, "RATIOS": (0.25, 0.5), "EPOCHS": 2, "BATCH": 20}
    for name, value in (sizes | {"WIDTHS": {"perceptron": (6, 5)}}).items():
        monkeypatch.setattr(repair_digits, name, value)
    criteria = {name: pruning.CRITERIA[name] for name in ("l2", "gm")}
    monkeypatch.setattr(pruning, "CRITERIA", criteria)
    made: list[Any] = []

    def init(key, name):
        """The key of a seed ends with this seed."""
        seed = int(jax.random.key_data(key)[-1])
        return jax.tree.map(jnp.asarray, start(seed, repair_digits.WIDTHS[name]))

    def start(seed, widths=(6, 5)):
        return dense_tree(np.random.default_rng(seed), widths)

    def prune(apply, tree, x, *, ratios, score=None):
        assert apply is repair_digits.apply
        np.testing.assert_array_equal(x, images.x_train[:2])
        criterion = "none" if score is None else {
            function: name for name, function in criteria.items()
        }[score.keywords["criterion"]]  # fmt: skip
        made.append((tree, *ratios, criterion))
        return tree

    def shift(prune, i):
        tree = prune()
        return tree | {"head": tree["head"] | {"bias": tree["head"]["bias"].at[i].add(3)}}

    def repairs(x, y, prune):
        assert (x is images.x_train, y is images.y_train) == (True, True)
        return {"first": partial(shift, prune, 1), "second": partial(shift, prune, 2)}

    def choices(x, prune):
        assert x is images.x_train
        return {"third": partial(shift, prune, 3)}

    for name, function in {"init": init, "repairs": repairs, "choices": choices}.items():
        monkeypatch.setattr(repair_digits, name, function)
    monkeypatch.setattr(pruning, "prune", prune)
    saved: list[Any] = []
    repair_digits.run(lambda found: saved.append((len(found["whole"]), [*found["rows"]], found)))
    assert [(n, len(rows)) for n, rows, _ in saved] == [(1, 10), (2, 20)]
    found = saved[-1][2]

    def accuracy(tree, shifted=None):
        out = dense_logits(tree, images.x_test)[0] + 3 * (np.arange(10) == shifted)
        return pytest.approx((out.argmax(1) == images.y_test).mean())

    trees = [jax.tree.map(np.asarray, made[i][0]) for i in (0, 10)]
    repaired = {"l2": ("first", "second"), "gm": ("first", "second"), "none": ("third",)}
    assert [made_of[1:] for made_of in made] == [
        (ratio, criterion)
        for _ in trees
        for ratio in (0.25, 0.5)
        for criterion, names in repaired.items()
        for _ in names
    ]
    assert found["whole"] == [
        {"network": "perceptron", "seed": seed, "accuracy": accuracy(tree)}
        for seed, tree in enumerate(trees)
    ]
    rows = [{**row, "seconds": 0} for row in found["rows"]]
    assert rows == [
        {"network": "perceptron", "seed": seed, "ratio": ratio, "criterion": criterion}
        | {"repair": name, "seconds": 0}
        | {"accuracy": accuracy(tree, ("first", "second", "third").index(name) + 1)}
        for seed, tree in enumerate(trees)
        for ratio in (0.25, 0.5)
        for criterion, names in repaired.items()
        for name in names
    ]
    assert len({row["accuracy"] for row in rows}) > 2
    assert found["settings"] == {"epochs": 2, "batch": 20}
    for seed, tree in enumerate(trees):
        # Training ends with the statistics of all training images. Adam's steps are at most about
        # 3e-3 and 1.5e-3 long, the rates of the two steps.
        moved = np.abs(tree["layer0"]["kernel"] - start(seed)["layer0"]["kernel"])
        assert 3e-3 < moved.max() < 5e-3
        moments = dense_logits(tree, images.x_train, fresh=True)[1]["layer0"]
        for name, value in moments.items():
            np.testing.assert_allclose(tree["layer0"][name], value, rtol=1e-6)


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
