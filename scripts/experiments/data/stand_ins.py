"""Replacements for data sets: only shapes for compilation, or noise for measuring speed."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from experiments.cli import InputError
from experiments.data import datasets
from experiments.data.datasets import Images
from experiments.data.imagenet import Records
from experiments.recipes import Recipe

STEPS = 20  # The number of batches of noise in an epoch.
JPEG_SHAPE = (375, 500, 3)  # The most frequent shape of an image in ImageNet.
NOTE = "Random images and labels: only times have a meaning, accuracies do not."


class DataSet(NamedTuple):
    """A data set's number of training images, the shape of an image, and the number of classes."""

    images: int  # the number of training images
    shape: tuple[int, int, int]
    classes: int


DATA_SETS = {
    "digits": DataSet(1437, (8, 8, 1), 10),
    "mnist": DataSet(60_000, (28, 28, 1), 10),
    "fashion_mnist": DataSet(60_000, (28, 28, 1), 10),
    "cifar10": DataSet(50_000, (32, 32, 3), 10),
    "cifar100": DataSet(50_000, (32, 32, 3), 100),
    # The height and the width are 0, because the recipe decides the size of crops.
    "imagenet2012": DataSet(1_281_167, (0, 0, 3), 1000),
}


class EqualRecords(Sequence[dict[str, Any]]):
    """A sequence of records with the same JPEG file; the labels are 0, 1, … in turn."""

    def __init__(self, count: int, classes: int):
        self.size, self.classes = count, classes
        noise = np.random.default_rng(0).integers(0, 256, JPEG_SHAPE, np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=75)
        self.image = file.getvalue()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return {"image": self.image, "label": index % self.classes}


def shapes_of(name: str) -> Images | Records:
    """A data set with the right shapes, but without images.

    Raises:
      InputError: The name is unknown.
    """
    count, shape, classes = _sizes(name)
    if name == "imagenet2012":
        return Records(name, "", classes, range(count), range(1))
    x = np.broadcast_to(np.float32(0), (count, *shape))
    y = np.broadcast_to(np.int32(0), count)
    return Images(name, "", classes, x, y, x[:1], y[:1])


def load(recipe: Recipe, data_dir: Path | None, *, fake: bool) -> Images | Records:
    """The data set of a recipe or, if `fake` is true, noise with the data set's shape."""
    if fake:
        return noise(recipe.dataset, recipe.batch_size)
    return datasets.load_or_stream(recipe.dataset, data_dir)


def noise(name: str, batch_size: int) -> Images | Records:
    """Random images with a data set's shape; 20 batches are for training, and one is for testing.

    For ImageNet, every record holds the same JPEG file, which has the most frequent size and is
    decoded for each record.

    Raises:
      InputError: The name is unknown.
    """
    _, shape, classes = _sizes(name)
    train, test = STEPS * batch_size, batch_size
    if name == "imagenet2012":
        splits = EqualRecords(train, classes), EqualRecords(test, classes)
        return Records(name, NOTE, classes, *splits, "noise")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((train + test, *shape), np.float32)
    y = rng.integers(0, classes, train + test, np.int32)
    return Images(name, NOTE, classes, x[:train], y[:train], x[train:], y[train:], "noise")


def _sizes(name: str) -> DataSet:
    if name not in DATA_SETS:
        raise InputError(f"--dataset must be one of {', '.join(DATA_SETS)}; got {name}")
    return DATA_SETS[name]
