"""What every command does before and after its own work."""

import inspect
import runpy
from pathlib import Path

import numpy as np
import pytest

import train
from experiments import cli, files, signals
from experiments.cli import InputError

# train.py has a command line of its own, by presets.
COMMANDS = sorted({*Path(cli.__file__).parents[1].glob("*.py")} - {Path(train.__file__)})


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_can_be_interrupted_before_its_imports_and_runs_its_main(path, monkeypatch):
    calls = []
    monkeypatch.setattr(signals, "before_imports", lambda: calls.append("signals"))
    monkeypatch.setattr(cli, "run", lambda main, **ending: calls.append((main, ending)))
    runpy.run_path(str(path), run_name=path.stem)
    assert calls == []  # imported, it does nothing
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
    if default is not None:  # benches write nothing unless they are told
        assert isinstance(default, Path)
        assert default.parts[0] == "out"


def with_out(path, out):
    """Calls a command as its command line does, with `out` for its folder or file."""
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
    """Each begins with the lock: without it this test would take as long as the command."""
    names = runpy.run_path(str(path), run_name=path.stem)
    assert "out" in inspect.signature(names.get("Options", names["main"])).parameters
    out = tmp_path / "out"
    if path.stem in ("atlas_traffic", "bench", "shift_estimators"):  # OUT is a file
        out = tmp_path / "out" / "a.json"
    monkeypatch.setattr("experiments.compiled.compile_only.check_plugin", lambda name: None)
    with (
        files.in_use(tmp_path / "out"),
        pytest.raises(InputError, match=r"--out must not be in use; process \d+ on .* uses .*out"),
    ):
        with_out(path, out)


def test_the_commit_is_that_of_the_code_wherever_a_command_runs(monkeypatch, tmp_path):
    here = cli.commit()
    monkeypatch.chdir(tmp_path)
    assert cli.commit() == here
