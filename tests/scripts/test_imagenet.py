"""Streamed images: the views of the paper, and batches that depend only on their number."""

import contextlib
import gc
import io
import re
import struct
import weakref
import zlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import recipes
from experiments.cli import InputError
from experiments.data import datasets, imagenet, loaders
from experiments.recipes import PRESETS, replace
from experiments.training import evaluation, trainer
from tests.support.made_imagenet import CLASSES, make, pictures

CROP, SCALES = 32, (36, 48)
RECIPE = replace(
    PRESETS["imagenet-resnet34"][1], crop=CROP, scales=SCALES, test_scales=(32, 48), batch_size=8
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    make(folder)
    return datasets.records("imagenet2012", folder)


def test_records_say_what_they_are_of(records):
    assert (records.name, records.classes, records.version) == ("imagenet2012", 3, "5.1.0")


def image(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def mirrored(picture):
    return Image.fromarray(np.asarray(picture)[:, ::-1])


def as_set(views):
    return {view.tobytes() for view in views}


def test_crops_are_42_and_the_same_of_the_mirror_image():
    scales = (224, 256, 384, 480, 640)
    picture = image(300, 224)
    views = imagenet.multi_scale_crops(picture, crop=224, scales=scales)
    assert len(views) == 42
    assert {view.shape for view in views} == {(224, 224, 3)}
    # We compare only one scale, without resizing. After resizing, an image and its mirror image
    # differ in a few bytes, because of rounding.
    mirror_crops = imagenet.ten_crops(mirrored(picture), crop=200)
    assert as_set(mirror_crops) == as_set(imagenet.ten_crops(picture, crop=200))


def test_at_the_scale_of_the_crop_a_square_image_is_its_middle():
    picture = image(90, 90)
    (whole,) = imagenet.whole_images(picture, scales=(64,))
    middle, mirror = imagenet.multi_scale_crops(picture, crop=64, scales=(64,))
    np.testing.assert_array_equal(whole, middle)
    np.testing.assert_array_equal(whole[:, ::-1], mirror)
    tall = image(100, 64)  # the crop leaves out 18 rows above and 18 below
    middle, mirror = imagenet.multi_scale_crops(tall, crop=64, scales=(64,))
    np.testing.assert_array_equal(middle, np.asarray(tall)[18:-18])
    np.testing.assert_array_equal(mirror, np.asarray(tall)[18:-18, ::-1])


def test_whole_images_keep_their_shape_to_a_stride():
    (nearly_square,) = imagenet.whole_images(image(100, 102), scales=(40,))
    # If the shorter side is resized to 40, the longer side becomes 40.8. The nearest multiple of 32
    # is 32, which is less than the shorter side, so both sides are 40.
    assert nearly_square.shape == (40, 40, 3)
    for height, width in ((300, 400), (400, 300), (375, 500), (64, 640), (500, 500)):
        for shorter, view in zip(
            (224, 256), imagenet.whole_images(image(height, width), scales=(224, 256)), strict=True
        ):
            sides = np.array(view.shape[:2])
            assert min(sides) == shorter
            exact = np.array([height, width]) * shorter / min(height, width)
            assert np.abs(sides - exact).max() <= 16
            assert max(sides) % 32 == 0 or max(sides) == shorter


def test_training_crops_have_shorter_sides_of_all_scales():
    ramp = np.tile(np.arange(240, dtype=np.uint8)[:, None, None], (1, 240, 3))
    rng, found, flips = np.random.default_rng(0), set(), 0
    wide = Image.fromarray(np.transpose(ramp, (1, 0, 2)))
    for _ in range(300):
        crop = imagenet.scale_crop(wide, rng, crop=24, scales=(24, 60))
        assert crop.shape == (24, 24, 3)
        steps = np.diff(crop[0, 2:-2, 0].astype(int)).mean()
        flips += steps < 0
        found.add(round(240 / abs(steps)))
    assert min(found) <= 26
    assert max(found) >= 57
    assert 110 < flips < 190


def test_a_shorter_side_is_drawn_from_all_scales(monkeypatch):
    drawn = set()
    resize = imagenet.resize

    def watched(image, shorter):
        drawn.add(shorter)
        return resize(image, shorter)

    monkeypatch.setattr(imagenet, "resize", watched)
    image, rng = Image.new("RGB", (40, 30)), np.random.default_rng(0)
    for _ in range(200):
        imagenet.scale_crop(image, rng, crop=24, scales=(24, 33))
    assert drawn == set(range(24, 34))


def read_batches(records, count, **options):
    defaults = {"batch_size": 8, "crop": CROP, "scales": SCALES, "seed": 0, "start": 0, "stop": 99}
    defaults |= {"shard": imagenet.Shard(), "workers": 0}
    with contextlib.closing(imagenet.batches(records.train, **(defaults | options))) as stream:
        return [next(stream) for _ in range(count)]


def equal(some, others):
    for batch, same in zip(some, others, strict=True):
        for a, b in zip(batch, same, strict=True):
            np.testing.assert_array_equal(a, b)


def test_batches_depend_on_their_number(records):
    batches = read_batches(records, 7)  # an epoch has three batches
    equal(read_batches(records, 3, start=4), batches[4:])
    equal(read_batches(records, 2, workers=2), batches[:2])
    assert (read_batches(records, 1, seed=1)[0][0] != batches[0][0]).any()
    assert (batches[0][0] != batches[3][0]).any()


def test_no_batch_outlives_its_processes(records):
    options = {"batch_size": 8, "crop": CROP, "scales": SCALES, "seed": 0, "start": 0, "stop": 1}
    gc.disable()  # the garbage collector would free cycles at an unknown moment
    try:
        stream = imagenet.batches(records.train, **options, shard=imagenet.Shard(), workers=1)
        (references,) = [[weakref.ref(array) for array in batch] for batch in stream]
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_processes_read_the_shards_of_each_batch(records):
    batches = read_batches(records, 2)
    parts = [read_batches(records, 2, shard=imagenet.Shard(i, 4)) for i in range(4)]
    together = [
        tuple(np.concatenate(arrays) for arrays in zip(*shares, strict=True))
        for shares in zip(*parts, strict=True)
    ]
    equal(together, batches)


@pytest.mark.parametrize("processes", [2, 4])
def test_shards_that_are_read_alone_are_parts_of_the_batch(processes, records):
    def read(shard):
        indices, rng = np.array([5, 0, 25, 9]), np.random.default_rng(0)
        return imagenet._read(records.train, shard, indices, rng, crop=CROP, scales=SCALES)

    parts = [read(imagenet.Shard(i, processes)) for i in range(processes)]
    equal([tuple(map(np.concatenate, zip(*parts, strict=True)))], [read(imagenet.Shard())])


def test_a_run_that_resumes_within_an_epoch_reads_the_rest_of_the_epoch(records):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        program = trainer.Trainer(replace(RECIPE, model="vgg11"), records, trainer.mesh_of(1))
    resumed = program._device_batch(program.batches((0,), 1, 2))
    stream = program.batches((0,), 1, 0)
    *_, last = (program._device_batch(stream) for _ in range(program.steps))
    program.close()
    equal([resumed], [last])


def test_an_epoch_has_no_image_twice(records):
    drawn = []
    for x, y in read_batches(records, 3):
        for crop, label in zip(x, y, strict=True):
            assert crop.mean((0, 1)).argmax() == label  # the brightest channel is the label
        drawn += list(y)
    counts = np.bincount(drawn, minlength=CLASSES)
    assert counts.sum() == 24
    assert counts.max() <= 9  # no image is drawn twice, and each class has at most 9


def test_the_centre_is_cut_after_the_shorter_side_has_eight_sevenths_of_the_crop():
    pixels = np.random.default_rng(0).integers(0, 256, (320, 256, 3), np.uint8)
    # The shorter side is already 8/7 of the crop.
    (view,) = imagenet.center(Image.fromarray(pixels), crop=224)
    np.testing.assert_array_equal(view, pixels[48:-48, 16:-16])
    assert imagenet.resize(Image.new("RGB", (3, 4)), 2).size == (2, 3)  # 8/3 is rounded to 3


def test_eight_sevenths_of_a_crop_are_rounded():
    """Of 32 pixels, 8/7 are 36.6, so an image of 37 pixels keeps its size."""
    pixels = np.random.default_rng(0).integers(256, size=(37, 37, 3), dtype=np.uint8)
    (view,) = imagenet.center(Image.fromarray(pixels), crop=32)
    np.testing.assert_array_equal(view, pixels[2:34, 2:34])


def test_every_view_of_every_image_counts_once(records):
    """The logits are the mean colour of a view, so a loop over images can compute the accuracy."""
    mesh = trainer.mesh_of(2)

    def logits(network, x):
        return x.mean((1, 2)) * network[None]

    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        fractions = evaluation.RecordEvaluator(logits, records, RECIPE, mesh, 0)
        views = {
            "whole": lambda picture: imagenet.whole_images(picture, scales=(32, 48)),
            "center": lambda picture: imagenet.center(picture, crop=CROP),
        }
        right: list[bool] = []
        for network in (np.ones(3, np.float32), np.array([1, -1, 1], np.float32)):
            for views_of in views.values():
                found, right = fractions(network, views_of), []
                for record in records.test:
                    means = [
                        np.asarray(loaders.standardize(jnp.asarray(view[None]))).mean((1, 2))[0]
                        * network
                        for view in views_of(imagenet.decode(record))
                    ]
                    right.append(np.mean(means, 0).argmax() == record["label"])
                assert found == {"accuracy": np.mean(right), "top_5": 1.0}
    assert 0 < np.mean(right) < 1


def test_the_top_five_are_those_with_fewer_than_five_above(records):
    def logits(network, x):
        scores = np.arange(8, 0, -1, dtype=np.float32)  # k labels have a larger score than label k
        return x.mean((1, 2, 3))[:, None] * 0 + network * scores[None]

    labelled = [dict(record, label=i % 8) for i, record in enumerate(records.test)]
    many = records._replace(classes=8, test=labelled)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        fractions = evaluation.RecordEvaluator(logits, many, RECIPE, trainer.mesh_of(1), 0)
        found = fractions(np.float32(1), lambda picture: imagenet.center(picture, crop=CROP))
    labels = np.arange(11) % 8
    assert found == {"accuracy": np.mean(labels == 0), "top_5": np.mean(labels < 5)}


def test_records_that_are_no_images_are_refused(records):
    with pytest.raises(InputError, match=r"every record must be an image; b'x\.JPEG' is none"):
        imagenet.decode({"image": b"text", "file_name": b"x.JPEG"})
    with pytest.raises(InputError, match="imagenet2012; got 'cifar10'"):
        datasets.records("cifar10")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"crop": 260, "test_scales": (260,)},
            "--crop must be positive and at most the shorter of --scales",
        ),
        ({"scales": (300, 290)}, "--crop must be positive and at most the shorter of --scales"),
        ({"test_scales": ()}, "--test-scales must be at least --crop, 224"),
        *(
            ({"test_scales": sizes}, "--test-scales must be at least --crop, 224")
            for sizes in ((200, 300), (300, 200), (300, 223, 300))
        ),
    ],
)
def test_impossible_sizes_are_refused(changes, sentence):
    recipe = PRESETS["imagenet-resnet101"][1]
    with pytest.raises(InputError, match=sentence):
        recipes.check(replace(recipe, **changes))
    recipes.check(replace(recipe, crop=256, scales=(256, 256), test_scales=(300, 256)))


def test_made_images_show_their_label():
    assert all(pixels.mean((0, 1)).argmax() == label for pixels, label in pictures(9, 0))


def encoded(kind, picture=None):
    file = io.BytesIO()
    (picture or image(40, 60)).save(file, kind)
    return file.getvalue()


def claims(width, height):
    """The bytes of a PNG whose header declares the given width and height."""
    content = bytearray(encoded("PNG"))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.filterwarnings("ignore")  # Pillow warns if an image is large
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_damaged_image_of_any_format_is_decoded_or_refused_in_a_sentence(kind):
    original, rng = encoded(kind), np.random.default_rng(0)
    said = []
    for _ in range(150):
        content = bytearray(original)
        for _ in range(rng.integers(1, 8)):
            content[rng.integers(min(len(content), 200))] = rng.integers(256)
        del content[rng.integers(len(content) // 2, len(content) + 1) :]
        try:
            found = imagenet.decode({"image": bytes(content), "file_name": b"a"})
        except InputError as error:
            said.append(str(error))
        else:
            assert found.mode == "RGB"
    assert len(said) > 10
    for sentence in said:
        assert re.match(r"every record must be an image; b'a' is none \(\w+: [^\n]*\)$", sentence)
        assert "BytesIO" not in sentence


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (claims(65_000, 65_000), "DecompressionBombError"),
        (claims(20_000, 1), r"its sides \(20000, 1\) must differ by a factor of at most 32"),
        (
            encoded("PNG", image(3000, 1)),
            r"its sides \(1, 3000\) must .* by a factor of at most 32",
        ),
        (b"", "UnidentifiedImageError: cannot identify image file"),
    ],
)
def test_an_image_that_would_fill_the_memory_is_none(content, said):
    with pytest.raises(InputError, match=said):
        imagenet.decode({"image": content})


def test_a_record_that_cannot_be_read_is_named_by_split_and_number():
    """The test reads bad records in training and in validation."""
    good = {"image": encoded("PNG"), "label": 1}
    for bad in ({"image": b"", "label": 1}, {"image": good["image"], "label": None}):
        records = [good, bad]
        read = partial(imagenet._read, records, imagenet.Shard(), crop=CROP, scales=SCALES)
        with pytest.raises(InputError, match="record 1 of train: "):
            read(np.array([1, 0]), np.random.default_rng(0))
        with pytest.raises(InputError, match="record 1 of validation: "):
            evaluation._view(records, partial(imagenet.center, crop=CROP), 1)
