"""Loaders: the batch of each step, and the start and end of worker processes."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from experiments.data import loaders
from experiments.data.imagenet import Records, Shard
from experiments.recipes import Recipe
from experiments.training import trainer
from tests.support.small_runs import random_images

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture
def mesh():
    return trainer.mesh_of(2)


@pytest.fixture
def streaming(mesh, monkeypatch):
    """A loader of 11 records in batches of 4, and a list of the streams that the loader opens."""
    begun: list[Any] = []

    def batches(records, *, seed, start, **options):
        stream = SimpleNamespace(seed=seed, start=start, open=True, options=options)
        begun.append(stream)
        try:
            for number in range(start, options["stop"]):
                x = np.full((4, 6, 6, 3), number, np.uint8)
                yield x, np.arange(4, dtype=np.int32)
        finally:
            stream.open = False

    monkeypatch.setattr(loaders.imagenet, "batches", batches)
    monkeypatch.setattr(loaders, "local_shard", lambda: "shard")
    recipe = Recipe(batch_size=4, epochs=3, crop=6, scales=(7, 9))
    records: Any = SimpleNamespace(train=range(11), classes=5)
    return loaders.StreamingLoader(records, recipe, mesh, workers=2), begun


def numbers(loader, stream, count):
    """The next `count` batches of `stream`, each named by the value of its first pixel."""
    return [int(loader.device_batch(stream)[0][0, 0, 0, 0]) for _ in range(count)]


def test_a_trainer_s_records_are_read_by_the_workers_of_its_layout(streaming, mesh):
    _, begun = streaming
    recipe = Recipe(batch_size=4, crop=6, scales=(7, 9))
    records = Records("made", "", 5, range(11), range(1))
    loader: Any = trainer._loader(recipe, records, mesh, trainer.Layout(workers=3))
    loader.device_batch(loader.epoch(jnp.int32(0), 0, 0))
    assert [stream.options["workers"] for stream in begun] == [3]
    loader.close()


def test_a_stream_continues_while_batches_follow_each_other(streaming):
    loader, begun = streaming
    assert (loader.count, loader.classes, loader.shape) == (11, 5, (6, 6, 3))
    stream = loader.epoch(jnp.int32(7), 0, 0)
    assert numbers(loader, stream, 2) == [0, 1]
    again = loader.epoch(jnp.int32(7), 1, 0)  # epoch 1 begins after the two batches of epoch 0
    assert again is stream
    assert numbers(loader, again, 1) == [2]
    ((stream,),) = [begun]
    assert (stream.seed, stream.start) == (7, 0)
    assert stream.options == {
        "batch_size": 4, "crop": 6, "scales": (7, 9), "stop": 6, "shard": "shard", "workers": 2,
    }  # fmt: skip


def test_another_step_or_seed_ends_the_workers_and_begins_there(streaming):
    loader, begun = streaming
    numbers(loader, loader.epoch(jnp.int32(7), 0, 0), 1)
    assert numbers(loader, loader.epoch(jnp.int32(7), 2, 1), 1) == [5]
    assert [stream.open for stream in begun] == [False, True]
    numbers(loader, loader.epoch(jnp.int32(7), 0, 1), 1)
    stream = loader.epoch(jnp.int32(8), 1, 0)
    assert numbers(loader, stream, 1) == [2]
    assert [(s.seed, s.start) for s in begun] == [(7, 0), (7, 5), (7, 1), (8, 2)]
    assert [s.open for s in begun] == [False, False, False, True]
    loader.close()
    assert not begun[3].open


def test_a_loader_that_read_nothing_can_be_closed(streaming):
    loader, begun = streaming
    loader.close()
    assert begun == []


def test_streamed_batches_are_sharded_and_standardized(streaming, mesh):
    loader, _ = streaming
    arrays = loader.device_batch(loader.epoch(jnp.int32(0), 0, 0))
    for array, shape in zip(arrays, loader.shapes(jnp.int32(0)), strict=True):
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
        assert array.sharding == shape.sharding
        assert array.sharding.spec == PartitionSpec("data")
        assert array.sharding.mesh == mesh
    x, y = loader.batch(arrays, jnp.int32(1), 4)
    assert x is arrays[0]
    assert y is arrays[1]
    assert loader.draw(jax.random.key(0), 4) == ()
    np.testing.assert_array_equal(loader.augment(x), loaders.standardize(x))
    assert (loader.scannable, loader.in_axes) == (False, None)


def test_pixels_have_imagenet_s_moments():
    pixels = np.array([[[[0, 128, 255]]]], np.uint8)
    expected = [-0.485 / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    found = loaders.standardize(jnp.asarray(pixels))
    np.testing.assert_allclose(found[0, 0, 0], expected, rtol=1e-5)
    assert found.dtype == np.float32


@pytest.fixture
def in_memory(mesh):
    images = random_images()
    return loaders.InMemoryLoader(images, Recipe(augment=True), mesh), images


def test_a_step_has_its_part_of_the_order(in_memory, mesh):
    loader, images = in_memory
    assert (loader.count, loader.classes, loader.shape) == (70, 2, (4, 4, 1))
    order = loader.epoch(jnp.int32(3), 1, 0)
    np.testing.assert_array_equal(np.sort(order), np.arange(70))
    arrays = loader.device_batch(order)
    for array, shape in zip(arrays, loader.shapes(jnp.int32(0)), strict=True):
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
        assert array.sharding.is_fully_replicated
        assert shape.sharding.is_fully_replicated
        assert array.sharding.mesh == shape.sharding.mesh == mesh
    for step in (0, 2):
        x, y = loader.batch(arrays, jnp.int32(step), 16)
        index = np.asarray(order)[16 * step : 16 * step + 16]
        np.testing.assert_array_equal(x, images.x_train[index])
        np.testing.assert_array_equal(y, images.y_train[index])


def test_orders_of_several_seeds_are_those_of_each(in_memory):
    loader, _ = in_memory
    seeds = jnp.array([3, 4], jnp.int32)
    both = loader.epoch(seeds, 1, 0)
    for order, seed in zip(both, seeds, strict=True):
        np.testing.assert_array_equal(order, loader.epoch(seed, 1, 0))
    assert (np.asarray(both[0]) != np.asarray(both[1])).any()
    assert (np.asarray(loader.epoch(seeds, 2, 0)) != np.asarray(both)).any(1).all()
    assert loader.shapes(seeds)[2].shape == (2, 70)


def test_images_are_augmented_where_the_recipe_says(in_memory, mesh, key):
    loader, images = in_memory
    offsets, flips = loader.draw(key, 500)
    assert (offsets.min(), offsets.max(), offsets.shape) == (0, 8, (500, 2))
    assert 200 < flips.sum() < 300
    assert (offsets != loader.draw(jax.random.key(1), 500)[0]).any()
    x = jnp.asarray(images.x_train[:2])
    found = loader.augment(x, jnp.full((2, 2), 4), jnp.array([[True], [False]]))
    np.testing.assert_array_equal(found, [x[0, :, ::-1], x[1]])  # offset 4 moves nothing
    plain = loaders.InMemoryLoader(images, Recipe(augment=False), mesh)
    assert plain.draw(key, 5) == ()
    assert plain.augment(x) is x
    assert (loader.scannable, loader.in_axes) == (True, (None, None, 0))
    loader.close()


def test_crops_are_where_they_were_drawn_and_flips_mirror_columns():
    x = jnp.asarray(np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5, 1))
    offsets, flips = jnp.asarray([[4, 4], [3, 6]]), jnp.asarray([[True], [False]])
    found = np.asarray(jax.jit(loaders.crop)(x, offsets, flips))
    x = np.asarray(x)
    np.testing.assert_array_equal(found[0], x[0, :, ::-1])  # offset 4 moves nothing
    expected = np.zeros((3, 5, 1))
    expected[1:, :3] = x[1, :2, 2:]  # the image is shifted one row down and two columns left
    np.testing.assert_array_equal(found[1], expected)


def test_every_process_reads_its_shard_of_a_batch(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    assert loaders.local_shard() == Shard(1, 3)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_tree_is_resharded_on_explicit_axes_alone(axis_type):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(axis_type,))
    (x,) = loaders.replicate(mesh, np.arange(4.0))
    np.testing.assert_array_equal(x, np.arange(4.0))
    assert x.sharding.is_fully_replicated
    found = loaders.sharded(mesh, PartitionSpec("data"), {"a": x})["a"]
    if axis_type == AxisType.Auto:
        assert found is x
    else:
        assert found.sharding.spec == PartitionSpec("data")
    np.testing.assert_array_equal(found, x)
