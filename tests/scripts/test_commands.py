"""Behaviour that all commands share: start, output folders, locks and tables."""

import inspect
import platform
import re
import runpy
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import pytest

import train
from experiments import cli, files, signals
from experiments.cli import InputError

# train.py is not included, because its command line begins with a preset.
COMMANDS = sorted({*Path(cli.__file__).parents[1].glob("*.py")} - {Path(train.__file__)})
# Each of these commands writes one file, OUT.
WRITES_FILES = {"atlas_traffic", "bench", "shift_estimators"}
# The command repair writes a file for each experiment, and reproduce writes folders.
WRITES_RESULTS = [
    path
    for path in [*COMMANDS, Path(train.__file__)]
    if path.stem not in WRITES_FILES | {"repair", "reproduce"}
]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_can_be_interrupted_before_its_imports_and_runs_its_main(path, monkeypatch):
    calls = []
    monkeypatch.setattr(signals, "before_imports", lambda: calls.append("signals"))
    monkeypatch.setattr(cli, "run", lambda main, **ending: calls.append((main, ending)))
    runpy.run_path(str(path), run_name=path.stem)
    assert calls == []  # an import of the command runs nothing
    names = runpy.run_path(str(path), run_name="__main__")
    assert calls[0] == "signals"
    ((main, ending),) = calls[1:]
    assert main is names["main"]
    assert set(ending) <= {"again"}
    assert all(line.startswith("start again to resume ") for line in ending.values())


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_results_are_written_below_out_unless_told_otherwise(path):
    names = runpy.run_path(str(path), run_name=path.stem)
    options = inspect.signature(names.get("Options", names["main"])).parameters
    default = options["out"].default
    if default is not None:  # benchmarks write nothing by default
        assert isinstance(default, Path)
        assert default.parts[0] == "out"


def with_out(path, out):
    """Call a command as its command line does, with `out` as the output folder or file."""
    names = runpy.run_path(str(path), run_name=path.stem)
    weights = out.parent / "weights.npz"
    np.savez(weights, conv=np.ones((3, 3, 2, 4), np.float32))
    needed = {"analyze": {"path": weights}, "filter_models": {"paths": (weights,)}}
    options = needed.get(path.stem, {})
    if "Options" not in names:
        return names["main"](**options, out=out)
    arguments = [names["Options"](**options, out=out)]
    if path == Path(train.__file__):
        arguments = [train.PRESETS["digits-mlp"][1], *arguments]
    return names["main"](*arguments)


@pytest.mark.parametrize("path", [*COMMANDS, Path(train.__file__)], ids=lambda path: path.stem)
def test_a_command_refuses_an_output_that_another_run_uses(path, tmp_path, monkeypatch):
    """Every command locks its output first, so this test does not wait for the command's work."""
    names = runpy.run_path(str(path), run_name=path.stem)
    assert "out" in inspect.signature(names.get("Options", names["main"])).parameters
    out = tmp_path / "out"
    if path.stem in WRITES_FILES:
        out = tmp_path / "out" / "a.json"
    monkeypatch.setattr("experiments.compiled.compile_only.check_plugin", lambda name: None)
    with (
        files.in_use(tmp_path / "out"),
        pytest.raises(InputError, match=r"--out must not be in use; process \d+ on .* uses .*out"),
    ):
        with_out(path, out)


@pytest.mark.parametrize("path", WRITES_RESULTS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results.json", '{"command": "python scripts/others.py a"}'),
        ("results.json", "{}"),
        ("index.html", "a page of the user"),
        ("config.json", "{}"),
    ],
)
def test_a_command_refuses_a_folder_with_results_of_another(
    path, name, text, tmp_path, monkeypatch
):
    (tmp_path / name).write_text(text)
    monkeypatch.setattr("experiments.compiled.compile_only.check_plugin", lambda name: None)
    with pytest.raises(
        InputError, match=rf"--out must be .* results of scripts/{path.stem}.py; .* has {name}"
    ):
        with_out(path, tmp_path)
    assert (tmp_path / name).read_text() == text


def test_a_command_is_recorded_without_the_folders_of_the_machine(monkeypatch):
    monkeypatch.setattr(cli, "environment", lambda: {"cores": 2})
    arguments = ["/home/a b/net.safetensors", "--out", "out/x", "--ratio", "0.5", "gs://b/c"]
    arguments.append("--data-dir=/home/a b/data/")
    monkeypatch.setattr(sys, "argv", ["/home/x/scripts/prune.py", *arguments])
    found = cli.provenance("/home/x/scripts/prune.py")
    said = "net.safetensors --out out/x --ratio 0.5 gs://b/c --data-dir=data"
    assert found["command"] == f"python scripts/prune.py {said}"
    assert cli.provenance("/x/tools/tables.py")["command"] == f"python -m tools.tables {said}"
    assert found["environment"] == {"cores": 2}
    age = datetime.now(UTC) - datetime.fromisoformat(found["date"])
    assert timedelta(0) <= age < timedelta(seconds=60)


def test_an_environment_names_its_device_and_its_versions():
    found = cli.environment()
    assert found["python"] == platform.python_version()
    assert found["system"] == platform.platform()
    assert found["device"] == jax.devices()[0].device_kind
    for name in ("jaxnorm", "jax", "flax", "optax", "orbax-checkpoint"):
        assert found[name] == metadata.version(name)


@pytest.mark.parametrize("given", [None, "/elsewhere"])
def test_programs_are_stored_in_the_folder_of_a_variable_if_there_is_one(given, monkeypatch):
    seen = {}
    monkeypatch.setattr(jax.config, "update", seen.__setitem__)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if given is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    cli.compiled_in(Path("compiled"))
    if given is not None:
        assert seen == {}
        return
    assert seen.pop("jax_compilation_cache_dir") == str(Path("compiled").absolute())
    assert {*seen.values()} == {0, -1}  # programs of any compilation time and any size are stored


def test_a_table_shows_names_as_they_are_and_numbers_to_the_right(capsys):
    rows = [["a[red]b", "1", "x"], ["c\x1b[2J", "22", "y"]]
    cli.show_table("t\x07", ["name", "n", "note"], rows, left=("name",), min_width=60)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "t\\x07" in said
    cells = [line.strip("│ \n").split("│") for line in said.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in cells] == [
        ["a[red]b", "1", "x"],
        ["c\\x1b[2J", "22", "y"],
    ]
    (first, number, note), (_, longer, _) = cells
    assert first.startswith("a[red]b  ")
    assert (number, longer) == ("  1 ", " 22 ")
    assert note.endswith("x")


def test_the_commit_is_that_of_the_code_wherever_a_command_runs(monkeypatch, tmp_path):
    here = cli.commit()
    monkeypatch.chdir(tmp_path)
    assert cli.commit() == here


def test_a_checkout_with_changes_is_recorded_as_such(tmp_path, monkeypatch):
    def git(*options):
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *author, *options], check=True)

    monkeypatch.setattr(cli, "__file__", str(tmp_path / "cli.py"))
    (tmp_path / "cli.py").write_text("1")
    git("init", "--quiet")
    git("add", "cli.py")
    git("commit", "--quiet", "--message", "first")
    clean = cli.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "cli.py").write_text("2")
    assert cli.commit() == f"{clean}-dirty"
