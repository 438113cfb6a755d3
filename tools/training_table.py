"""Compile training steps of ResNets for TPU pods, and print the table of docs/compile.md.

    python -m tools.training_table            # hours; resumes
    python -m tools.training_table --show     # the table alone

Each cell of the table is one training step, and a run of `train.py --compile-for` compiles this
step. The file OUT has the results of each cell as JSON. A cell that is in OUT is not compiled
again. If the code of the layers changes, remove OUT.
"""

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import tyro

from experiments import files

SCRIPTS = Path(__file__).parents[1] / "scripts"
OUT = SCRIPTS.parent / "docs/results/compiled/training.json"
HEADER = (
    "| network | layer | images per chip | memory, GB | HBM traffic, GB | TFLOP | all-reduced, MB "
    "| compute, ms | HBM, ms | interconnect of 16 chips, ms | interconnect of 256 chips, ms |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)
SMALL, LARGE = "v5e:4x4", "v5e:16x16"


# The model, the normalization, the number of images per chip, and the topology.
Cell = tuple[str, str, int, str]
CELLS: list[Cell] = [
    (model, normalization, images, topology)
    for model, topology, images, normalization in product(
        ("resnet50", "resnet101"), (SMALL, LARGE), (64, 128, 256), ("batch_norm", "unitized")
    )
]


def main(show: bool = False, jobs: int = 1, out: Path = OUT) -> None:
    """Compile the training steps that have no results yet, then print the table.

    Args:
      show: Whether only to print the table.
      jobs: Number of cells that are compiled at the same time; each takes about 3 GB of memory.
      out: File of results.
    """
    missing = [] if show else [cell for cell in CELLS if cell not in read(out)]
    with ThreadPoolExecutor(jobs) as pool:
        for cell, line in zip(missing, pool.map(compile_cell, missing), strict=True):
            write(out, [*read(out).values(), json.loads(line)])
            print(*cell, "compiled", file=sys.stderr, flush=True)
    print(HEADER, *rows(out), sep="\n")


def compile_cell(cell: Cell) -> str:
    """The last line that `train.py --compile-for` prints for a cell, which is JSON."""
    model, normalization, images, topology = cell
    chips = math.prod(map(int, topology.partition(":")[2].split("x")))
    command = f"imagenet-resnet101 --precision bfloat16 --batch-size {images * chips}"
    command += f" --model {model} --normalization {normalization} --compile-for {topology}"
    script = [sys.executable, str(SCRIPTS / "train.py"), *command.split()]
    run = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.splitlines()[-1]


def write(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write the results of the cells to `path`, with the command, the date and the versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {
        "command": "python -m tools.training_table --jobs 2",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": cells[-1]["environment"] | {"device": "none: compiled ahead of time"},
        "seconds": sum(cell["compile_seconds"] for cell in cells),
        "seeds": None,
    }
    files.write_results(path, header | {"cells": cells})


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """Read the results of each cell from a file; empty if the file does not exist."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cells": []}
    results = {}
    for result in content["cells"]:
        names = result["recipe"]["model"], result["recipe"]["normalization"]
        results[*names, result["images_per_chip"], result["topology"]] = result
    return results


def rows(path: Path = OUT) -> list[str]:
    """A row in Markdown for each training step that has results on 16 chips and on 256 chips."""
    results = read(path)
    return [
        row(cell, results[cell], results[*cell[:3], LARGE])
        for cell in sorted(CELLS, key=lambda cell: (cell[0] != "resnet50", cell[2]))
        if cell[3] == SMALL and {cell, (*cell[:3], LARGE)} <= results.keys()
    ]


def row(cell: Cell, result: dict[str, Any], large: dict[str, Any]) -> str:
    """A table row with the results on 16 chips, and the communication time on 256 chips."""
    model, normalization, images, _ = cell
    network, layer = model.replace("resnet", "ResNet-"), normalization.replace("_", " ")
    columns = [network, layer, str(images), f"{result['memory']['needed'] / 1e9:.1f}"]
    if "bound" not in result:
        return f"| {' | '.join(columns)} does not fit |" + " |" * 7
    reduced = sum(e["bytes"] for e in result["collectives"] if e["kind"] == "all-reduce")
    work = [result["hbm_bytes"] / 1e9, result["flops"] / 1e12, reduced / 1e6]
    times = [result["seconds"][name] for name in ("compute", "HBM", "interconnect")]
    times.append(large["seconds"]["interconnect"])
    cells = [*columns, *(f"{n:.1f}" for n in work), *(f"{1e3 * n:.2f}" for n in times)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    tyro.cli(main)
