"""Chunks of training steps: the time that the steps take, and the time they wait for batches."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments.training import chunks, trainer as trainers
from experiments.training.run_folder import read_lines
from tests.support.small_runs import View, train_one

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture
def slow_data(one, monkeypatch):
    """By a made-up clock, loading a batch takes 3 seconds, and a step takes 1 second."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def slowed(function, seconds):
        def call(*args):
            clock.now += seconds
            return function(*args)

        return call

    for module in (chunks, trainers):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(one._loader, "device_batch", slowed(one._loader.device_batch, 3))
    monkeypatch.setattr(one, "_take_steps", slowed(one._take_steps, 1))
    return clock


def test_the_share_of_time_without_data_is_logged_and_shown(one, slow_data, monkeypatch, tmp_path):
    monkeypatch.setattr(one, "streams", True)
    view = View()
    train_one(one, tmp_path, view)
    assert slow_data.now == 4 * one.total_steps
    lines = read_lines(tmp_path / "seed-0" / "metrics.jsonl")
    assert [line["waiting_for_data"] for line in lines] == [0.75] * 3
    assert view.lines == [f"epoch {n}: waiting for data 75 % of the time" for n in (1, 2, 3)]


def test_a_share_is_that_of_one_epoch_and_of_all_its_chunks():
    clock = chunks.Clock(skipped=1)

    def chunk(seconds, waiting):
        empty: Any = None
        return chunks.Chunk(empty, 0, 0, False, empty, 2, seconds, waiting, 16)

    # The time of a chunk that compiles counts for the share of waiting, but not for the speed.
    clock(chunk(8.0, 1.0))
    clock(chunk(2.0, 1.0))
    assert clock.end_epoch() == 0.2
    clock(chunk(2.0, 0.0))
    assert clock.end_epoch() == 0.0
    assert clock.speed == 8.0
    assert clock.end_epoch() == 0.0  # no step was made since the last call


def test_a_run_shows_its_last_accuracy_and_no_times_of_waiting_where_nothing_is_streamed(
    one, tmp_path
):
    view = View()
    last = train_one(one, tmp_path, view)[-1]
    assert view.lines == []
    assert f"accuracy {100 * last['accuracy']:.2f} % after epoch 3" in view.numbers


def test_each_chunk_has_its_own_times_and_the_mean_loss_of_its_epoch(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(chunks, "time", clock)
    given: Any = SimpleNamespace(
        steps=3, recipe=SimpleNamespace(epochs=2, batch_size=4), seconds_waiting=10.0
    )

    def advance(state, batches, seeds, steps):
        """Each step takes 3 seconds, waits for 2 seconds, and adds its number to the loss."""
        last = int(state.step[0]) + steps
        clock.now += 3.0 * steps
        given.seconds_waiting += 2.0 * steps
        in_epoch = range(batches * given.steps + 1, last + 1)
        return SimpleNamespace(step=np.array([last]), loss=np.array([float(sum(in_epoch))]))

    given.advance, given.batches = advance, lambda seeds, epoch, done: epoch
    start: Any = SimpleNamespace(step=np.array([0]))
    found = list(chunks.chunks(given, start, (0, 1), itertools.repeat(2)))
    rows = [(c.step, c.epoch, c.ends_epoch, c.steps, c.seconds, c.waiting, c.images) for c in found]
    assert rows == [
        (2, 0, False, 2, 6.0, 4.0, 16),
        (3, 0, True, 1, 3.0, 2.0, 8),
        (5, 1, False, 2, 6.0, 4.0, 16),
        (6, 1, True, 1, 3.0, 2.0, 8),
    ]
    assert [c.losses.item() for c in found] == [1.5, 2.0, 4.5, 5.0]
