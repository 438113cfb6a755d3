"""Progress bars of commands, which fit 80 columns; without a terminal, commands print lines."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from experiments import progress
from experiments.measures import report
from experiments.progress import Stages, progress_bar
from experiments.recipes import Recipe

NUMBERS = "loss 17.5952, accuracy 93.25 %, 14,889 images/s"


@pytest.fixture(autouse=True)
def bars_end_full():
    """Do not compare the ends of bars, because these tests do not finish what they show."""


def shown(done, width=80):
    bar = progress_bar("numbers")
    bar.add_task("seed 0, epoch 100/200", total=200, completed=done, numbers=NUMBERS)
    console = Console(file=io.StringIO(), width=width)
    console.print(bar.get_renderable())
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("done", [0, 200])
def test_a_bar_is_not_cut_off_and_promises_no_unknown_time(done):
    said = shown(done)
    assert "…" not in said
    assert {*NUMBERS.split(), "100/200", "seed"} <= set(said.split())
    assert "still" not in said


def test_a_file_has_a_line_at_every_stage_and_every_minute(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar() as bar:
        stages = Stages(bar, 10)
        with stages.stage("train"):
            for clock[0] in (10.0, 59.0, 61.0, 70.0):
                stages.advance()
        with stages.stage("claims"):
            pass
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[:3] == ["train, 0 %", "train ...", "train, 30 %"]
    assert "claims ..." in lines
    for name in ("train", "claims"):
        assert f"{name}: {stages.seconds[name]:.1f} s" in lines


def test_a_training_moves_the_bar_from_where_the_training_of_others_ended():
    """Two networks train for three epochs of four steps; the second network is in epoch 2."""
    with progress_bar(disable=True) as bar:
        stages = Stages(bar, 6)
        view = progress.TrainingView(stages, 4, earlier=3)
        view.update(6, "training", "loss 1")
        (task,) = bar.tasks
        assert (task.completed, task.total) == (4.5, 6)
        stages.advance(0.5)
        stages.describe("pruning")
        assert (task.completed, task.description) == (5, "pruning")
        view = progress.TrainingView(stages, 4)
        view.update(6, "training", "loss 1")
        assert task.completed == 1.5


@pytest.mark.parametrize(("seconds", "said"), [(90.4, "still 0:01:30"), (None, ""), (0.0, "")])
def test_the_remaining_time_is_shown_if_it_is_known(seconds, said):
    task: Any = SimpleNamespace(time_remaining=seconds)
    assert progress.Remaining().render(task).plain == said


def test_all_networks_that_are_trained_before_count_as_progress(tmp_path, monkeypatch):
    """With two seeds of three epochs, the second normalization begins after six epochs."""
    program = SimpleNamespace(trainer=SimpleNamespace(steps=4))
    earlier = []

    def train(program, seed, folder, view):
        earlier.append(view.earlier)
        return seed, None

    monkeypatch.setattr(report.paired_runs, "program", lambda recipe, images: program)
    monkeypatch.setattr(report.paired_runs, "train", train)
    stages: Any = SimpleNamespace(**dict.fromkeys(("describe", "reach", "log"), lambda value: None))
    images: Any = None
    report.train(Recipe(epochs=3), 2, images, tmp_path, stages)
    assert earlier == [0, 0, 6, 6]
