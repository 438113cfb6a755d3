"""Accuracies on test images: every image counts once, for its own network and label."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from experiments.data.imagenet import Records
from experiments.data.loaders import standardize
from experiments.recipes import Recipe
from experiments.training import accuracies, evaluation, trainer
from tests.support.small_runs import random_images

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")

RNG = np.random.default_rng(0)
KERNELS = RNG.normal(size=(3, 16, 2)).astype(np.float32)  # one kernel for each of three networks


def logits(kernel, x):
    return x.reshape(len(x), -1) @ kernel


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("chunk", [4, 6, 15, 512])
def test_every_chunk_of_the_test_images_counts_once_for_every_seed(chunk, devices, monkeypatch):
    """There are fifteen images. The size of a chunk is rounded up to a multiple of `devices`."""
    monkeypatch.setattr(evaluation, "CHUNK", chunk)
    images = random_images()
    # Only the last four images have label 0. If the last chunk were left out or counted twice, the
    # accuracies would change.
    images = images._replace(y_test=np.where(np.arange(15) < 11, 1, 0).astype(np.int32))
    mesh = trainer.mesh_of(devices)
    x = images.x_test.reshape(15, 16)
    expected = [float(np.mean((x @ k).argmax(1) == images.y_test)) for k in KERNELS]
    assert len(set(expected)) == 3
    of_all = evaluation.array_evaluator(logits, images, mesh, vmap_seeds=True)
    assert of_all(jnp.asarray(KERNELS)) == [{"accuracy": value} for value in expected]
    of_one = evaluation.array_evaluator(logits, images, mesh, vmap_seeds=False)
    for kernel, value in zip(KERNELS, expected, strict=True):
        assert of_one(jnp.asarray(kernel)) == [{"accuracy": value}]


def test_padding_counts_for_no_class(monkeypatch):
    """The network predicts class 0 for every image, and three of five images have this class."""
    monkeypatch.setattr(evaluation, "CHUNK", 4)
    images = random_images()
    images = images._replace(x_test=images.x_test[:5], y_test=np.array([0, 1, 0, 1, 0], np.int32))
    found = evaluation.array_evaluator(
        lambda network, x: jnp.zeros((len(x), 2)), images, trainer.mesh_of(1), vmap_seeds=False
    )
    assert found(jnp.zeros(())) == [{"accuracy": 0.6}]


@pytest.mark.parametrize(("precision", "expected"), [("bfloat16", 1.0), ("float32", 0.0)])
def test_images_are_evaluated_in_the_precision_of_the_network(precision, expected):
    """The logits 1 and 1.001 are equal in bfloat16, so the first class is predicted."""

    class TwoPixels(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((), jnp.float32))

        def __call__(self, x):
            return x.reshape(len(x), 2) * self.w[...]

    model, images = TwoPixels(), random_images()
    x = np.full((4, 1, 2, 1), [[[1.0], [1.001]]], np.float32)
    images = images._replace(x_train=x, x_test=x, y_test=np.zeros(4, np.int32))
    evaluate = evaluation.evaluator(
        Recipe(precision=precision), images, model, trainer.mesh_of(1), vmap_seeds=False, workers=0
    )
    network = nnx.state(model, nnx.Param), nnx.state(model, nnx.BatchStat)
    assert evaluate(network) == [{"accuracy": expected}]


@pytest.fixture
def seven_records(monkeypatch):
    """Seven labelled images. Each image has one colour, and its views have two sizes."""
    colours = RNG.integers(0, 256, (7, 3)).astype(np.uint8)
    records = [{"image": i, "label": [5, 0, 3, 6, 1, 2, 4][i]} for i in range(7)]
    monkeypatch.setattr(
        evaluation.imagenet,
        "decode",
        lambda record: Image.fromarray(np.tile(colours[record["image"]], (4, 4, 1))),
    )
    return Records("made", "", 7, records, records), colours


def some_views(image):
    """One view of an image, or two if its first value is even; the second is smaller and darker."""
    pixels = np.asarray(image)
    return [pixels] if pixels[0, 0, 0] % 2 else [pixels, pixels[:2, :2] // 2]


def test_an_image_has_the_mean_of_the_logits_of_its_own_views(seven_records):
    """Logits are not linear in the pixels. The last batches have fewer than three views."""
    records, colours = seven_records
    kernels = RNG.normal(size=(6, 3, 7)).astype(np.float32)

    def bent(network, x):
        return jnp.sin(x.mean((1, 2)) @ network) * x.shape[1]

    evaluator = evaluation.RecordEvaluator(
        bent, records, Recipe(batch_size=3, crop=4), trainer.mesh_of(1), workers=0
    )
    views = [some_views(Image.fromarray(np.tile(colour, (4, 4, 1)))) for colour in colours]
    assert {len(own) for own in views} == {1, 2}
    labels = np.array([record["label"] for record in records.test])
    places = []  # for each image, the rank of its label among the classes
    for kernel in kernels:
        scores = []
        for own in views:
            parts = [np.asarray(standardize(jnp.asarray(v[:1, :1][None])))[0, 0, 0] for v in own]
            sums = [np.sin(p @ kernel) * len(v) for p, v in zip(parts, own, strict=True)]
            scores.append(np.mean(sums, 0))
        order = np.argsort(-np.array(scores), 1)
        places.append(np.argmax(order == labels[:, None], 1))
        found = evaluator(jnp.asarray(kernel), some_views)
        expected = {"accuracy": np.mean(places[-1] == 0), "top_5": np.mean(places[-1] < 5)}
        assert found == pytest.approx(expected)
    assert {*np.ravel(places)} == {*range(7)}


def test_a_batch_of_views_has_as_many_pixels_as_a_batch_of_the_training(seven_records):
    records, _ = seven_records
    recipe = Recipe(batch_size=6, crop=4)
    of_one, of_two = (
        evaluation.RecordEvaluator(logits, records, recipe, trainer.mesh_of(n), 0) for n in (1, 2)
    )
    sizes = {(4, 4, 3): (6, 6), (8, 4, 3): (3, 2), (8, 8, 3): (1, 2), (40, 40, 3): (1, 2)}
    for shape, expected in sizes.items():
        assert (of_one._batch_size(shape), of_two._batch_size(shape)) == expected


def test_each_evaluation_has_its_own_views(monkeypatch):
    """An evaluation uses the center of an image, crops at several scales, or the whole image."""
    asked: list[Any] = []

    class Evaluator:
        def __init__(self, logits, records, recipe, mesh, workers):
            asked.append(workers)

        def __call__(self, network, views):
            return {"accuracy": views.func.__name__, **views.keywords}

    monkeypatch.setattr(evaluation, "RecordEvaluator", Evaluator)
    monkeypatch.setattr(evaluation, "inference_graph", lambda model: model)
    monkeypatch.setattr(evaluation.jaxnorm.nnx, "fix_pixels", lambda model, example: model)
    records: Any = Records("made", "", 7, [], [])
    recipe = Recipe(crop=5, test_scales=(5, 9), scales=(6, 7))
    model: Any = SimpleNamespace()
    found = evaluation.evaluator(
        recipe, records, model, trainer.mesh_of(1), vmap_seeds=False, workers=3
    )
    assert asked == [3]
    assert found(None) == found(None, "center") == [{"accuracy": "center", "crop": 5}]
    many = {"accuracy": "multi_scale_crops", "crop": 5, "scales": (5, 9)}
    assert found(None, "crops") == [many]
    whole = {"accuracy": "whole_images", "scales": (5, 9)}
    assert found(None, "whole") == [whole]
    given: Any = SimpleNamespace(_evaluate=found)
    state: Any = SimpleNamespace(params=None, statistics=None)
    views = trainer.Trainer.evaluate_views(given, state, ("whole", "crops"))
    assert views == {"whole": whole, "crops": many}


def test_columns_of_accuracies_are_in_percent_and_the_plain_evaluation_comes_first():
    views = {"whole": {"top_5": 0.5}, "crops": {"accuracy": 0.12345, "top_5": 1.0}}
    assert list(accuracies.percentages({"top_5": 0.75, "accuracy": 0.333333}, views).items()) == [
        ("top-1, %", "33.33"),
        ("top-5, %", "75.00"),
        ("whole: top-5, %", "50.00"),
        ("crops: top-1, %", "12.35"),
        ("crops: top-5, %", "100.00"),
    ]


@pytest.mark.parametrize(
    ("dataset", "expected"), [("made", (6, 4, 4, 1)), ("imagenet2012", (6, 5, 5, 3))]
)
def test_layers_keep_the_number_of_pixels_of_the_training(dataset, expected, monkeypatch):
    """For views of any size, layers divide by the number of pixels of the training images."""
    shapes: list[Any] = []
    monkeypatch.setattr(
        evaluation.jaxnorm.nnx, "fix_pixels", lambda model, x: shapes.append(x.shape) or model
    )
    monkeypatch.setattr(evaluation, "inference_graph", lambda model: model)
    data: Any = random_images() if dataset == "made" else Records(dataset, "", 7, [], [])
    recipe, model = Recipe(crop=5, statistics_groups=3), None
    evaluation.evaluator(
        recipe,
        data,
        model,  # pyright: ignore[reportArgumentType]
        trainer.mesh_of(1),
        vmap_seeds=False,
        workers=0,
    )
    assert shapes == [expected]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_is_evaluated_in_the_precision_of_its_training(precision, monkeypatch):
    """Layers compute in the given precision, but running statistics are never cast."""
    found: list[Any] = []
    monkeypatch.setattr(
        evaluation, "array_evaluator", lambda logits, *_, **__: found.append(logits)
    )
    recipe = Recipe(model="mlp", precision=precision, batch_size=16)
    images = random_images()
    program = trainer.Trainer(recipe, images, trainer.mesh_of(1))
    state: Any = program.init_state((0,))
    statistics = jax.tree.map(lambda a: a + 1.001, state.statistics)
    x = jnp.asarray(images.x_test)
    scores = found[0]((state.params, statistics), x)
    assert scores.dtype == jnp.float32
    dtype = jnp.dtype(precision)
    w: Any = state.params

    def of(array):  # rounds values to `dtype`, and returns float32
        return np.asarray(jnp.asarray(array).astype(dtype).astype(jnp.float32))

    h = of(x).reshape(15, 16)
    norms = [np.asarray(statistics["norms"][i][k][...]) for i in range(2) for k in ("mean", "var")]
    for i in range(2):
        h = h @ of(w["layers"][i]["kernel"][...])
        h = np.maximum((h - norms[2 * i]) / np.sqrt(norms[2 * i + 1] + 1e-5), 0)
    expected = h @ of(w["head"]["kernel"][...])
    exact = precision == "float32"
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4 if exact else 0.05)
    if not exact:  # the scores are bfloat16 values
        np.testing.assert_array_equal(of(scores), scores)
