"""Standard errors of repaired networks, and how an interrupted run resumes."""

import json
import resource
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

import jaxnorm
import repair
from experiments.cli import InputError
from experiments.measures import recalibration, repair_digits, repair_images
from experiments.measures.repair import (
    margin,
    mean_of,
    of_images,
    p_value,
    pack,
    unpack,
    values_of_criteria,
)
from experiments.pages import repair as repair_page
from tests.support.recorded import assert_as_recorded, condense


def test_the_error_is_that_over_images_and_over_draws():
    rng = np.random.default_rng(0)
    errors, means = [], []
    for _ in range(400):  # each image and each draw has a random effect
        images, draws = rng.normal(size=300), 0.1 * rng.normal(size=(5, 1))
        found = mean_of(images + draws + rng.normal(size=(5, 300)))
        errors.append(found.stderr)
        means.append(found.mean)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    one = mean_of(rng.normal(size=(1, 300)))
    assert one.dof == 299
    alone = mean_of(np.array([[2.0]]))
    assert alone.mean == 2
    assert np.isnan([alone.stderr, alone.dof]).all()
    # without variance, the degrees of freedom are the smaller of draws − 1 = 2 and blocks − 1 = 3
    alike = mean_of(np.full((3, 4), 2.0))
    assert alike == (2.0, 0.0, 2.0)


def test_of_one_draw_the_tests_are_scipy_s():
    values = np.random.default_rng(0).normal(np.reshape([0, 0.1, 0.3], (3, 1, 1)), size=(3, 1, 20))
    cells = dict(zip(("l1", "l2", "gm"), values, strict=True)) | {"random": 9 + values[0]}
    found = p_value(cells)
    assert found == pytest.approx(scipy.stats.friedmanchisquare(*values[:, 0]).pvalue)
    limit = margin(cells)
    assert limit is not None
    ttest: Any = scipy.stats.ttest_1samp
    # With the margin as the limit, the largest p-value of all one-sided tests is 5 %.
    p = [
        max(ttest(d, limit, alternative="less")[1], ttest(d, -limit, alternative="greater")[1])
        for a in values[:, 0]
        for b in values[:, 0]
        if (d := a - b).any()
    ]
    assert max(p) == pytest.approx(0.05)


def test_friedman_s_test_is_of_means_over_draws():
    rng = np.random.default_rng(0)
    cells = {}
    for name, shift in {"l1": 3.0, "l2": 3.2, "gm": 3.5}.items():
        values, apart = rng.normal(shift, 1, (1, 9)), rng.normal(0, 4, (1, 9))
        cells[name] = np.concatenate([values - apart, values, values + apart])
    expected = scipy.stats.friedmanchisquare(*(v[1] for v in cells.values())).pvalue
    assert p_value(cells) == pytest.approx(expected)
    assert p_value({name: v[:1] for name, v in cells.items()}) != pytest.approx(expected)


def test_what_is_found_is_packed_by_draw_and_criterion():
    found = np.random.default_rng(0).random(13) < 0.5
    np.testing.assert_array_equal(unpack(pack(found), 13), found)
    rows = [
        {"ratio": 0.5, "repair": "scaled", "criterion": c, "draw": d, "correct": pack(found ^ d)}
        for c in ("l1", "l2", "random")
        for d in (1, 0)
    ]
    table = of_images({"settings": {"test": 13}, "rows": rows[:-1]})
    cells = table["ResNet-20", 0.5, "scaled"]
    assert values_of_criteria(cells).shape == (2, 2, 13)
    np.testing.assert_array_equal(cells["l1"], [found, ~found])  # draw 0 comes first
    np.testing.assert_array_equal(cells["random"], [~found])


def test_criteria_are_compared_on_the_draws_that_all_have():
    """Draws that some criterion lacks are left out, unless only the control `random` lacks them."""
    first, second = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 0.25]])
    cells = {"l1": first, "l2": second, "gm": first[:, ::-1], "random": second[:0]}
    found = values_of_criteria(cells)
    np.testing.assert_array_equal(found, [[[1.0, 0.0]], [[0.5, 0.25]], [[0.0, 1.0]]])
    assert p_value({"l1": first, "gm": first}) is None  # Friedman's test needs three criteria
    assert margin({"none": first}) is None
    near = {"l1": np.array([[0.5, 0.5002]]), "l2": np.array([[0.5, 0.5]])}
    # The difference of the two criteria is 1e-4 ± 1e-4, and Student's t is 6.314 for one degree of
    # freedom.
    assert margin(near) == pytest.approx(7.314e-4, rel=1e-3)


def test_margins_are_at_the_largest_share_of_each_network():
    rng = np.random.default_rng(0)
    table: Any = {
        (network, ratio, name): {c: rng.normal(size=(2, 20)) for c in ("l1", "l2", "random")}
        for network, ratios in (("a", (0.5, 0.2)), ("b", (0.3, 0.1)))
        for ratio in ratios
        for name in ("least squares", "recalibrated")
    }
    del table["b", 0.3, "least squares"]  # the run of this network is not finished
    text = repair_page.answer(table)
    first, second, third = (
        f"{100 * (margin(table[network, ratio, name]) or 0):.1f} points"
        for network, ratio, name in (
            ("a", 0.5, "recalibrated"),
            ("a", 0.5, "least squares"),
            ("b", 0.3, "recalibrated"),
        )
    )
    both = f"{first} after recalibration and {second} after least squares"
    assert f"If 50 % of the channels are removed (a), the margin is {both}. If 30 %" in text
    assert f"removed (b), the margin is {third} after recalibration." in text


def test_repairs_without_images_are_made_for_the_first_draw_and_for_all_random_channels():
    x = np.zeros((4, 2))

    def names(choice, draw):
        task = repair_images.Task(None, {}, (x, x), 2, 0.5, choice, draw)
        return {name for _, name in repair_images.repairs(task)}

    of_every_draw = {"recalibrated", "scaled", "fine-tuned, one epoch"}
    of_every_draw |= {"least squares", "least squares, recalibrated"}
    for choice, draw, repeated in (("l1", 0, True), ("l1", 1, False), ("random", 1, True)):
        expected = {"folded", "merged, transport"} if repeated else set()
        assert names(choice, draw) == of_every_draw | expected
    assert names("greedy", 0) == {"greedy, least squares", "merged, clusters"}
    assert names("greedy", 1) == {"greedy, least squares"}


def test_random_scores_are_uniform_and_independent_between_groups_and_draws():
    groups: Any = [SimpleNamespace(size=size) for size in (2000, 2000, 7)]

    def of_draw(draw):
        task = repair_images.Task(None, {}, (np.zeros(2), np.zeros(2)), 2, 0.5, "random", draw)
        return task.score()(None, groups)

    first, again, other = of_draw(0), of_draw(0), of_draw(1)
    assert [len(scores) for scores in first] == [2000, 2000, 7]
    for scores, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(scores, same)
    four = np.array([*first[:2], *other[:2]])
    for scores in four:
        assert scipy.stats.kstest(scores, "uniform").pvalue > 1e-4
    correlations = np.corrcoef(four)[np.triu_indices(4, 1)]
    assert abs(correlations).max() < 5 / 2000**0.5  # the limit is five standard errors


def test_a_repair_has_the_processor_time_and_the_memory_that_it_adds(monkeypatch):
    times, memory = iter([3.0, 5.5, 10.0, 10.25]), iter([9_000, 3_000])
    usage = {"getrusage": lambda who: SimpleNamespace(ru_maxrss=next(memory)), "RUSAGE_SELF": 0}
    monkeypatch.setattr(repair_images, "resource", SimpleNamespace(**usage))
    monkeypatch.setattr(repair_images, "time", SimpleNamespace(process_time=lambda: next(times)))
    monkeypatch.setattr(repair_images, "peak", lambda: 2_500)
    makers: Any = {("l1", "folded"): lambda: "a", ("none", "merged"): lambda: "b"}
    assert list(repair_images.measure(makers)) == [
        (("l1", "folded"), "a", {"seconds": 2.5, "megabytes": 6.5}),
        (("none", "merged"), "b", {"seconds": 0.25, "megabytes": 0.5}),
    ]


def test_every_draw_repairs_with_its_own_images_and_a_second_run_with_what_is_left(monkeypatch):
    """Made-up images are integers. A made-up repair returns its name, choice, ratio and images."""
    images, made, saved = [], [], []

    def read(folder, split, start, count):
        images.append((split, start, count))
        return np.arange(start, start + count), np.zeros(count)

    def repairs(task):
        given = task.choice, task.ratio, task.draw, task.train[0].tolist()

        def make(name):
            made.append((name, *given))
            return made[-1]

        return {(task.choice, name): partial(make, name) for name in ("scaled", "folded")}

    changed = {"images": read, "repairs": repairs, "network": lambda path: (None, "whole")}
    changed |= {"correct": lambda graph, tree, test: (tree, len(test[0])), "pack": lambda x: x}
    changed |= {"recalibrated": lambda graph, tree, batches: batches, "peak": lambda: 0}
    changed |= {"identity": lambda path, test: {}}
    for name, function in (changed | {"CHOICES": ("l1", "greedy")}).items():
        monkeypatch.setattr(repair_images, name, function)
    settings = repair_images.Settings(images=4, test=3, batch=2, draws=2, ratios=(0.25, 0.5))
    save = lambda results: saved.append(results | {"rows": [*results["rows"]]})  # noqa: E731
    repair_images.run(repair_images.Path(), repair_images.Path(), settings, {}, save)
    expected = [
        (repair, choice, ratio, draw, list(range(4 * draw, 4 * draw + 4)))
        for draw in range(2)
        for ratio in (0.25, 0.5)
        # The repair "scaled" is in `LAST`, so it is measured after "folded".
        for repair in ("folded", "scaled")
        for choice in ("l1", "greedy")
    ]
    assert made == expected
    for row, given in zip(saved[-1]["rows"], expected, strict=True):
        named = row["repair"], row["criterion"], row["ratio"], row["draw"]
        assert (named, row["correct"]) == (given[:4], (given, 3))
    assert saved[-1]["whole"] == ("whole", 3)
    fresh = [(np.ravel(batches).tolist(), n) for batches, n in saved[-1]["whole, recalibrated"]]
    assert fresh == [([0, 1, 2, 3], 3), ([4, 5, 6, 7], 3)]
    assert images == [("test", 0, 3), ("train", 0, 8)]
    made.clear()
    repair_images.run(repair_images.Path(), repair_images.Path(), settings, saved[4], save)
    assert made == expected[5:]
    assert len(saved[-1]["whole, recalibrated"]) == 2


def test_a_trained_network_needs_its_weights_and_images():
    with pytest.raises(InputError, match="resnet20 must have --weights and --data-dir"):
        repair.main(repair.Options("resnet20"))


class Block(nnx.Module):
    """A residual block of two dense layers over the channels of a pixel, each with batch norm."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1, self.conv2 = nnx.Linear(5, 9, rngs=rngs), nnx.Linear(9, 5, rngs=rngs)
        self.norm1 = jaxnorm.nnx.BatchNorm(9, momentum=0.9, rngs=rngs)
        self.norm2 = jaxnorm.nnx.BatchNorm(5, momentum=0.9, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(x + self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x))))))


class Small(nnx.Module):
    """A small network whose parts have the names of a ResNet-20's parts."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem, self.stem_norm = nnx.Linear(3, 5, rngs=rngs), jaxnorm.nnx.BatchNorm(5, rngs=rngs)
        self.blocks = nnx.List([Block(rngs)])
        self.head = nnx.Linear(5, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


@pytest.fixture
def small_network(users_jax, monkeypatch):
    """A network with random weights and statistics; a fake `correct` returns the labels' logits."""
    graph, tree = nnx.split(nnx.view(Small(nnx.Rngs(0)), use_running_average=True))
    rng = np.random.default_rng(0)
    tree = jax.tree.map(lambda a: a + 0.5 * rng.uniform(size=a.shape).astype(np.float32), tree)

    def images(data_dir, split, start, count):
        # Each draw of 50 images has its own seed.
        parts = []
        for first in range(start, start + count, 50):
            rng, n = np.random.default_rng((first, len(split))), min(50, count)
            x = rng.normal(rng.normal(size=(n, 1, 1, 3)), 1, (n, 32, 32, 3))
            parts.append((x.astype(np.float32), rng.integers(0, 10, n)))
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def correct(graph, tree, test):
        x, labels = test
        return np.asarray(repair_images.applied(graph)(tree, x))[np.arange(len(x)), labels]

    for module in (repair_images, recalibration):
        monkeypatch.setattr(module, "network", lambda path: (graph, tree))
        monkeypatch.setattr(module, "images", images)
        monkeypatch.setattr(module, "correct", correct)
    monkeypatch.setattr(repair_images, "pack", lambda found: condense(found)["moments"])
    monkeypatch.setattr(repair_images, "peak", lambda: 0)
    monkeypatch.setattr(repair_images, "identity", lambda path, test: {})


def test_repairs_of_a_small_network_are_as_recorded(small_network, monkeypatch):
    """Each of the choices `gm`, `random` and `greedy` is measured for two draws of images."""
    monkeypatch.setattr(repair_images, "CHOICES", ("gm", "random", "greedy"))
    settings = repair_images.Settings(images=50, test=40, batch=25, draws=2, ratios=(0.4,))
    saved: list[Any] = []
    repair_images.run(repair_images.Path(), repair_images.Path(), settings, {}, saved.append)
    found = condense(saved[-1], "megabytes")
    assert_as_recorded("runs/repair_images", found, rtol=2e-3, atol=1e-4)


def test_images_are_cropped_after_padding_and_half_are_flipped_from_left_to_right():
    x = np.random.default_rng(0).normal(3, 1, (60, 32, 32, 2)).astype(np.float32)
    found = recalibration.augment(np.random.default_rng(1), x)
    padded = np.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    places = []
    for image, around in zip(found, padded, strict=True):
        places += [
            (i, j, flipped)
            for i, j in np.ndindex(9, 9)
            for flipped, row in ((False, image), (True, image[:, ::-1]))
            if np.array_equal(row, around[i : i + 32, j : j + 32])
        ]
    assert len(places) == 60
    rows, columns, flips = map(np.array, zip(*places, strict=True))
    assert set(rows) == set(columns) == set(range(9))
    assert 0.3 < flips.mean() < 0.7  # 0.5 ± three standard errors


def test_a_recalibrated_small_network_is_as_recorded(small_network):
    found = recalibration.run(recalibration.Path(), recalibration.Path(), 20, 50)
    assert_as_recorded("runs/recalibration", found, rtol=2e-3, atol=1e-4)


class Norms(nnx.Module):
    """A network of three batch norms, with the names of a ResNet-20's, and no other layer."""

    def __init__(self):
        norms = [
            jaxnorm.nnx.BatchNorm(3, momentum=0.8, epsilon=1e-3, rngs=nnx.Rngs(0)) for _ in range(3)
        ]
        self.stem_norm = norms[0]
        self.blocks = nnx.List([nnx.Dict(norm1=norms[1], norm2=norms[2])])

    def __call__(self, x):
        x = jax.lax.max(self.stem_norm(x), jnp.float32(0))
        for block in self.blocks:
            x = x + block.norm2(jax.lax.max(block.norm1(x), jnp.float32(0)))
        return x.mean((1, 2))


def outputs_of_norms(x, affine, running):
    """The outputs of `Norms` and the inputs of each norm; batch statistics without `running`.

    `affine` has scales and biases of each norm, and `running` has means and variances.
    """
    inputs = []

    def normalized(h):
        i = len(inputs)
        inputs.append(h)
        mean, var = running[i] if len(running) else moments_of(h)
        return (h - mean) / np.sqrt(var + 1e-3) * affine[i, 0] + affine[i, 1]

    h = np.maximum(normalized(x.astype(float)), 0)
    h = h + normalized(np.maximum(normalized(h), 0))
    return h.mean((1, 2)), inputs


def moments_of(h):
    return h.mean((0, 1, 2)), h.var((0, 1, 2))


def statistics_of_parts(parts, affine):
    """The moments of each norm's inputs, if each part is normalized by its own statistics."""
    inputs = zip(*(outputs_of_norms(part, affine, ())[1] for part in parts), strict=True)
    return np.array([moments_of(np.concatenate(of_norm)) for of_norm in inputs])


@pytest.fixture
def norms():
    """The graph and the arrays of `Norms`, its scales and biases, and its running statistics."""
    rng = np.random.default_rng(0)
    affine = np.stack([rng.uniform(0.5, 2, (3, 3)), rng.normal(0, 0.5, (3, 3))], 1)
    running = np.stack([rng.normal(1, 0.5, (3, 3)), rng.uniform(0.5, 4, (3, 3))], 1)
    model: Any = Norms()
    block = model.blocks[0]
    for i, norm in enumerate((model.stem_norm, block.norm1, block.norm2)):
        values = (*affine[i], *running[i])
        for name, value in zip(("scale", "bias", "mean", "var"), values, strict=True):
            getattr(norm, name).set_value(jnp.asarray(value, jnp.float32))
    return *nnx.split(nnx.view(model, use_running_average=True)), affine, running


def photos(data_dir, split, start, count):
    """Random images with random labels, for the folder "data"; test images have four pixels."""
    assert data_dir == Path("data")
    rng, size = np.random.default_rng((start, len(split))), 2 if split == "test" else 32
    x = rng.normal(rng.normal(1, 1, (count, 1, 1, 3)), 1.5, (count, size, size, 3))
    return x.astype(np.float32), rng.integers(0, 3, count)


def test_statistics_of_other_images_replace_those_of_the_training(users_jax, norms, monkeypatch):
    """Four parts of the images are normalized on their own; then their moments are merged."""
    graph, tree, affine, running = norms
    monkeypatch.setattr(recalibration, "network", {Path("w"): (graph, tree)}.get)
    monkeypatch.setattr(recalibration, "images", photos)
    found = recalibration.run(Path("w"), Path("data"), 8, 380)
    parts = np.split(photos(Path("data"), "train", 0, 8)[0], 4)
    rng = np.random.default_rng(0)
    fresh = statistics_of_parts(parts, affine)
    crops = statistics_of_parts([recalibration.augment(rng, part) for part in parts], affine)
    statistics = {
        "as trained": running,
        "recalibrated": fresh,
        "recalibrated on crops and flips": crops,
        "means alone": np.stack([fresh[:, 0], running[:, 1]], 1),
        "variances alone": np.stack([running[:, 0], fresh[:, 1]], 1),
        "stem alone": np.concatenate([fresh[:1], running[1:]]),
        "halfway": (running + fresh) / 2,
    }
    x, labels = photos(Path("data"), "test", 0, 380)
    right = {
        name: outputs_of_norms(x, affine, s)[0].argmax(1) == labels
        for name, s in statistics.items()
    }
    assert found["accuracy"] == pytest.approx({name: row.mean() for name, row in right.items()})
    assert len(set(found["accuracy"].values())) == 7
    before = right["as trained"].astype(float)
    assert found["standard error of the difference"] == pytest.approx(
        {name: np.std(row - before, ddof=1) / 380**0.5 for name, row in right.items()}
    )
    ratios = np.median(np.sqrt(fresh[:, 1] / running[:, 1]), 1)
    np.testing.assert_allclose(found["median ratio of deviations"], ratios, rtol=1e-4)
    left = recalibration.norms(nnx.merge(graph, tree))
    for norm, (mean, var) in zip(left, running, strict=True):  # the network itself is not changed
        np.testing.assert_allclose(norm.mean[...], mean, rtol=1e-6)
        np.testing.assert_allclose(norm.var[...], var, rtol=1e-6)


def test_the_images_of_a_repair_are_standardized_and_follow_the_given_one(monkeypatch):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (9, 2, 3, 3), np.uint8), rng.integers(0, 10, 9)
    examples = [{"image": x, "label": y} for x, y in zip(pixels, labels, strict=True)]

    def open_split(name, data_dir, split):
        return {("cifar10", Path("data"), "test"): examples}[name, data_dir, split]

    monkeypatch.setattr(repair_images.datasets, "open_split", open_split)
    x, y = repair_images.images("data", "test", 3, 4)
    expected = (pixels[3:7] / 255.0 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(y, labels[3:7])
    with pytest.raises(InputError, match="needs 10 test images; data has 9: use fewer images"):
        repair_images.images("data", "test", 3, 7)


def test_a_folder_without_the_images_of_a_repair_is_refused(tmp_path, monkeypatch):
    """Nothing is downloaded or written."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match="must hold cifar10 in tensorflow-datasets' format"):
        repair_images.images(tmp_path / "data", "test", 0, 5)
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_the_network_of_a_weight_file_normalizes_by_its_running_statistics(
    users_jax, norms, monkeypatch
):
    graph, tree, affine, running = norms
    model = nnx.view(nnx.merge(graph, tree), use_running_average=False)
    monkeypatch.setattr(repair_images.weight_files, "read", {Path("w"): model}.get)
    found = repair_images.applied(repair_images.network("w")[0])
    x = np.random.default_rng(1).normal(2, 3, (5, 2, 2, 3)).astype(np.float32)
    expected = outputs_of_norms(x, affine, running)[0]
    np.testing.assert_allclose(found(repair_images.network("w")[1], x), expected, rtol=1e-4)


class Dense(nnx.Module):
    """A dense layer from 2 to 3 channels, a batch norm, and a dense layer to 4 classes."""

    def __init__(self):
        self.first, self.last = (
            nnx.Linear(2, 3, rngs=nnx.Rngs(0)),
            nnx.Linear(3, 4, rngs=nnx.Rngs(1)),
        )
        self.norm = jaxnorm.nnx.BatchNorm(3, momentum=0.8, epsilon=1e-3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.last(self.norm(self.first(x)))


def losses_of_dense(p, x, y):
    """The mean cross-entropy of `Dense` on a batch, and the inputs of its batch norm."""
    h = x @ p["first.kernel"] + p["first.bias"]
    z = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-3) * p["norm.scale"] + p["norm.bias"]
    out = z @ p["last.kernel"] + p["last.bias"]
    return (np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]).mean(), h


def named(state):
    """The arrays of a state in float64, by the names of their paths."""
    flat = nnx.to_flat_state(state)
    return {".".join(map(str, path)): np.array(leaf[...], float) for path, leaf in flat}


def test_a_fine_tuning_is_an_epoch_of_sgd_with_momentum_in_batches_of_the_training(
    users_jax, monkeypatch
):
    """Gradients are central differences. Running statistics have the momentum of the layer."""
    monkeypatch.setattr(repair_images, "STEP", 4)
    monkeypatch.setattr(repair_images, "RATE", 0.25)
    rng = np.random.default_rng(0)
    graph, tree = nnx.split(nnx.view(nnx.eval_shape(Dense), use_running_average=True))
    tree = jax.tree.map(lambda a: jnp.asarray(rng.uniform(0.5, 2, a.shape), jnp.float32), tree)
    x, y = rng.normal(1, 2, (12, 2)).astype(np.float32), rng.integers(0, 4, 12)
    found = named(repair_images.fine_tuned(graph, tree, (x, y)))
    p = named(tree)
    mean, var = p.pop("norm.mean"), p.pop("norm.var")
    velocity = {name: np.zeros_like(a) for name, a in p.items()}
    for rows in np.split(np.arange(12), 3):
        slopes = {name: np.zeros_like(a) for name, a in p.items()}
        for name, a in p.items():
            for i in np.ndindex(a.shape):
                unit = np.zeros_like(a)
                unit[i] = 1e-5
                up, down = (
                    losses_of_dense(p | {name: a + d}, x[rows], y[rows])[0] for d in (unit, -unit)
                )
                slopes[name][i] = (up - down) / 2e-5
        _, h = losses_of_dense(p, x[rows], y[rows])
        mean, var = 0.8 * mean + 0.2 * h.mean(0), 0.8 * var + 0.2 * h.var(0, ddof=1)
        velocity = {name: 0.9 * velocity[name] + slope for name, slope in slopes.items()}
        p = {name: a - 0.25 * velocity[name] for name, a in p.items()}
    expected = p | {"norm.mean": mean, "norm.var": var}
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-3, atol=1e-3, err_msg=name)


def test_repairs_of_a_draw_that_recalibrate_use_all_batches_of_its_images(users_jax, monkeypatch):
    """A fake `prune_draw` doubles the first kernel if a repair is given."""

    def prune_draw(task, **options):
        model = nnx.merge(graph, task.tree, copy=True)
        factor = 2 if options else 1
        model.first.kernel.set_value(factor * model.first.kernel[...])
        return nnx.state(model)

    monkeypatch.setattr(repair_images.Task, "prune_draw", prune_draw)
    monkeypatch.setattr(repair_images, "STEP", 6)
    rng = np.random.default_rng(0)
    graph, tree = nnx.split(nnx.view(nnx.eval_shape(Dense), use_running_average=True))
    tree = jax.tree.map(lambda a: jnp.asarray(rng.uniform(0.5, 2, a.shape), jnp.float32), tree)
    x, y = rng.normal(3, 2, (12, 2)).astype(np.float32), rng.integers(0, 4, 12)
    makers = repair_images.repairs(repair_images.Task(graph, tree, (x, y), 4, 0.5, "l1", 0))
    whole = named(tree)
    repaired = ("recalibrated", "least squares, recalibrated", "fine-tuned, one epoch")
    for name, factor in zip(repaired, (1, 2, 1), strict=True):
        found = named(makers["l1", name]())
        h = x @ found["first.kernel"] + found["first.bias"]
        np.testing.assert_allclose(found["norm.mean"], h.mean(0), rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(found["norm.var"], h.var(0), rtol=1e-4, err_msg=name)
        moved = np.abs(found["first.kernel"] - factor * whole["first.kernel"]).max()
        assert moved < 0.1
        assert (moved > 1e-6) == (name == "fine-tuned, one epoch")


class Wide(nnx.Module):
    """A stem of 4 channels, and two dense layers with 7 and 3 outputs."""

    def __init__(self):
        self.stem, self.conv, self.head = (
            nnx.Linear(n, m, rngs=nnx.Rngs(n)) for n, m in ((2, 4), (4, 7), (7, 3))
        )

    def __call__(self, x):
        return self.head(jax.nn.relu(self.conv(jax.nn.relu(self.stem(x)))))


@pytest.mark.parametrize("choice", ["l1", "l2", "zeros"])
def test_channels_of_a_draw_are_chosen_by_their_criterion_and_those_of_the_stem_remain(
    choice, users_jax
):
    """Two of seven channels are removed: the first ones if all scores are zero."""
    rng = np.random.default_rng(20)  # with this seed, l1 and l2 choose different channels
    graph, tree = nnx.split(nnx.eval_shape(Wide))
    tree = jax.tree.map(lambda a: jnp.asarray(rng.normal(0, 1, a.shape), jnp.float32), tree)
    x = rng.normal(3, 1, (6, 2)).astype(np.float32)
    task = repair_images.Task(graph, tree, (x, np.zeros(6)), 3, 0.3, choice, 0)
    options: dict[str, Any] = {"score": repair_images.zeros} if choice == "zeros" else {}
    if options:
        task = task._replace(choice="l1")
    found, whole = named(task.prune_draw(**options)), named(tree)
    power = {"l1": 1, "l2": 2, "zeros": 0}[choice]
    norms = (np.abs(whole["conv.kernel"]) ** power).sum(0)
    remove, keep = np.split(np.argsort(norms, kind="stable"), [2])
    keep.sort()
    constant = np.maximum(whole["conv.bias"][remove], 0) @ whole["head.kernel"][remove]
    expected = whole | {
        "conv.kernel": whole["conv.kernel"][:, keep],
        "conv.bias": whole["conv.bias"][keep],
        "head.kernel": whole["head.kernel"][keep],
        # Without its weights, a removed channel is constant. The next bias takes the constant.
        "head.bias": whole["head.bias"] + constant,
    }
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-5, err_msg=name)


def test_greedy_scores_compare_networks_on_all_batches_of_a_draw():
    x = np.arange(12.0).reshape(6, 2)
    graph: Any = nnx.split(nnx.eval_shape(Wide))[0]
    score: Any = repair_images.Task(graph, {}, (x, x), 3, 0.5, "greedy", 0).score()
    assert score.func is repair_images.reconstruction_scores
    found = [part.tolist() for (part,) in score.keywords["batches"]]
    assert found == [x[:3].tolist(), x[3:].tolist()]
    assert score.keywords["apply"] is repair_images.applied(graph)


def test_the_peak_of_the_memory_begins_anew_at_the_memory_in_use():
    def in_use():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    used = np.ones(8_000_000)  # 64 MB
    del used
    before = repair_images.peak()
    assert before == pytest.approx(in_use(), abs=4_000)
    used = np.ones(8_000_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before == pytest.approx(8 * len(used) / 1024, abs=4_000)


@pytest.mark.parametrize(
    ("experiment", "seeds", "seconds"),
    [("digits", 3, 5.0), ("resnet20", 4, 12.5), ("recalibration", 1, 5.0)],
)
def test_a_resumed_experiment_alone_adds_the_time_of_its_earlier_run(
    experiment, seeds, seconds, monkeypatch, tmp_path
):
    asked: list[Any] = []

    def run(weights, data_dir, settings, before, save):
        asked.append((weights, data_dir, settings, before))
        save({"rows": [2]})

    def recalibrate(*given):
        asked.append(given)
        return {"rows": [3]}

    monkeypatch.setattr(repair_images, "run", run)
    monkeypatch.setattr(repair_digits, "run", lambda save: save({"rows": [1]}))
    monkeypatch.setattr(recalibration, "run", recalibrate)
    monkeypatch.setattr(repair.cli, "provenance", lambda script: {"command": "c"})
    monkeypatch.setattr(repair.cli, "seconds", lambda: 5.0)
    path, weights, folder = tmp_path / f"{experiment}.json", tmp_path / "w", tmp_path / "d"
    path.write_text(json.dumps({"seconds": 7.5, "seeds": 9}))
    sizes: dict[str, Any] = {"images": 50, "test": 40, "batch": 25, "draws": 4, "ratios": (0.4,)}
    repair.measure(repair.Options(experiment, weights, folder, **sizes, out=tmp_path))
    found = json.loads(path.read_text())
    number = {"digits": 1, "resnet20": 2, "recalibration": 3}[experiment]
    expected = {"command": "c", "seconds": seconds, "seeds": seeds, "rows": [number]}
    assert found == expected
    before = {"seconds": 7.5, "seeds": 9}
    assert (
        asked
        == {
            "digits": [],
            "resnet20": [(weights, folder, repair_images.Settings(**sizes), before)],
            "recalibration": [(weights, folder, 50, 40)],
        }[experiment]
    )


def test_the_page_of_repairs_needs_the_results_of_both_networks(monkeypatch, tmp_path):
    monkeypatch.setattr(repair_page, "render", lambda digits, resnet: f"{digits} {resnet}")
    for name in ("digits", "resnet20"):
        repair.write_page(tmp_path)
        assert not (tmp_path / "index.html").exists()
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}))
    repair.write_page(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert text == "{'name': 'digits'} {'name': 'resnet20'}"


def test_a_second_run_continues_one_of_the_same_settings_alone():
    settings = repair_images.Settings(images=8, test=4)
    rows = [{"draw": 0}]
    inputs = {"weights": "a", "test images": "b"}
    first = repair_images.resume(settings, inputs, {})
    again = repair_images.resume(settings, inputs, first | {"rows": rows, "seconds": 3.0})
    assert again == first | {"rows": rows}
    assert repair_images.resume(settings._replace(test=5), inputs, again)["rows"] == []
    assert repair_images.resume(settings._replace(draws=9), inputs, again)["rows"] == rows
    for name in inputs:
        assert repair_images.resume(settings, inputs | {name: "c"}, again)["rows"] == []


def test_runs_of_other_weights_or_other_test_images_are_told_apart(tmp_path):
    x, labels = np.arange(6.0).reshape(3, 2), np.arange(3)
    files = [tmp_path / name for name in "ab"]
    for path in files:
        path.write_text(path.name)
    found = [
        repair_images.identity(files[0], (x, labels)),
        repair_images.identity(files[1], (x, labels)),
        repair_images.identity(files[0], (x + 1, labels)),
        repair_images.identity(files[0], (x, labels[::-1])),
    ]
    assert len({tuple(each.items()) for each in found}) == 4
    assert repair_images.identity(files[0], (x.copy(), labels)) == found[0]


def test_a_ratio_that_removes_nothing_is_refused(users_jax):
    graph, tree = nnx.split(Wide())
    x = np.ones((6, 2), np.float32)
    task = repair_images.Task(graph, tree, (x, np.zeros(6)), 3, 0.01, "l1", 0)
    with pytest.raises(InputError, match=r"the ratio 0\.01 must be usable; "):
        task.prune_draw()


def test_networks_on_digits_are_recalibrated_before_they_are_fine_tuned(monkeypatch):
    x, y = np.zeros((16, 3)), np.zeros(16)
    monkeypatch.setattr(repair_digits, "recalibrated", lambda tree, x: f"recalibrated {tree}")
    monkeypatch.setattr(repair_digits, "train", lambda tree, *options: (tree, options[2:]))
    makers = repair_digits.repairs(x, y, lambda: SimpleNamespace(params="small"))
    assert makers["fine-tuned, one epoch"]() == ("recalibrated small", (1, 1e-3))
