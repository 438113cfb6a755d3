"""Figures 2 to 8: a tiny run of each, and the page that shows them."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import geometry
import reproduce_geometry
from experiments import cli, files
from experiments.cli import InputError
from experiments.data import datasets
from experiments.measures import depth, geometry_figures
from experiments.pages import geometry as geometry_page
from tests.support.browser import open_page
from tests.support.recorded import assert_as_recorded, condense
from tests.support.small_runs import random_images

pytestmark = pytest.mark.fitted_figures


@pytest.fixture
def small(monkeypatch):
    """Use sizes at which all figures take only seconds."""
    sizes = {
        "ODD_POINTS": 8,
        "ODD_WIDTH": 10,
        "NETWORKS": 2,
        "SIZES": ((6, 10),) * 6,
        "SCATTERED": (6, 10),
        "NEURONS": (6, 10),
    }
    for name, value in sizes.items():
        monkeypatch.setattr(geometry_figures, name, value)
    monkeypatch.setattr(depth, "SHORT", {"depths": (0, 2), "steps": 2, "runs": 1})
    per_point = geometry_figures.neuron_per_point
    monkeypatch.setattr(
        geometry_figures,
        "neuron_per_point",
        lambda seed: per_point(seed, points=5, epochs=2, runs=2),
    )


@pytest.fixture
def as_users_have_it():
    """Use JAX's default settings, because Optax mixes dtypes, and scripts run in float32."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
def test_a_small_run_makes_a_page_that_a_browser_shows(small, as_users_have_it, tmp_path):
    reproduce_geometry.main(out=tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    text = (tmp_path / "out" / "index.html").read_text()
    assert results["command"].startswith("python scripts/reproduce_geometry.py")
    assert str(tmp_path) not in text
    for key, title, _ in geometry_page.SECTIONS:
        assert f'id="{key}"' in text
        assert title in text
    assert files.plain(results) == results
    seen = open_page(tmp_path / "out" / "index.html", 390, 800, scratch=tmp_path)
    assert seen["console"] == []
    assert seen["content"] <= 390
    assert len(seen["figures"]) == 20
    assert all(figure["marks"] > 3 for figure in seen["figures"])


def test_biases_are_drawn_apart_from_weights(key):
    """If one key drew both, the biases of a layer would equal the first of its weights."""
    params = depth.init(key, "default", 100, 2)
    for w, b in params:
        size = b.size
        assert abs(np.corrcoef(np.ravel(w)[:size], np.ravel(b))[0, 1]) < 5 / size**0.5
        assert not np.isin(b, w).any()


@pytest.mark.parametrize("start", depth.STARTS)
def test_a_network_of_figure_2_starts_with_the_recipes_variance(start, key):
    params = depth.init(key, start, 100, 2)
    variance = {"he": 2}.get(start, 1 / 3) / 100
    assert abs(params.first[0].var() / variance - 1) < 0.1
    assert (params.first[1] == 0).all() == (start != "default")
    logits, last = depth.forward(params, jax.random.normal(key, (16, 100)), start)
    assert logits.shape == (16, 10)
    if start in depth.NORMALIZED:
        params = params._replace(hidden=jax.tree.map(lambda w: w[:0], params.hidden))
        x = jax.random.normal(key, (16, 100))
        z = np.asarray(x @ params.first[0])
        expected = np.maximum((z - z.mean(0)) / z.std(0, ddof=1), 0)
        np.testing.assert_allclose(depth.forward(params, x, start)[1], expected, atol=1e-12)
    assert (last >= 0).all()


def test_figure_2_resumes_after_its_last_network(as_users_have_it, monkeypatch, tmp_path):
    images, path, started = random_images(), tmp_path / "figure_2.json", []
    options: dict[str, Any] = {"depths": (0, 2), "steps": 3, "runs": 2}
    pixels = images.x_train.reshape(len(images.x_train), -1)
    pixels = (pixels - pixels.min()) / np.ptp(pixels)  # the pixels lie in [0, 1]

    def run(key, x, y, *, start, hl, steps):
        np.testing.assert_allclose(x, pixels, atol=1e-5)
        started.append((start, hl))
        if len(started) == 6:
            raise KeyboardInterrupt
        return jax.random.uniform(key), hl, len(start)

    monkeypatch.setattr(depth, "run", run)
    with pytest.raises(KeyboardInterrupt):
        depth.measure(images, **options, path=path)
    resumed = depth.measure(images, **options, path=path)
    # The network that was interrupted runs again.
    assert started[4:7] == [("batch_norm", 0), *[("batch_norm", 2)] * 2]
    assert len(started) == 16 + 1
    assert resumed == depth.measure(images, **options)
    assert resumed["he"]["rank"] == [[0, 0], [2, 2]]
    started[:] = started[:6]
    # with other options, all networks run again
    depth.measure(images, **{**options, "steps": 2}, path=path)
    assert len(started) == 6 + 16


def test_rates_of_figure_2_depend_on_depth(as_users_have_it):
    for hl, rate in ((0, 0.01), (6, 0.01), (8, 0.05), (22, 0.005), (32, 0.0005)):
        optimize = depth.optimizer("batch_norm", hl)
        updates, _ = optimize.update(jnp.ones(()), optimize.init(jnp.zeros(())))
        np.testing.assert_allclose(np.asarray(updates), -rate, rtol=1e-5)
    for start in ("default", "he", "batch_norm_sgd"):
        optimize = depth.optimizer(start, 8)
        updates, _ = optimize.update(jnp.ones(()), optimize.init(jnp.zeros(())))
        np.testing.assert_allclose(np.asarray(updates), -0.01, rtol=1e-6)


def test_the_arrays_of_figures_4_7_and_8():
    layers = geometry_figures.figure_4()["layers"]
    assert [len(layer) for layer in layers] == [1, 2, 4, 8]
    expected = [[0, 0, 0, 0.6, 3.6], [2.4, 1.4, 0.4, 0, 0]]
    np.testing.assert_allclose(layers[1], expected, atol=1e-6)
    children = geometry_figures.figure_7_and_8()
    np.testing.assert_allclose(children["7"]["positive"], [0, 0, 0, 0.6, 0.6], atol=1e-6)
    np.testing.assert_allclose(children["8"]["negative"], [1.6, 1.6, 0, 0, 0], atol=1e-6)
    assert [len(set(children["7"][name])) for name in ("positive", "negative")] == [2, 2]
    assert [len(set(children["8"][name])) for name in ("positive", "negative")] == [3, 2]


def test_angles_of_figure_5_are_those_of_all_pairs_of_one_network(small, monkeypatch):
    n, width = 6, 10
    monkeypatch.setattr(geometry_figures, "LAYER", 4)
    monkeypatch.setattr(geometry_figures, "SIZES", ((n, width), (4, 9)))
    with jax.numpy_rank_promotion("allow"):
        figure = geometry_figures.figure_5(3)
    assert_as_recorded("runs/figure_5", condense(figure), rtol=2e-3, atol=1e-3)
    inputs, weights = jax.random.split(jax.random.key(3))
    x = jax.random.normal(inputs, (n, width))
    for part, after in ((name, figure["parts"][name]["after"]) for name in ("none", "recenter")):
        normalization, homogeneous = geometry_figures.PARTS[part]
        network = geometry.random_network(
            weights, x, depth=4, width=width, normalization=normalization, homogeneous=homogeneous
        )
        last = np.asarray(network.x, np.float64)
        norms = np.linalg.norm(last, axis=1)
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
        cosines = [last[i] @ last[j] / norms[i] / norms[j] for i, j in pairs]
        angles = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
        np.testing.assert_allclose(after, angles[::5], atol=1e-3)
        assert figure["parts"][part]["medians"][0] == pytest.approx(np.median(angles))


def test_figure_5_has_two_layers_of_one_size_and_the_last_layer_of_every_size(monkeypatch):
    """The fake angles depend on the seed, the normalization, the size and the layer."""
    names = list(geometry_figures.PARTS)

    def angles(seed, part, n, width):
        rng = np.random.default_rng((seed, names.index(part), n, width))
        return rng.uniform(0, 90, (2, n * (n - 1) // 2))

    monkeypatch.setattr(geometry_figures, "_angles", angles)
    monkeypatch.setattr(geometry_figures, "_infinite_width", lambda *given: given)
    monkeypatch.setattr(geometry_figures, "SIZES", ((3, 2), (4, 6), (5, 1)))
    for scattered in ((4, 6), (7, 3)):  # a size in SIZES, and a new size
        monkeypatch.setattr(geometry_figures, "SCATTERED", scattered)
        found = geometry_figures.figure_5(2)
        assert found["sizes"] == [[3, 2], [4, 6], [5, 1]]
        assert [*found["parts"]] == names
        for name, part in found["parts"].items():
            before, after = angles(2, name, *scattered)
            assert (part["before"], part["after"]) == ([*before[::5]], [*after[::5]])
            assert part["range"] == pytest.approx([np.quantile(after, q) for q in (0.05, 0.95)])
            last = [sorted(angles(2, name, n, width)[1]) for n, width in found["sizes"]]
            # batches of 3, 4 and 5 samples have 3, 6 and 10 pairs
            medians = [last[0][1], sum(last[1][2:4]) / 2, sum(last[2][4:6]) / 2]
            assert part["medians"] == pytest.approx(medians)
            assert part["infinite_width"] == (name, scattered[0])


def test_the_accuracies_of_an_mlp_are_of_the_test_images(as_users_have_it):
    images = random_images()._replace(y_test=np.full(15, -1, np.int32))  # no network predicts −1
    he, zeros = nnx.initializers.he_normal(), nnx.initializers.zeros
    assert geometry_figures._train_mlp(images, he, zeros, 8, 2, 0) == [0, 0]


def test_one_neuron_per_point_is_measured_after_each_epoch(as_users_have_it, monkeypatch):
    images = datasets.load("digits")
    few = images._replace(x_train=images.x_train[:640], y_train=images.y_train[:640])
    monkeypatch.setattr(datasets, "load", lambda name: {"digits": few}[name])
    found = geometry_figures.neuron_per_point(0, points=64, epochs=12, runs=2)
    assert_as_recorded("runs/neuron_per_point", found, rtol=0.02)
    for name in ("he", "point"):
        for accuracies in found[name]:
            assert accuracies[0] < 0.6 < accuracies[-1] < 1


def test_the_answers_of_figure_6_are_counted_above_a_tenth_of_the_largest(small, monkeypatch):
    layer = np.array([[10.0, 0, 0, 4], [1.1, 0, 9, 5], [0.9, 0, 3, 6], [0, 0, 2, 5]])
    seen = []

    def network(seed, part, n, width, statistic, layers):
        seen.append((seed, part, n, width, layers))
        return SimpleNamespace(x=layer)

    monkeypatch.setattr(geometry_figures, "_network", network)
    found = geometry_figures.figure_6(5)
    assert seen == [(5, part, 6, 10, (30,)) for part in ("rescale_rms", "standardize")]
    for part in ("rescale_rms", "standardize"):
        ours = found["parts"][part]
        assert ours["median"] == 0.75  # the three neurons are active for 2, 3 and 4 of the 4 inputs
        assert ours["p95"] == pytest.approx(np.quantile([0.5, 0.75, 1], 0.95))
        assert ours["above_90_percent"] == pytest.approx(1 / 3)
        assert ours["zeros"] == 6 / 16
    # Without recentering, "neuron" has the outputs of the neuron with the largest ratio of mean to
    # standard deviation. With recentering, "neuron" has the outputs of the first live neuron.
    assert found["parts"]["rescale_rms"]["neuron"] == [4, 5, 6, 5]
    assert found["parts"]["standardize"]["neuron"] == [10, 1.1, 0.9, 0]
    assert (found["points"], found["width"], found["layer"]) == (6, 10, 30)


def test_the_odd_network_is_measured_at_its_layers(small, monkeypatch, key):
    monkeypatch.setattr(geometry_figures, "ODD_LAYERS", (1, 3))
    (angles, odd), projection = geometry_figures._odd_network(key)
    inputs, weights, plane = jax.random.split(key, 3)
    x = jax.random.normal(inputs, (8, 8))
    layers = [geometry.random_network(weights, x, depth=k, width=10).x for k in (1, 3)]
    for i, layer in enumerate(layers):
        units = np.asarray(layer) / np.linalg.norm(layer, axis=1, keepdims=True)
        cosines = np.clip(units @ units.T, -1, 1)[np.triu_indices(8, 1)]
        np.testing.assert_allclose(np.cos(angles[i]), cosines, atol=1e-5)
        ratio = geometry.odd_point(geometry.gram(layer)).norm_ratio
        np.testing.assert_allclose(odd.norm_ratio[i], ratio, rtol=1e-5)
    expected = layers[1] @ jax.random.normal(plane, (10, 2))
    np.testing.assert_allclose(projection, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", depth.STARTS)
def test_a_network_of_figure_2_is_ranked_before_training_and_judged_after_it(
    start, as_users_have_it, monkeypatch, key
):
    for name, size in (("WIDTH", 12), ("BATCH", 9), ("SAMPLES", 2000)):
        monkeypatch.setattr(depth, name, size)
    y = jax.random.randint(jax.random.key(1), (64,), 0, 10)
    x = jax.nn.one_hot(y, 10) + 0.1 * jax.random.normal(key, (64, 10))
    traced: Any = depth.run
    # `depth.run` is compiled again, because the sizes are constants of the program.
    run = jax.jit(traced.__wrapped__, static_argnames=("start", "hl", "steps"))
    accuracy, rank, effective = run(key, x, y, start=start, hl=1, steps=300)
    weights, batches, _ = jax.random.split(key, 3)
    first = jax.random.randint(jax.random.split(batches, 300)[0], (9,), 0, 64)
    _, last = depth.forward(depth.init(weights, start, 10, 1), x[first], start)
    assert int(rank) == int(geometry.numerical_rank(last))
    np.testing.assert_allclose(effective, geometry.effective_rank(last), rtol=1e-4)
    least = {"batch_norm": 0.9, "batch_norm_sgd": 0.5, "he": 0.2, "default": 0.12}
    assert accuracy > least[start]
    untrained, _, _ = run(key, x, y, start=start, hl=1, steps=1)
    # With PyTorch's default weights, the network does not learn.
    assert untrained < accuracy or start == "default"


def test_ranks_are_of_the_first_weights_and_the_accuracy_of_the_last(
    as_users_have_it, monkeypatch, key
):
    """The fake training sets all weights to 0, so each image is classified as class 0.

    The fakes for ranks return the outputs that they get.
    """

    def remove(loss, optimizer, params, state, keys):
        return jax.tree.map(jnp.zeros_like, params), state

    monkeypatch.setattr(depth, "scan_steps", remove)
    for name, size in (("WIDTH", 6), ("BATCH", 5), ("SAMPLES", 40)):
        monkeypatch.setattr(depth, name, size)
    ranks = {"numerical_rank": lambda last: last, "effective_rank": lambda last: 2 * last}
    monkeypatch.setattr(depth, "geometry", SimpleNamespace(**ranks))
    traced: Any = depth.run
    x = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    y = np.arange(30, dtype=np.int32) % 3

    @jax.jit  # a single program saves time
    def run(key, x, y):
        weights, batches, sample = jax.random.split(key, 3)
        first = jax.random.randint(jax.random.split(batches, 2)[0], (5,), 0, 30)
        judged = jax.random.randint(sample, (40,), 0, 30)
        w = depth.init(weights, "he", 4, 0).first[0]
        return traced.__wrapped__(key, x, y, start="he", hl=0, steps=2), first, judged, w

    (accuracy, rank, effective), first, judged, w = jax.device_get(run(key, x, y))
    last = np.maximum(x[first] @ w, 0)
    assert (last > 0).any()
    np.testing.assert_allclose(rank, last, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(effective, 2 * last, rtol=1e-4, atol=1e-6)
    labels = y[judged]
    assert accuracy == pytest.approx(np.mean(labels == 0))


def test_the_loss_of_figure_2_is_the_mean_cross_entropy(key):
    params = depth.init(key, "he", 100, 2)
    x, y = jax.random.normal(key, (16, 100)), jnp.arange(16) % depth.CLASSES
    logits = np.asarray(depth.forward(params, x, "he")[0], np.float64)
    own = logits[np.arange(16), np.asarray(y)]
    expected = np.mean(np.log(np.exp(logits).sum(1)) - own)
    np.testing.assert_allclose(depth.loss(params, x, y, "he"), expected, rtol=1e-5)


def test_angles_before_and_after_and_the_projection_are_of_one_network(monkeypatch):
    """The fake values depend on the network and on the layer."""
    layers = len(geometry_figures.ODD_LAYERS)
    pairs = geometry_figures.ODD_POINTS * (geometry_figures.ODD_POINTS - 1) // 2

    def network(key):
        own = jax.random.uniform(key)
        by_layer = own + jnp.arange(1.0, layers + 1)
        odd = geometry.OddPoint(jnp.full(layers, 7), *[by_layer] * 3, spread=by_layer / 2)
        return (jnp.outer(by_layer, jnp.ones(pairs)), odd), jnp.full((2, 2), own)

    monkeypatch.setattr(geometry_figures, "_odd_network", network)
    found = geometry_figures.figure_3(seed=3)
    keys = jax.random.split(jax.random.key(3), geometry_figures.NETWORKS)
    own = np.array([jax.random.uniform(key) for key in keys])
    assert found["index"] == 7
    assert sum(found["odd_pair"]) == geometry_figures.ODD_POINTS - 1
    np.testing.assert_allclose(found["projection"], np.full((2, 2), own[0]), rtol=1e-6)
    for name, layer in (("before", layers - 1), ("after", layers)):
        np.testing.assert_allclose(found[name], np.full(pairs, np.degrees(own[0] + layer)))
    shown = np.array([1, 2, 3, 5]) + np.median(own)
    assert found["layers"] == [10, 30, 100, 300]
    np.testing.assert_allclose(found["medians"]["norm_ratio"], shown)
    np.testing.assert_allclose(found["medians"]["angle"], np.degrees(shown))
    np.testing.assert_allclose(found["medians"]["spread"], np.degrees(shown / 2))


def test_infinite_width_has_the_reference_angles():
    for name, degrees in (("standardize", 74.65), ("recenter", 74.65)):
        assert math.isclose(geometry_figures._infinite_width(name, 10), degrees, abs_tol=5e-3)


def test_a_folder_without_the_data_and_a_file_for_the_page_are_refused(tmp_path):
    with pytest.raises(InputError, match="must hold fashion_mnist"):
        reproduce_geometry.main(data_dir=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="must be a folder"):
        reproduce_geometry.main(out=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "recipe", "data"),
    [
        ({}, depth.SHORT, ("digits", None)),
        (
            {"figure_2": "full", "seed": 5, "data_dir": Path("DIR")},
            depth.FULL,
            ("fashion_mnist", Path("DIR")),
        ),
    ],
)
def test_every_figure_is_measured_once_with_its_seed(options, recipe, data, monkeypatch, tmp_path):
    asked: dict[str, Any] = {}

    def record(name, result):
        def measure(*arguments, **others):
            assert name not in asked
            asked[name] = (*arguments, others)
            return result

        return measure

    seeded = ("figure_3", "figure_5", "figure_6", "neuron_per_point")
    for name in (*seeded, "figure_4", "figure_7_and_8"):
        monkeypatch.setattr(geometry_figures, name, record(name, {"is": name}))
    monkeypatch.setattr(geometry_figures, "ODD_POINTS", 8)
    images = random_images()
    monkeypatch.setattr("experiments.data.datasets.load", record("data", images))
    monkeypatch.setattr(depth, "measure", record("figure_2", {"runs of": "figure_2"}))
    monkeypatch.setattr(geometry_page, "render", lambda results: results["date"])
    out = tmp_path / "out"
    reproduce_geometry.main(**options, out=out)
    results = json.loads((out / "results.json").read_text())
    assert (out / "index.html").read_text() == results["date"]
    assert asked.pop("data") == (*data, {})
    assert asked.pop("figure_2") == (images, recipe | {"path": out / "figure_2.json"})
    seed = options.get("seed", 0)
    assert {name: arguments[:-1] for name, arguments in asked.items()} == {
        **dict.fromkeys(seeded, (seed,)),
        **dict.fromkeys(("figure_4", "figure_7_and_8"), ()),
    }
    for name in (*seeded, "figure_4"):
        assert results[name] == {"is": name}
    assert results["figures_7_and_8"] == {"is": "figure_7_and_8"}
    assert results["figure_2"] == files.plain(recipe | {"data": images.name, "runs of": "figure_2"})
    spread = geometry.odd_points.odd_state(8).spread
    np.testing.assert_allclose(results["odd_state_spread"], np.degrees(spread))
    assert 0 < results["seconds"] <= cli.seconds()
    assert results["seed"] == seed
    assert results["command"].startswith("python scripts/reproduce_geometry.py")
