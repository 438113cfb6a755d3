"""The table of steps compiled for pods: what it shows, and which cells it compiles."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import train
from tools import training_table
from tools.training_table import CELLS

DOCS = Path(__file__).parents[2] / "docs"


def result(cell, **changes):
    model, normalization, images, topology = cell
    recipe = {"model": model, "normalization": normalization}
    collectives = [
        {"kind": "all-reduce", "bytes": 1e6},
        {"kind": "all-gather", "bytes": 5e6},
        {"kind": "all-reduce", "bytes": 2e6},
    ]
    return {
        "recipe": recipe,
        "images_per_chip": images,
        "topology": topology,
        "memory": {"needed": 3.25e9},
        "collectives": collectives,
        "hbm_bytes": 15.4e9,
        "flops": 1.5e12,
        "seconds": {"compute": 0.0078, "HBM": 0.0188, "interconnect": 0.00096},
        "bound": "HBM",
    } | changes


def test_a_row_has_the_units_of_the_head_and_says_what_does_not_fit():
    cell = CELLS[0]
    row = training_table.row(cell, result(cell))
    cells = [text.strip() for text in row.strip("|").split("|")]
    assert cells == [*map(str, cell), "3.2", "15.4", "1.5", "3.0", "7.80", "18.80", "0.96"]
    too_large = result(cell, memory={"needed": 21.04e9})
    del too_large["bound"]
    row = training_table.row(cell, too_large)
    assert " 21.0 does not fit " in row
    assert row.count("|") == training_table.HEAD.count("|")


def test_missing_cells_alone_are_compiled_and_all_are_shown(monkeypatch, tmp_path, capsys):
    compiled, out = [], tmp_path / "new" / "out.jsonl"

    def compile_cell(cell):
        compiled.append(cell)
        return json.dumps(result(cell))

    monkeypatch.setattr(training_table, "CELLS", CELLS[:3])
    monkeypatch.setattr(training_table, "compile_cell", compile_cell)
    training_table.main(show=True, out=out)
    assert compiled == []
    assert len(capsys.readouterr().out.splitlines()) == 2  # the head and its rule
    training_table.main(out=out)
    assert compiled == CELLS[:3]
    lines = out.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [result(cell) for cell in CELLS[:3]]
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"{' '.join(map(str, c))} compiled" for c in CELLS[:3]]
    head, rule, *rows = captured.out.splitlines()
    assert rows == [training_table.row(cell, result(cell)) for cell in CELLS[:3]]
    assert len({line.count("|") for line in (head, rule, *rows)}) == 1
    out.write_text("\n".join(lines[1:]) + "\n")
    training_table.main(out=out)
    assert compiled == [*CELLS[:3], CELLS[0]]
    assert training_table.read(out).keys() == {*CELLS[:3]}


@pytest.mark.parametrize(("topology", "chips"), [("v5e:4x4", 16), ("v5e:16x16", 256)])
def test_a_cell_is_one_command_for_all_chips(monkeypatch, topology, chips):
    def run(command, *, stdout, text, check):
        assert (stdout, text, check) == (subprocess.PIPE, True, True)
        python, script, preset, *options = command
        assert (python, Path(script)) == (sys.executable, Path(train.__file__))
        assert preset in train.PRESETS
        named = dict(zip(options[::2], options[1::2], strict=True))
        assert named == {
            "--precision": "bfloat16",
            "--batch-size": str(64 * chips),
            "--model": "resnet101",
            "--normalization": "unitized",
            "--compile-for": topology,
        }
        return subprocess.CompletedProcess(command, 0, "compiled, not run\nmemory: 3 GB\n{}\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert training_table.compile_cell(("resnet101", "unitized", 64, topology)) == "{}"


def test_the_committed_results_are_of_all_cells():
    assert training_table.read(training_table.OUT).keys() == {*CELLS}
    assert training_table.OUT.is_relative_to(DOCS)
