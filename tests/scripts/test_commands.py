"""What every command does before and after its own work."""

import inspect
import runpy
from pathlib import Path

import pytest

import train
from experiments import cli, signals

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
    if default is not None:  # of the benches, which write nothing unless told
        assert isinstance(default, Path)
        assert default.parts[0] == "out"
