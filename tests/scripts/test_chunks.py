"""Chunks of training steps: the time that the steps take, and the time they wait for batches."""

from types import SimpleNamespace
from typing import Any

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
