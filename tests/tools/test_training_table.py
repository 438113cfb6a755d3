"""The table of steps compiled for pods: what it shows, and which cells it compiles."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import train
from tools import training_table
from tools.training_table import CELLS, LARGE, SMALL

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
        "environment": {"commit": "1234567"},
        "compile_seconds": 1.0,
    } | changes


def test_a_row_has_the_units_of_the_head_and_says_what_does_not_fit():
    cell = CELLS[0]
    assert cell == ("resnet50", "batch_norm", 64, SMALL)
    large = result((*cell[:3], LARGE), seconds={"interconnect": 0.00102})
    row = training_table.row(cell, result(cell), large)
    cells = [text.strip() for text in row.strip("|").split("|")]
    first = ["ResNet-50", "batch norm", "64"]
    assert cells == [*first, "3.2", "15.4", "1.5", "3.0", "7.80", "18.80", "0.96", "1.02"]
    too_large = result(cell, memory={"needed": 21.04e9})
    del too_large["bound"]
    row = training_table.row(cell, too_large, large)
    assert " 21.0 does not fit " in row
    assert row.count("|") == training_table.HEADER.splitlines()[0].count("|")


def test_missing_cells_alone_are_compiled_and_all_are_shown(monkeypatch, tmp_path, capsys):
    compiled, out = [], tmp_path / "new" / "out.json"

    def compile_cell(cell):
        compiled.append(cell)
        return json.dumps(result(cell))

    # CELLS[1] has no result for the topology LARGE, so the table has only one row.
    chosen = [CELLS[0], (*CELLS[0][:3], LARGE), CELLS[1]]
    monkeypatch.setattr(training_table, "CELLS", chosen)
    monkeypatch.setattr(training_table, "compile_cell", compile_cell)
    training_table.main(show=True, out=out)
    assert compiled == []
    assert capsys.readouterr().out == training_table.HEADER + "\n"
    training_table.main(out=out)
    assert compiled == chosen
    cells = json.loads(out.read_text())["cells"]
    assert cells == [result(cell) for cell in chosen]
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"{' '.join(map(str, c))} compiled" for c in chosen]
    head, rule, _, *rows = captured.out.splitlines()
    assert rows == [training_table.row(chosen[0], result(chosen[0]), result(chosen[1]))]
    assert len({line.count("|") for line in (head, rule, *rows)}) == 1
    training_table.write(out, cells[1:])
    training_table.main(out=out)
    assert compiled == [*chosen, chosen[0]]
    assert training_table.read(out).keys() == {*chosen}


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
