"""`make results` says what differs, and the commands that it runs exist."""

import functools
import importlib
import inspect
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

import train
from experiments.measures import depth, geometry_figures, shift_estimators
from experiments.pages import theorem_plots
from experiments.recipes import PRESETS, residual_recipe
from tools import results
from tools.results import ROOT, Difference, Result, command, count, differences

EVERY = results.results()


def test_every_file_of_results_is_one_result():
    # This folder has programs for a resumed run. Git ignores it.
    kept = results.FOLDER / "theorems" / "compiled"
    files = [p for p in results.FOLDER.rglob("*") if p.is_file() and kept not in p.parents]
    untracked = ("index.html", ".in-use", "measured.json")
    assert {p for p in files if p.name not in untracked} == {
        results.FOLDER / "README.md",
        *(result.path for result in EVERY),
    }


@pytest.mark.parametrize("result", EVERY, ids=lambda result: result.name)
def test_a_result_says_how_it_was_made(result):
    content, environment = result.content, result.content["environment"]
    assert content["command"].startswith("python ")
    assert datetime.fromisoformat(content["date"])
    assert environment["jax"]
    assert environment["device"]
    assert re.match(r"[0-9a-f]{7}", environment["commit"])
    spent = content["seconds"]
    spent = spent.values() if isinstance(spent, dict) else [spent]
    assert all(seconds is None or seconds > 0 for seconds in spent)
    parts = [content, *(content.get(name, {}) for name in ("settings", "options"))]
    assert any({"seed", "seeds"} & part.keys() for part in parts)


@pytest.mark.parametrize("result", EVERY, ids=lambda result: result.name)
def test_a_result_names_a_command_of_the_repository(result, tmp_path):
    inputs = dict.fromkeys(result.inputs, "PATH")
    assert result.inputs == [] or "--input" in str(result.needs({}))
    _, script, *options = command(result, inputs, tmp_path)
    if script == "-m":
        script = options.pop(0).replace(".", "/") + ".py"
    assert (ROOT / script).is_file()
    assert options.count("--out") == 1
    assert str(tmp_path) in options[options.index("--out") + 1]
    assert not set(options) & set(results.INPUTS)
    assert count(result.content) >= 10


@pytest.mark.parametrize(("name", "recipe"), [("report", residual_recipe("digits", 20, 15, 64))])
def test_numbers_were_made_by_the_recipe_that_the_script_has_now(name, recipe):
    content = json.loads((results.FOLDER / name / "results.json").read_text(encoding="utf-8"))
    recorded, now = content["settings"], json.loads(json.dumps(asdict(recipe)))
    shared = recorded.keys() & now.keys()
    assert {key: recorded[key] for key in shared} == {key: now[key] for key in shared}
    assert len(shared) >= 15


def recorded(name: str) -> dict[str, Any]:
    return json.loads((results.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_figures_of_the_claims_have_the_numbers_that_the_script_gives():
    curves, now = recorded("theorems/results")["curves"], theorem_plots.curves()
    assert {name: list(curve) for name, curve in curves.items()} == {
        name: list(curve) for name, curve in now.items()
    }
    for name, curve in now.items():
        for column, values in curve.items():
            six_digits = curves[name][column]
            np.testing.assert_allclose(values, six_digits, 5e-6, err_msg=name)


def test_the_geometry_page_was_made_at_the_sizes_that_the_script_has():
    page = recorded("geometry/results")
    figure_2 = page["figure_2"]
    assert {name: figure_2[name] for name in depth.TENTH} == json.loads(json.dumps(depth.TENTH))
    figure_3, figure_5, figure_6 = (page[f"figure_{i}"] for i in (3, 5, 6))
    sizes = figure_3["points"], figure_3["width"], figure_3["networks"]
    figures = geometry_figures
    assert sizes == (figures.ODD_POINTS, figures.ODD_WIDTH, figures.NETWORKS)
    shown = [layer for layer in figures.ODD_LAYERS if layer != figures.BEFORE_LAST]
    assert figure_3["layers"] == shown
    assert [tuple(size) for size in figure_5["sizes"]] == list(figures.SIZES)
    assert (figure_6["points"], figure_6["width"]) == figures.NEURONS
    assert figure_5["layer"] == figure_6["layer"] == figures.LAYER
    n, _ = figures.SCATTERED
    for part in figures.PARTS:
        assert len(figure_5["parts"][part]["after"]) == -(-n * (n - 1) // 2 // 5)
    for layer, now in zip(page["figure_4"]["layers"], figures.figure_4()["layers"], strict=True):
        np.testing.assert_allclose(layer, now, 1e-6, 1e-6)
    for figure, neurons in figures.figure_7_and_8().items():
        for name, now in neurons.items():
            np.testing.assert_allclose(page["figures_7_and_8"][figure][name], now, 1e-6, 1e-6)
    options = inspect.signature(figures.neuron_per_point).parameters
    per_point = page["neuron_per_point"]
    for name in ("points", "epochs", "runs"):
        assert per_point[name] == options[name].default


def test_estimates_of_distances_were_made_at_the_sizes_that_the_script_has():
    settings = recorded("shift/estimators")["settings"]
    sizes = settings["train"], settings["test"]
    assert sizes == (shift_estimators.TRAIN, shift_estimators.TEST)


def test_every_result_is_in_the_index():
    index = (results.FOLDER / "README.md").read_text(encoding="utf-8")
    assert len({result.name for result in EVERY}) == len(EVERY)
    for result in EVERY:
        assert f"]({result.path.relative_to(results.FOLDER).as_posix()})" in index, result.name


def given(command: str) -> dict[str, Any]:
    """The options of a command, with the defaults that they have now."""
    _, script, *args = shlex.split(command)
    if script == "scripts/train.py":
        preset, *args = args
        default = train.Arguments(PRESETS[preset][1])
        return dict(options_in(vars(tyro.cli(train.Arguments, args=args, default=default))))
    main = importlib.import_module(Path(script).stem).main

    @functools.wraps(main)
    def bound(*args, **kwargs):
        return inspect.signature(main).bind(*args, **kwargs)

    found = tyro.cli(bound, args=args)
    found.apply_defaults()
    return dict(options_in(found.arguments))


def options_in(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if is_dataclass(value):
            yield from options_in(vars(value))
        else:
            yield name, list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("report", 4),
        ("prune/digits", 11),
        ("prune/digits-30", 11),
        ("prune/cifar10", 12),
        ("resnet20", 2),
        ("settings", 1),
        ("geometry", 1),
        ("theorems", 2),
        ("train/cifar10-speed-unitized", 19),
    ],
)
def test_numbers_were_made_with_the_options_that_their_command_has_now(name, least):
    content = json.loads((results.FOLDER / name / "results.json").read_text(encoding="utf-8"))
    parts = [content, *(content.get(part, {}) for part in ("settings", "options", "recipe"))]
    recorded = {
        name.replace(" ", "_"): value
        for part in parts
        for name, value in part.items()
        # These names are not options, but results.
        if name not in ("devices", "evaluations", "layers", "figure_2")
    }
    options = given(content["command"])
    shared = {name: recorded[name] for name in options if name in recorded}
    if isinstance(shared.get("seeds"), list):
        shared["seeds"] = len(shared["seeds"])
    assert shared == {name: options[name] for name in shared}
    assert len(shared) >= least


@pytest.mark.parametrize(
    ("recorded", "now", "found"),
    [
        ({"a": 1.0, "date": "x"}, {"a": 1.009, "date": "y"}, []),
        ({"a": 1.0}, {"a": 1.02}, [Difference("/a", 1.0, 1.02)]),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, [Difference("/a/1", "x", "y")]),
        ({"a": [1, 2]}, {"a": [1]}, [Difference("/a", [1, 2], [1])]),
        ({"a": 1}, {"b": 1}, [Difference("/a", 1, None), Difference("/b", None, 1)]),
        ({"a": True}, {"a": 1}, []),
        ({"a": False}, {"a": True}, [Difference("/a", False, True)]),
        ({"mean": 1.0, "stderr": 0.1}, {"mean": 1.4, "stderr": 0.1}, []),
        (
            {"mean": 1.0, "stderr": 0.1},
            {"mean": 1.5, "stderr": 0.1},
            [Difference("/mean", 1.0, 1.5)],
        ),
        (
            {"ours_ms": 2.0, "peer_ms": 3.0, "ratio": 0.6, "quartiles": [0.5, 0.7], "load": 1.0},
            {"ours_ms": 9.0, "peer_ms": 8.0, "ratio": 1.1, "quartiles": [1.0, 1.2], "load": 7.0},
            [],
        ),
        (
            {"ours_ms": 2.0, "ratio": 0.6},
            {"ours_ms": 9.0, "ratio": 1.3},
            [Difference("/ratio", 0.6, 1.3)],
        ),
        ({"ratio": 0.6}, {"ratio": 0.7}, [Difference("/ratio", 0.6, 0.7)]),
        ({"mean": 1.0, "stderr": None}, {"mean": 1.5}, [Difference("/mean", 1.0, 1.5)]),
    ],
)
def test_numbers_differ_beyond_a_tolerance_or_three_standard_errors(recorded, now, found):
    assert list(differences(recorded, now, 0.01)) == found


def test_a_command_gets_its_inputs_and_writes_into_scratch(tmp_path):
    text = "python scripts/check_theorems.py --data-dir DIR --out x --errata docs/errata.md"
    made = command(Result("r", tmp_path, {"command": text}), {"DIR": "here"}, tmp_path)
    errata = str(tmp_path / "errata.md")
    expected = ["scripts/check_theorems.py", "--data-dir", "here", "--errata", errata]
    assert made[1:] == [*expected, "--out", str(tmp_path)]
    made = command(Result("r", tmp_path, {"command": "python s.py --out a/b.json"}), {}, tmp_path)
    assert made[1:] == ["s.py", "--out", str(tmp_path / "results.json")]


def test_a_command_that_fails_is_told_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    failing, writing = tmp_path / "failing.py", tmp_path / "writing.py"
    failing.write_text("raise SystemExit(3)")
    writing.write_text("import sys; open(sys.argv[2] + '/results.json', 'w').write('{\"a\": 1}')")
    made = [
        Result(path.stem, tmp_path / "r.json", {"command": f"python {path}", "a": 1} | seconds)
        for path, seconds in (
            (failing, {"seconds": 60.0}),
            (writing, {"seconds": 3540.0}),
            (tmp_path / "long.py", {"seconds": {"a": 3601.0}}),
            (tmp_path / "unknown.py", {"seconds": None}),
        )
    ]
    monkeypatch.setattr(results, "results", lambda: made)
    monkeypatch.setattr("sys.argv", ["results.py", "all"])
    assert results.main() == 1
    said = capsys.readouterr().out
    # "all" runs no command that took an hour or an unknown time
    assert "\nlong: 60 minutes\nunknown: minutes not recorded\n" in said
    assert "failed with status 3" in said
    assert "0 of 1 differ" in said
    monkeypatch.setattr("sys.argv", ["results.py"])
    assert results.main() == 0
    assert "unknown: minutes not recorded\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "needed"),
    [("cpu", None), ("none: compiled ahead of time", None), ("NVIDIA H200", "the device NVIDIA")],
)
def test_what_another_device_made_is_left_out(device, needed, tmp_path):
    content = {"command": "python scripts/bench.py", "environment": {"device": device}}
    found = Result("bench/layers", tmp_path / "layers.json", content).needs({})
    assert found is None if needed is None else str(found).startswith(needed)


def test_what_needs_compilers_is_left_out_without_them(tmp_path, monkeypatch):
    content = {"command": "python -m tools.widths_table"}
    made = Result("compiled/widths", tmp_path / "widths.json", content)
    monkeypatch.setattr(results, "COMPILERS", tmp_path / "python")
    assert "make bench-compiled" in str(made.needs({}))
    (tmp_path / "python").touch()
    assert made.needs({}) is None
    expected = [str(tmp_path / "python"), "-m", "tools.widths_table"]
    assert command(made, {}, tmp_path) == [*expected, "--out", str(tmp_path / "widths.json")]
