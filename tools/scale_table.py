"""Run the same training steps on 1, 2, 4 and 8 virtual devices of a CPU, and in two processes.

    python -m tools.scale_table --out docs/results/scale.json     # minutes on 2 cores

The tool trains the preset `digits-preact8`, and compares the first losses and the running
statistics with the values on one device. The tool also measures images per second. All devices
share the cores of one machine. The tool writes docs/results/scale.json. From this file,
`tools.tables` makes a table in docs/results/README.md.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from experiments import cli, files
from experiments.data import datasets
from experiments.recipes import PRESETS, replace
from experiments.training import processes
from experiments.training.trainer import Trainer, mesh_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "results/scale.json"
STEPS, TIMED, REPEATS = 4, 10, 9
NORMALIZATIONS = ("batch_norm", "unitized")
HEADER = (
    "| layer | devices | processes | difference of losses | difference of statistics | images/s |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |\n"
)


class Case(NamedTuple):
    """One measured setting: the number of devices of each process, and the number of processes."""

    devices: int
    processes: int = 1


CASES = (Case(1), Case(2), Case(4), Case(8), Case(1, 2))


def main(out: Path = OUT) -> None:
    """Measure each number of devices and processes in `CASES`, in new processes.

    Args:
      out: File for the numbers.
    """
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for normalization in NORMALIZATIONS:
            found = [measure(case, normalization, Path(scratch)) for case in CASES]
            rows += [
                row(normalization, case, found[0], f) for case, f in zip(CASES, found, strict=True)
            ]
    results = cli.provenance(__file__) | {
        "seconds": cli.seconds(),
        "seeds": 1,
        "load": os.getloadavg()[0],
        "steps": STEPS,
        "rows": rows,
    }
    files.write_results(out, results)


def measure(case: Case, normalization: str, scratch: Path) -> dict[str, np.ndarray]:
    """The first process's measurements, when `case` gives the numbers of devices and processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    path = scratch / f"{normalization}-{case.devices}-{case.processes}.npz"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(case.devices),
        "XLA_FLAGS": "",
    }
    command = [
        sys.executable,
        "-m",
        "tools.scale_table",
        "worker",
        normalization,
        str(path),
        address,
    ]
    started = [
        subprocess.Popen([*command, str(case.processes), str(i)], cwd=ROOT, env=environment)
        for i in range(case.processes)
    ]
    assert [process.wait() for process in started] == [0] * case.processes
    with np.load(path) as found:
        return dict(found)


def worker(normalization: Any, path: Path, address: str, count: int, process: int) -> None:
    """Train as one of `count` processes, and save what this process measured."""
    if count > 1:
        processes.init_distributed(address, count, process, 60)
    recipe = replace(PRESETS["digits-preact8"][1], normalization=normalization)
    trainer = Trainer(recipe, datasets.load("digits"), mesh_of())
    state, batches = trainer.init_state((0,)), trainer.batches((0,), 0, 0)
    losses = [0.0]
    for _ in range(STEPS):
        state = trainer.advance(state, batches, (0,), 1)
        losses.append(float(np.asarray(state.loss)))
    statistics = [np.ravel(leaf) for leaf in jax.tree.leaves(state.statistics)]
    speeds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        state = trainer.advance(state, batches, (0,), TIMED)
        jax.block_until_ready(state.loss)
        speeds.append(recipe.batch_size * TIMED / (time.perf_counter() - start))
    if processes.is_main_process():
        arrays = {"losses": np.diff(losses), "statistics": np.concatenate(statistics)}
        np.savez(path, **arrays, speeds=np.quantile(speeds, (0.25, 0.5, 0.75)))


def row(normalization: str, case: Case, one: dict, found: dict) -> dict[str, Any]:
    """A row with the speeds, and with the relative differences from the results on one device."""
    return {
        "normalization": normalization,
        "devices": case.devices * case.processes,
        "processes": case.processes,
        "losses": found["losses"].tolist(),
        "loss": float(np.max(np.abs(found["losses"] / one["losses"] - 1))),
        "statistics": float(
            np.linalg.norm(found["statistics"] - one["statistics"])
            / np.linalg.norm(one["statistics"])
        ),
        "images_per_second": found["speeds"].tolist(),
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows of the table in Markdown; speeds are shown as medians with quartiles."""
    lines = []
    for r in rows:
        low, median, high = r["images_per_second"]
        cells = (
            r["normalization"].replace("_", " "),
            r["devices"],
            r["processes"],
            *(f"{r[name]:.1e}" if r[name] else "–" for name in ("loss", "statistics")),
            f"{median:,.0f} ({low:,.0f} to {high:,.0f})",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        name, path, address, count, process = sys.argv[2:]
        worker(name, Path(path), address, int(count), int(process))
    else:
        tyro.cli(main)
