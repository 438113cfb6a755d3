"""The figures of moments and shift, redrawn at a small size."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import covariate_shift
from experiments.cli import InputError
from experiments.measures import shift as measures
from experiments.pages import page
from experiments.pages import shift as shift_page
from jaxnorm import models
from jaxnorm.shift import Tracker
from tests.support.small_runs import random_images

pytestmark = pytest.mark.usefixtures("users_jax")


@pytest.fixture(scope="module", autouse=True)
def small_mlp():
    """Three hidden layers in place of eleven, of which the second and the last are followed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "MLP", partial(models.MLP, widths=(24, 16, 8)))
        patch.setattr(measures, "LAYERS", ("norms.1", "norms.2"))
        yield


@pytest.fixture(scope="module")
def run(users_jax, tmp_path_factory):
    out = tmp_path_factory.mktemp("shift")
    covariate_shift.main(epochs=3, seeds=1, exact=40, out=out)
    return out, json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_every_epoch_of_every_network_has_shift_moments_and_accuracy(run):
    _, results = run
    for schedules in results["runs"].values():
        assert set(schedules) == {"drops", "constant"}
        for line in (line for seeds in schedules.values() for run in seeds for line in run):
            assert 0 <= line["accuracy"] <= 1
            assert {len(values) for values in line["moments"].values()} == {8}
            for shift in line["shift"].values():
                assert 0 < shift["lower"] < shift["exact"] <= shift["upper"] * (1 + 1e-6)


def test_schedules_start_alike_and_differ_after_the_first_drop(run):
    _, results = run
    drops, constant = (results["runs"]["unitized"][s][0] for s in ("drops", "constant"))
    assert results["learning_rate"]["drops"][0] == results["learning_rate"]["constant"][0]
    assert drops[0]["loss"] == constant[0]["loss"]
    assert drops[-1]["loss"] != constant[-1]["loss"]


def test_the_page_shows_what_was_found(run):
    out, results = run
    text = (out / "index.html").read_text(encoding="utf-8")
    assert text.count("<svg role=") == 14
    skewness, kurtosis, *_ = shift_page.sentences(results)
    assert skewness in text
    assert kurtosis in text
    assert ">nan" not in text


def test_an_interrupted_run_resumes_after_the_last_finished_network(run, monkeypatch):
    out, _ = run
    last = sorted((out / "runs").glob("*.json"))[-1]
    before = last.read_text(encoding="utf-8")
    last.unlink()
    updates = []
    update = Tracker.update
    monkeypatch.setattr(
        Tracker, "update", lambda self, state: updates.append(1) or update(self, state)
    )
    covariate_shift.main(epochs=3, seeds=1, exact=40, out=out)
    assert len(updates) == 4  # the untrained network and three epochs of one
    again = json.loads(last.read_text(encoding="utf-8"))
    for line, expected in zip(again, json.loads(before), strict=True):
        assert line["shift"] == expected["shift"]
        assert line["moments"] == expected["moments"]


def test_a_network_moves_the_bar_by_its_epochs_whether_trained_or_read(tmp_path):
    recipe = measures.dense_recipe("digits", 2, 64)
    path, lines, moved = tmp_path / "runs" / "a.json", [{"epoch": 1}, {"epoch": 2}], []
    found = measures.read_or_train(lambda: iter(lines), recipe, path, moved.append)
    assert (found, moved) == (lines, [0, 1, 1])
    read = measures.read_or_train(lambda: pytest.fail("trained"), recipe, path, moved.append)
    assert (read, moved) == (lines, [0, 1, 1, 0, 2])


def test_findings_by_hand():
    def line(skewness, exact):
        moments = {"skewness": [skewness, 0.0], "kurtosis": [3.0, 3.0]}
        return {"accuracy": 0.5, "moments": moments, "shift": {"a": {"exact": exact}}}

    steady = [line(1.0, exact) for exact in (4.0, 4.0, 2.0, 2.0)]
    moving = [line(float(i % 2), 4.0) for i in range(4)]
    results = {
        "settings": {"epochs": 4},
        "learning_rate": {"drops": [0.5, 0.5, 0.1, 0.1]},
        "runs": {
            "batch_norm": {"drops": [moving], "constant": [moving]},
            "unitized": {"drops": [steady], "constant": [steady]},
        },
    }
    found = shift_page.findings(results)
    # One of two units moves by 1 an epoch.
    assert found["steadiness"]["skewness"]["drops"]["batch_norm"]["mean"] == 0.5
    assert found["steadiness"]["skewness"]["drops"]["difference"]["mean"] == -0.5
    assert found["steadiness"]["kurtosis"]["drops"]["difference"]["mean"] == 0
    assert found["drops"]["3"]["unitized"]["drops"]["mean"] == 0.5
    np.testing.assert_allclose(found["drops"]["3"]["batch_norm"]["drops"]["mean"], 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 1}, "--epochs must be at least 2; got 1"),
        ({"seeds": 0}, "--seeds must be at least 1; got 0"),
        ({"batch_size": 1}, "--batch-size must be at least 2; got 1"),
        ({"exact": 1}, "--exact must be at least 2; got 1"),
        ({"dataset": "pears"}, "the data set must be one of digits, .* got 'pears'"),
    ],
)
def test_bad_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        covariate_shift.main(**options, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


SHIFT = Path(covariate_shift.__file__).parents[1] / "docs/results/shift/results.json"


@pytest.fixture(scope="module")
def committed():
    return json.loads(SHIFT.read_text(encoding="utf-8"))


def test_committed_findings_are_those_of_the_committed_runs(committed):
    found = page.plain(shift_page.findings(committed))
    assert found["settled"] == committed["findings"]["settled"]
    assert found["drops"].keys() == committed["findings"]["drops"].keys()
    expected = jax.tree.leaves(committed["findings"])
    # Of numbers that are committed with six digits.
    np.testing.assert_allclose(jax.tree.leaves(found), expected, rtol=1e-5, atol=1e-5)


def test_a_run_of_the_command_is_described(committed, monkeypatch, tmp_path, capsys):
    """With the runs of the committed page: their schedules, their settings and their sentences."""
    asked = {}
    images = random_images()._replace(name="digits", note="A note.")

    def train_all(recipe, data, seeds, exact, out, update):
        asked["call"] = (recipe, data, seeds, exact, out)
        update("some network", 3)
        return committed["runs"]

    class Bar(nullcontext):
        def add_task(self, description, *, total):
            asked["total"] = total
            return "task"

        def update(self, task, *, description, advance):
            asked["update"] = (task, description, advance)

    bar = Bar()
    bar.enter_result = bar
    monkeypatch.setattr(covariate_shift, "progress_bar", lambda: bar)
    monkeypatch.setattr(measures, "train_all", train_all)
    monkeypatch.setattr("experiments.data.datasets.load", lambda *which: images)
    monkeypatch.setattr(shift_page, "render", lambda results: "page")
    epochs = committed["settings"]["epochs"]
    covariate_shift.main(epochs=epochs, seeds=3, batch_size=50, exact=60, out=tmp_path)
    recipe, data, seeds, exact, out = asked["call"]
    assert (data, seeds, exact, out) == (images, 3, 60, tmp_path)
    assert (recipe.dataset, recipe.epochs, recipe.batch_size) == ("digits", epochs, 50)
    assert asked["total"] == 2 * 2 * 3 * epochs
    assert asked["update"] == ("task", "some network", 3)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["settings"]["seeds"] == 3
    assert results["settings"]["exact"] == 60
    assert results["settings"]["batch_size"] == 50
    assert results["data"]["name"] == "digits"
    rates = results["learning_rate"]
    assert rates.keys() == {"drops", "constant"}
    assert set(rates["constant"]) == {recipe.learning_rate}
    # Divided by 5 at 30, 60 and 80 % of the epochs.
    expected = [
        recipe.learning_rate / 5 ** sum(epoch >= -(-epochs * part // 10) for part in (3, 6, 8))
        for epoch in range(epochs)
    ]
    np.testing.assert_allclose(rates["drops"], expected, rtol=1e-5)
    assert 0 <= results["seconds"] < 60
    assert results["runs"] == committed["runs"]
    said = capsys.readouterr().out.splitlines()
    assert said == [*shift_page.sentences(results), f"Open {tmp_path / 'index.html'}"]
