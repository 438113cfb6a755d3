"""Data are read and never downloaded, and an interrupted run ends with the same results."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments import recipes
from experiments.cli import InputError
from experiments.data import datasets
from experiments.training import loop, paired_runs
from tests.support.small_runs import View

RECIPE = recipes.Recipe(model="preact8", normalization="unitized", epochs=3)


@pytest.fixture(scope="module", autouse=True)
def optimized(users_jax):
    """Compile with optimizations, because unoptimized convolutions take longer."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def digits(optimized):
    images = datasets.load("digits")
    return images._replace(x_train=images.x_train[:192], y_train=images.y_train[:192])


@pytest.fixture(scope="module")
def unitized(digits):
    return paired_runs.program(RECIPE, digits)


@pytest.fixture(scope="module")
def trained(unitized, tmp_path_factory):
    """The folder of a finished run, and the state and history of the run."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(unitized, folder)


def train(program, folder, view=None):
    return paired_runs.train(program, 0, folder, view or View())


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_digits_are_prepared_once_and_standardized():
    first, again = datasets.load("digits"), datasets.load("digits")
    assert len(first.x_train) + len(first.x_test) == 1797
    assert first.x_train.shape[1:] == (8, 8, 1)
    np.testing.assert_allclose([first.x_train.mean(), first.x_train.std()], [0, 1], atol=1e-5)
    assert np.bincount(first.y_test).min() >= 34  # a fifth of every class is in the test set
    for a, b in zip(first[3:], again[3:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_test_image_is_a_training_image():
    images = datasets.load("digits")
    rows = np.concatenate([images.x_train, images.x_test]).reshape(1797, -1)
    assert len(np.unique(rows, axis=0)) == 1797


@pytest.mark.parametrize(
    ("name", "folder", "sentence"),
    [
        ("letters", None, "the data set must be one of digits, mnist"),
        ("mnist", None, "must hold mnist in tensorflow-datasets' format"),
        ("digits", Path("/no/such/folder"), "--data-dir must be a folder"),
    ],
)
def test_a_missing_data_set_is_one_sentence(name, folder, sentence):
    with pytest.raises(InputError, match=sentence):
        datasets.load(name, folder)


def test_a_damaged_data_set_is_one_sentence(tmp_path):
    datasets.load("digits")
    shutil.copytree(datasets.cache_folder() / "digits", tmp_path / "digits")
    for record in tmp_path.glob("digits/*/*-test.array_record-*"):
        record.write_bytes(record.read_bytes()[:100])
    with pytest.raises(InputError, match="must be a readable data set with images"):
        datasets.load("digits", tmp_path)


def test_distances_are_from_one_epoch_to_the_next():
    """The fake network is a number that multiplies its input."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (6, 2, 2, 3)).astype(np.float32), []
    program: Any = SimpleNamespace(outputs=lambda state: jax.numpy.asarray(x * state))
    state: Any = 1.0
    measure = paired_runs._measure(program, state)
    for state in (4.0, 6.0, 7.0):
        y.append(measure(state))
    size = np.abs(x).mean((0, 1, 2))  # outputs are multiples of x, so their order is the same
    for found, step, state in zip(y, (3, 2, 1), (4, 6, 7), strict=True):
        np.testing.assert_allclose(found["distances"], step * size, rtol=1e-5)
        np.testing.assert_allclose(found["moments"][0], state * x.mean((0, 1, 2)), rtol=1e-5)
        np.testing.assert_allclose(found["moments"][1], state**2 * x.var((0, 1, 2)), rtol=1e-5)


@pytest.mark.slow
def test_an_untrained_network_has_the_statistics_of_a_sample(unitized, digits):
    state = unitized.init_state(0)
    outputs = np.asarray(unitized.outputs(state))
    # Statistics come from the calibration images, so outputs for test images are only nearly
    # standardized.
    assert np.abs(outputs.mean((0, 1, 2))).max() < 0.5
    np.testing.assert_allclose(outputs.var((0, 1, 2)).mean(), 1, atol=0.3)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits(unitized, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
    _, whole = trained

    steps = unitized.trainer.steps

    class Interrupted(View):
        def update(self, steps, description, numbers):
            super().update(steps, description, numbers)
            if "epoch 2/" in description:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(unitized, tmp_path, Interrupted())
    view = View()
    resumed = train(unitized, tmp_path, view)
    assert (
        view.steps[0] == steps < view.steps[1] <= 2 * steps
    )  # epoch 2 was interrupted before it was saved
    assert view.steps[-1] == 3 * steps
    for a, b in zip(leaves(whole), leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole[1].accuracy[-1] > 0.5
    assert (whole[1].distances > 0).any()


@pytest.mark.slow
def test_the_last_moments_are_those_of_the_network_that_is_returned(unitized, trained):
    _, (state, history) = trained
    outputs = np.asarray(unitized.outputs(state), np.float64)
    channels = outputs.reshape(-1, outputs.shape[-1])
    deviations = channels - channels.mean(0)
    second, third, fourth = (np.mean(deviations**k, 0) for k in (2, 3, 4))
    expected = [channels.mean(0), second, third / second**1.5, fourth / second**2]
    np.testing.assert_allclose(history.moments[-1], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(unitized, trained, monkeypatch):
    folder, run = trained
    monkeypatch.setattr(unitized.trainer, "advance", None)
    again = train(unitized, folder)
    for a, b in zip(leaves(run), leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
