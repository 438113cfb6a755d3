"""Tests a disk that becomes full at any write of a run; the library of `full_disk.c` fills it.

    LD_PRELOAD=full_disk.so python full_disk.py FOLDER [EVERY]

For each write at which the disk becomes full, the program prints a line of JSON. The line has the
status and the output of the run. The line also says whether the same command, after space is free
again, ends with exactly the same results as an undisturbed run.
"""

import contextlib
import ctypes
import errno
import functools
import io
import json
import shutil
import sys
from pathlib import Path

import train
from experiments import cli
from experiments.data import datasets
from experiments.recipes import PRESETS, replace
from experiments.training import loop, run_folder, trainer
from experiments.training.trainer import Trainer, mesh_of

RECIPE = replace(PRESETS["digits-mlp"][1], epochs=3, drops=(), batch_size=256)
TIMES = ("seconds", "images_per_second", "waiting_for_data")


def run(out: Path) -> tuple[int, str]:
    """The status and the error output of a run of the command."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            with cli.ending():
                train.main(RECIPE, train.Options(out=out))
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


# All runs share the results of these functions, so each result is computed only once.
CACHED = ((trainer, "Trainer"), (Trainer, "lower"), (datasets, "load"))


def compile_once() -> None:
    """Make all runs share the data and the compiled programs of the first run."""
    one = functools.cache(lambda: Trainer(RECIPE, datasets.load("digits"), mesh_of(1)))
    trainer.Trainer, Trainer.lower = lambda *_: one(), functools.cache(Trainer.lower)
    datasets.load = functools.cache(datasets.load)


def numbers(out: Path) -> list:
    """The metrics without times, and the number and the checksums of the last checkpoint."""
    lines = run_folder.read_lines(out / "seed-0" / "metrics.jsonl")
    newest = max(int(p.name) for p in (out / "checkpoints-0").iterdir() if p.name.isdigit())
    path = out / "checkpoints-0" / str(newest) / "checksums" / "metadata"
    sums = json.loads(path.read_text())["mixed"]
    return [[{k: v for k, v in line.items() if k not in TIMES} for line in lines], newest, sums]


def main(folder: Path, every: int) -> None:
    """Repeat the run with a disk that becomes full at a write, for each `every`-th write."""
    loop.BETWEEN_CHECKPOINTS = 0
    compile_once()
    faults = ctypes.CDLL(None)
    # The first run compiles the programs, and the second run counts the writes.
    for name in ("programs", "whole"):
        faults.set_fault(str(folder / name).encode(), 0, 0)
        assert run(folder / name)[0] == 0
    writes, expected = faults.count_writes(), numbers(folder / "whole")
    print(json.dumps({"writes": writes, "data": datasets.cache_folder().name}), flush=True)
    for at in range(1, writes + 1, every):
        out = folder / str(at)
        faults.set_fault(str(out).encode(), at, errno.ENOSPC)
        status, said = run(out)
        is_full = faults.count_writes() >= at  # the number of writes depends on a run's speed
        faults.set_fault(b"", 0, 0)
        again = run(out)
        same = again[0] == 0 and numbers(out) == expected
        end = {"at": at, "full": is_full, "status": status, "said": said}
        print(json.dumps(end | {"again": again, "same": same}), flush=True)
        shutil.rmtree(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
