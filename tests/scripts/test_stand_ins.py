"""Noise with the shape of a data set, for measuring the speed of a preset."""

import math
from dataclasses import replace

import numpy as np
import pytest

import train
from experiments.cli import InputError
from experiments.data import datasets, stand_ins
from experiments.data.datasets import Images
from experiments.data.imagenet import decode
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.mark.parametrize("name", stand_ins.DATA_SETS)
def test_noise_has_the_shape_and_the_classes_of_its_data_set(name):
    made = stand_ins.noise(name, 6)
    assert (made.note, made.version) == (stand_ins.NOTE, "noise")
    if isinstance(made, Images):
        assert made.y_train.dtype == made.y_test.dtype == np.int32
        assert made.x_train.shape[1:] == stand_ins.DATA_SETS[name].shape
        assert (len(made.x_train), len(made.y_train), len(made.x_test)) == (120, 120, 6)
        assert abs(made.x_train.mean()) < 0.1
        assert abs(made.x_train.std() - 1) < 0.1
        assert {0, made.classes - 1} <= {*made.y_train} or made.classes > 10
    else:
        assert (len(made.train), len(made.test)) == (120, 6)
        assert np.asarray(decode(made.train[7])).shape == stand_ins.JPEG_SHAPE
        assert [made.train[i]["label"] for i in (0, 7, 119)] == [0, 7, 119]


def test_noise_of_the_digits_has_their_sizes_and_that_of_images_their_pixels():
    digits, sizes = datasets.load("digits"), stand_ins.DATA_SETS
    assert sizes["digits"] == (len(digits.x_train), digits.x_train.shape[1:], digits.classes)
    pixels = {name: math.prod(size.shape) for name, size in sizes.items()}
    assert pixels["mnist"] == pixels["fashion_mnist"] == 784
    assert pixels["cifar10"] == pixels["cifar100"] == 3072


@pytest.mark.parametrize(
    ("name", "batch", "steps"),
    [
        ("imagenet2012", 256, 5004),
        ("cifar10", 128, 390),
        ("cifar100", 128, 390),
        ("mnist", 128, 468),
    ],
)
def test_an_epoch_has_the_published_number_of_whole_batches(name, batch, steps):
    made = stand_ins.shapes_of(name)
    count = len(made.x_train) if isinstance(made, Images) else len(made.train)
    assert count // batch == steps


def test_an_unknown_data_set_has_no_noise():
    with pytest.raises(InputError, match=r"--dataset must be one of digits, .*; got svhn"):
        stand_ins.noise("svhn", 4)


def test_a_run_on_noise_needs_no_data_and_says_so(tmp_path, capsys):
    options = train.Options(fake_data=True, devices=1, out=tmp_path)
    recipe = replace(SMALL, dataset="mnist", model="mlp", epochs=1)
    train.main(recipe, options)
    assert stand_ins.NOTE in capsys.readouterr().out
    assert stand_ins.NOTE.split(":")[0] in (tmp_path / "index.html").read_text()
    with pytest.raises(InputError, match="--data-dir must be a folder"):
        train.main(recipe, replace(options, fake_data=False, data_dir=tmp_path / "none"))
