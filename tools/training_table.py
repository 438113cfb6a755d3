"""Compile ResNet steps for TPU pods and print the table of docs/training.md.

    python -m tools.training_table            # hours; resumes
    python -m tools.training_table --show     # the table alone

Each cell is one run of `train.py --compile-for`; its JSON is a line of OUT. A cell that OUT holds
is not compiled again: remove the file first when the layers have changed.
"""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import tyro

SCRIPTS = Path(__file__).parents[1] / "scripts"
OUT = SCRIPTS.parent / "docs/results/compiled/training.jsonl"
HEAD = (
    "| network | layer | images per chip | topology | memory, GB | HBM traffic, GB | TFLOP "
    "| all-reduced, MB | compute, ms | HBM, ms | interconnect, ms |"
)


# Model, normalization, images per chip and topology of every step.
Cell = tuple[str, str, int, str]
CELLS: list[Cell] = [
    (model, normalization, images, topology)
    for model, topology, images, normalization in product(
        ("resnet50", "resnet101"),
        ("v5e:4x4", "v5e:16x16"),
        (64, 128, 256),
        ("batch_norm", "unitized"),
    )
]


def main(show: bool = False, jobs: int = 1, out: Path = OUT) -> None:
    """Compile the cells that are missing, then print the table.

    Args:
      show: Compile nothing.
      jobs: Cells that are compiled at a time; each takes about 3 GB of memory.
      out: File of results, a line of JSON per cell.
    """
    missing = [] if show else [cell for cell in CELLS if cell not in read(out)]
    with ThreadPoolExecutor(jobs) as pool:
        for cell, line in zip(missing, pool.map(compile_cell, missing), strict=True):
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(*cell, "compiled", file=sys.stderr, flush=True)
    results = read(out)
    rule = "| --- | --- |" + " ---: |" * (HEAD.count("|") - 3)
    print(HEAD, rule, *(row(cell, results[cell]) for cell in CELLS if cell in results), sep="\n")


def compile_cell(cell: Cell) -> str:
    """The JSON that the command for a cell prints."""
    model, normalization, images, topology = cell
    chips = math.prod(map(int, topology.partition(":")[2].split("x")))
    command = f"imagenet-resnet101 --precision bfloat16 --batch-size {images * chips}"
    command += f" --model {model} --normalization {normalization} --compile-for {topology}"
    script = [sys.executable, str(SCRIPTS / "train.py"), *command.split()]
    run = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.splitlines()[-1]


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """Results by their cells."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = {}
    for result in map(json.loads, lines):
        names = result["recipe"]["model"], result["recipe"]["normalization"]
        results[*names, result["images_per_chip"], result["topology"]] = result
    return results


def row(cell: Cell, result: dict[str, Any]) -> str:
    """A row of the table, in Markdown."""
    columns = [*map(str, cell), f"{result['memory']['needed'] / 1e9:.1f}"]
    if "bound" not in result:
        return f"| {' | '.join(columns)} does not fit |" + " |" * 6
    reduced = sum(e["bytes"] for e in result["collectives"] if e["kind"] == "all-reduce")
    work = [result["hbm_bytes"] / 1e9, result["flops"] / 1e12, reduced / 1e6]
    times = [f"{1e3 * result['seconds'][name]:.2f}" for name in ("compute", "HBM", "interconnect")]
    return f"| {' | '.join([*columns, *(f'{n:.1f}' for n in work), *times])} |"


if __name__ == "__main__":
    tyro.cli(main)
