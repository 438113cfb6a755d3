"""Logs, progress, checkpoints and measurements during training; and how images are read."""

import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from experiments.cli import InputError
from experiments.data import datasets, imagenet
from experiments.data.datasets import Images
from experiments.recipes import Recipe
from experiments.signals import Interruption
from experiments.training import chunks, loop, networks, paired_runs
from experiments.training.checkpoints import Checkpoints
from experiments.training.chunks import Chunk
from experiments.training.finite import check_finite, is_finite
from tests.support.small_runs import random_images

pytestmark = pytest.mark.usefixtures("users_jax", "unchecked")


def chunk(step, *, losses=(1.0,), ends=False, seconds=1.0, waiting=0.0, steps=2, epoch=0) -> Any:
    return Chunk("state", step, epoch, ends, np.array(losses), steps, seconds, waiting, 16)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def time(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    for module in (loop, chunks):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_state_is_saved_every_half_minute_and_at_the_end(time, monkeypatch):
    monkeypatch.setattr(loop, "check_finite", lambda *_: None)
    saved: list[int] = []
    trainer: Any = SimpleNamespace(total_steps=9)
    checkpoints: Any = SimpleNamespace(save=lambda step, state, lines: saved.append(step))
    save = loop.Checkpointing(trainer, checkpoints, [[]], Interruption())
    for step, now in enumerate((10, 29, 31, 50, 60, 62, 93, 95, 96), 1):
        time.now = 100.0 + now
        save(chunk(step))
    # The state is saved half a minute after the previous save (at 31, 62 and 93 s), and at the end.
    assert saved == [3, 6, 7, 9]


def test_a_run_of_one_chunk_starts_no_trace(tmp_path):
    trainer: Any = SimpleNamespace(total_steps=4)
    view: Any = SimpleNamespace(log=pytest.fail)
    loop.Profiling(trainer, tmp_path, view)(chunk(4))
    with pytest.raises(RuntimeError):  # this call fails, because no trace was started
        jax.profiler.stop_trace()


def test_progress_shows_means_over_seeds_and_the_steps_of_earlier_seeds():
    shown: list[Any] = []
    view: Any = SimpleNamespace(update=lambda *given: shown.append(given))
    trainer: Any = SimpleNamespace(total_steps=20, recipe=SimpleNamespace(epochs=5))
    clock: Any = SimpleNamespace(speed=1234.4)
    logs: Any = [SimpleNamespace(lines=[]), SimpleNamespace(lines=[])]
    first: Any = [SimpleNamespace(lines=[])]
    given = chunk(7, losses=(1.0, 2.5), epoch=1)
    loop.show_progress(trainer, (3, 4), view, logs, clock, given)
    for log, accuracy in zip(logs, (0.5, 0.75), strict=True):
        log.lines += [{"epoch": 1, "accuracy": 0.1}, {"epoch": 2, "accuracy": accuracy}]
    loop.show_progress(trainer, (3, 4), view, logs, clock, given)
    clock.speed = 0.0  # 0 means that the speed is not known yet
    loop.show_progress(trainer, (3, 4), view, first, clock, given)
    assert shown == [
        (67, "seed 3-4, epoch 2/5", "loss 1.7500, 1,234 images/s"),
        (67, "seed 3-4, epoch 2/5", "loss 1.7500, accuracy 62.50 % after epoch 2, 1,234 images/s"),
        (67, "seed 3-4, epoch 2/5", "loss 1.7500"),
    ]
    assert loop.name_of((5,)) == "5"


def test_a_line_of_an_epoch_has_the_numbers_of_its_own_seed(time):
    """The two seeds take four steps per epoch; the learning rate drops at the second epoch."""
    recipe = Recipe(epochs=2, learning_rate=0.4, drops=(0.5,), drop_factor=4.0)
    trainer: Any = SimpleNamespace(
        recipe=recipe,
        steps=4,
        streams=False,
        evaluate=lambda state: [{"accuracy": a} for a in (0.25, 0.5)],
    )
    logs: Any = [SimpleNamespace(add=lines.append, lines=lines) for lines in ([], [])]
    clock = loop.Clock(skipped=1)
    view: Any = SimpleNamespace(log=pytest.fail)
    measured: list[Any] = []

    def measure(state):
        measured.append(state)
        return {"own": len(measured)}

    for step, ends in ((2, False), (4, True), (6, False), (8, True)):
        time.now += 3.0
        given = chunk(
            step,
            losses=(step, 10 * step),
            ends=ends,
            seconds=2.0,
            waiting=0.5,
            epoch=(step - 1) // 4,
        )
        clock(given)
        loop.log_epoch(trainer, view, logs, clock, measure, given)
    first, second = (log.lines for log in logs)
    for lines, losses, accuracy in ((first, [4, 8], 0.25), (second, [40, 80], 0.5)):
        assert [line["loss"] for line in lines] == losses
        assert [line["accuracy"] for line in lines] == [accuracy] * 2
        assert [line["epoch"] for line in lines] == [1, 2]
        assert [line["learning_rate"] for line in lines] == pytest.approx([0.4, 0.1])
        assert [line["seconds"] for line in lines] == [6.0, 12.0]
        assert [line["images_per_second"] for line in lines] == [8.0, 8.0]
        assert [line["waiting_for_data"] for line in lines] == [0.25] * 2


def test_chunks_of_an_epoch_that_is_resumed_end_with_it(time):
    """A run with 5 steps per epoch resumes at step 6; each chunk must lie within one epoch."""
    asked: list[Any] = []

    def advance(state, batches, seeds, steps):
        asked.append((batches, steps))
        time.now += steps
        return SimpleNamespace(step=state.step + steps, loss=np.array([6.0, 12.0]))

    trainer: Any = SimpleNamespace(
        steps=5,
        recipe=SimpleNamespace(epochs=3, batch_size=8),
        seconds_waiting=0.0,
        batches=lambda seeds, epoch, step: (epoch, step),
        advance=advance,
    )
    state: Any = SimpleNamespace(step=6, loss=0.0)
    found = list(chunks.chunks(trainer, state, (0, 1), iter([2, 3, 2, 3, 2])))
    assert asked == [((1, 1), 2), ((1, 1), 2), ((2, 0), 2), ((2, 0), 3)]
    assert [(c.step, c.epoch, c.ends_epoch, c.steps) for c in found] == [
        (8, 1, False, 2),
        (10, 1, True, 2),
        (12, 2, False, 2),
        (15, 2, True, 3),
    ]
    np.testing.assert_allclose([c.losses for c in found], [[2, 4], [1.2, 2.4], [3, 6], [1.2, 2.4]])
    assert [c.seconds for c in found] == [2, 2, 2, 3]
    assert [c.images for c in found] == [32, 32, 32, 48]  # eight images for each step and seed


def test_a_history_begins_with_the_untrained_network_and_has_a_line_for_each_epoch(monkeypatch):
    """The made-up outputs are of two images, each with one pixel and two channels."""
    outputs = {
        "untrained": [[0.0, 1.0], [2.0, 1.0]],
        "first": [[1.0, 4.0], [3.0, 0.0]],
        "second": [[1.0, 7.0], [9.0, 1.0]],
    }
    program: Any = SimpleNamespace(
        trainer="trainer",
        init_state=lambda seed: {7: "untrained"}[seed],
        outputs=lambda state: jnp.array(outputs[state])[:, None, None],
    )

    def train(trainer, seeds, out, view, interruption, extras, init):
        assert (trainer, seeds, init(seeds)) == ("trainer", (7,), "untrained")
        measure = extras.measure("untrained")
        rows = (("first", 2.0, 0.25), ("second", 1.0, 0.75))
        lines = [{"loss": loss, "accuracy": share} | measure(s) for s, loss, share in rows]
        return loop.Trained("second", [lines], {})  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(paired_runs.loop, "train", train)
    given: Any = None
    state, history = paired_runs.train(program, 7, given, given)
    assert state == "second"
    np.testing.assert_allclose(history.loss, [2, 1])
    np.testing.assert_allclose(history.accuracy, [0.25, 0.75])
    means = [[np.mean(column) for column in zip(*outputs[k], strict=True)] for k in outputs]
    np.testing.assert_allclose(history.moments[:, 0], means)
    np.testing.assert_allclose(history.moments[:, 1], [[1, 0], [1, 4], [16, 9]], atol=1e-6)
    # A distance is the mean difference of the sorted outputs of a channel. From "untrained" to
    # "first", 0 and 2 in channel 1 become 1 and 3, and 1 and 1 in channel 2 become 0 and 4.
    np.testing.assert_allclose(history.distances, [[1, 2], [3, 2]], atol=1e-6)


def test_an_untrained_network_starts_with_the_statistics_of_the_first_images(monkeypatch):
    monkeypatch.setattr(paired_runs, "SAMPLE", 30)
    monkeypatch.setattr(paired_runs, "PROBE", 9)
    images = random_images()
    images = images._replace(x_train=2 * images.x_train + np.arange(70)[:, None, None, None] / 10)
    images = images._replace(y_test=(np.arange(15) >= 6).astype(np.int32))
    recipe = Recipe(model="mlp", batch_size=16, epochs=1)
    program = paired_runs.program(recipe, images)
    state: Any = program.init_state(3)
    layer = state.params["layers"][0]
    x = images.x_train[:30].reshape(30, 16)
    h = x @ np.asarray(layer["kernel"][...]) + np.asarray(layer["bias"][...])
    norm = state.statistics["norms"][0]
    np.testing.assert_allclose(norm["mean"][...], h.mean(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(norm["var"][...], h.var(0), rtol=1e-3)
    assert len(program.outputs(state)) == 9
    model: Any = nnx.merge(networks.graphs(recipe, images)[1], state.params, state.statistics)
    right = np.argmax(model(images.x_test[:9]), 1) == images.y_test[:9]
    assert program.probe_accuracy(state) == pytest.approx(right.mean())
    other: Any = program.init_state(4)
    assert (other.params["layers"][0]["kernel"][...] != layer["kernel"][...]).any()


def test_channels_are_standardized_by_their_own_moments_of_the_training_images(
    monkeypatch, tmp_path
):
    """The three channels have different moments, which differ also in the test images."""
    rng = np.random.default_rng(0)
    scales = np.array([1, 3, 5])
    x, x_test = (
        (rng.integers(0, 9, (n, 4, 2, 3)) * scales + shift).astype(np.uint8)
        for n, shift in ((20, 7), (6, 90))
    )
    splits = [
        [{"image": image, "label": i % 3} for i, image in enumerate(part)] for part in (x, x_test)
    ]
    monkeypatch.setattr(datasets, "_open", lambda version, splits_, encoded: (3, splits))
    monkeypatch.setattr(datasets, "_note", lambda name, version: "a note")
    found = datasets._read("made", tmp_path / "2.0.0", None)
    mean, deviation = (getattr(x.astype(float), k)((0, 1, 2)) for k in ("mean", "std"))
    np.testing.assert_allclose(found.x_train, (x - mean) / deviation, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.x_test, (x_test - mean) / deviation, rtol=1e-5)
    assert (found.version, found.classes, found.note) == ("2.0.0", 3, "a note")
    np.testing.assert_array_equal(found.y_test, np.arange(6) % 3)
    moments = (0.5, 0.25, 0.125), (0.1, 0.2, 0.4)
    given = datasets._read("made", tmp_path / "2.0.0", moments)
    expected = (x_test / 255 - moments[0]) / moments[1]
    np.testing.assert_allclose(given.x_test, expected, rtol=1e-4, atol=1e-5)
    # `pixels` is a checksum of the pixels before standardization.
    assert given.pixels == found.pixels


def test_training_crops_are_anywhere_in_the_image_and_flips_are_mirrors():
    """The values of pixels are their positions. Crops begin at every row and every column."""
    places = np.stack(np.meshgrid(np.arange(9), np.arange(13), indexing="ij"), -1)
    pixels = np.concatenate([places, np.zeros((9, 13, 1))], -1).astype(np.uint8)
    image, rng = Image.fromarray(pixels), np.random.default_rng(0)
    seen, flips = set(), set()
    for _ in range(600):
        crop = imagenet.scale_crop(image, rng, crop=6, scales=(9, 9)).astype(int)
        top, left = crop[0, :, 0].min(), crop[0, :, 1].min()
        flip = crop[0, 0, 1] > crop[0, -1, 1]
        rows = pixels[top : top + 6, left : left + 6]
        np.testing.assert_array_equal(crop, rows[:, ::-1] if flip else rows)
        seen.add((top, left))
        flips.add((bool(flip), left))
    assert seen == {(i, j) for i in range(4) for j in range(8)}
    assert len(flips) == 16  # at each of 8 columns, some crops are flipped and some are not


def test_the_identity_of_records_is_of_images_all_over_both_splits():
    """Every third of 2,500 records is read, so a change of such a record is noticed."""

    class Split:
        def __init__(self, count, changed=None):
            self.count, self.changed, self.read = count, changed, []

        def __len__(self):
            return self.count

        def __getitem__(self, i):
            self.read.append(i)
            return {"image": b"new" if i == self.changed else b"%d" % i, "label": i % 7}

    def identity(train=None, test=None):
        parts: Any = Split(2500, train), Split(10, test)
        found = datasets.identity(imagenet.Records("made", "", 7, *parts, version="1.0.0"))
        return found, [part.read for part in parts]

    found, read = identity()
    assert (found["train"], found["test"], found["classes"]) == (2500, 10, 7)
    assert read == [list(range(0, 2500, 3)), list(range(10))]
    others = [identity(train=2499)[0], identity(test=9)[0], identity(train=0)[0]]
    assert len({str(part) for part in (found, *others)}) == 4
    assert identity(train=1)[0] == found  # `identity` reads every third record, but not record 1


def test_images_and_labels_of_arrays_have_their_own_names(tmp_path):
    images = Images(
        "made", "", 2, np.zeros((4, 3, 2, 1)), np.zeros(4), np.zeros((2, 3, 2, 1)), np.ones(2)
    )
    found = datasets.identity(images._replace(pixels="x", version="3.0.0"))
    assert (found["shape"], found["train"], found["test"]) == ([3, 2, 1], 4, 2)
    assert (found["pixels"], found["version"]) == ("x", "3.0.0")
    other = datasets.identity(images._replace(y_test=np.array([1, 0])))
    assert other["labels"] != found["labels"]


def test_the_two_newest_checkpoints_remain_with_their_own_arrays_and_notes(tmp_path):
    states = {step: {"w": jnp.arange(3.0) + step, "n": jnp.int32(step)} for step in (2, 5, 9)}
    notes: list[Any] = []
    with Checkpoints(tmp_path / "c") as saved:
        assert saved.newest() is None
        for step, state in states.items():
            notes.append({"step": step})
            saved.save(step, state, notes)
        # This call does nothing, because step 9 already has a checkpoint.
        saved.save(9, states[2], "of another state")
        notes.append("later")
    assert sorted(path.name for path in (tmp_path / "c").iterdir() if path.name.isdigit()) == [
        "5",
        "9",
    ]
    like = {"w": jnp.zeros(3), "n": jnp.int32(0)}
    with Checkpoints(tmp_path / "c") as saved:
        assert saved.newest() == 9
        state, found = saved.restore(like, pytest.fail)
    np.testing.assert_array_equal(state["w"], [9, 10, 11])
    assert int(state["n"]) == 9
    assert found == [{"step": 2}, {"step": 5}, {"step": 9}]


def test_a_network_with_one_number_that_is_not_finite_is_not():
    whole = {"a": jnp.ones((2, 3)), "b": jnp.arange(4)}
    assert is_finite(whole)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert not is_finite(whole | {"c": jnp.array([0.0, bad])})
    given: Any = SimpleNamespace(newest=lambda: 3)
    said = r"the last good checkpoint is of step 3; lower --learning-rate, with another --out$"
    with pytest.raises(InputError, match=said):
        check_finite("loss", np.array([1.0, np.nan]), 4, given)


@pytest.mark.parametrize(("first", "said"), [(None, "the disk is full"), ("first", "first")])
def test_an_error_of_the_last_write_is_raised_unless_another_comes_first(first, said, tmp_path):
    def close():
        raise InputError("the disk is full")

    def write():
        with Checkpoints(tmp_path) as saved:
            saved.manager.close()
            saved.manager.close = close
            if first:
                raise KeyError(first)

    with pytest.raises(KeyError if first else InputError, match=said):
        write()


@pytest.mark.parametrize("library", ["absl", "asyncio", "concurrent.futures"])
def test_libraries_do_not_log_the_traceback_of_a_failed_save(library, tmp_path, caplog):
    with Checkpoints(tmp_path):
        logging.getLogger(library).error("Traceback")
    assert caplog.messages == []


def test_another_folder_of_the_same_name_gets_no_checkpoint(tmp_path):
    folder = tmp_path / "c"
    with Checkpoints(folder) as saved:
        saved.save(1, {"w": jnp.arange(3.0)}, [])
        saved.manager.wait_until_finished()
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        with pytest.raises(InputError, match="the folder of a run must remain until the run ends"):
            saved.save(2, {"w": jnp.arange(3.0)}, [])
        assert not list(folder.iterdir())
