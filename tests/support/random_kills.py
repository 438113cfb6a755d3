"""Kill `scripts/train.py` at random moments, resume it, and compare the bits of the end.

    python tests/support/random_kills.py FOLDER --kills 300     # about a minute for 5 kills

A chain is killed up to ten times by SIGKILL, SIGTERM or SIGINT, saves five times a second, and then
ends; its metrics and the checksums of its last state must be those of a run that nobody killed.
The last line is one JSON object.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import tyro

SCRIPTS = Path(__file__).parents[2] / "scripts"
SAVES = "from experiments.training import loop; loop.BETWEEN_CHECKPOINTS = 0.2; import runpy, sys; "
RUN = "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
COMMAND = [
    *(sys.executable, "-c", SAVES + RUN),
    *(str(SCRIPTS / "train.py"), "digits-mlp", "--out"),
]
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# By signal: handled, before the loop handles it, or too late.
STATUSES = {
    signal.SIGKILL: {-signal.SIGKILL, 0},
    signal.SIGTERM: {143, -signal.SIGTERM, 0},
    signal.SIGINT: {130, -signal.SIGINT, 0},
}
TIMES = ("seconds", "images_per_second")


@dataclass(frozen=True)
class Options:
    """How often, and by which seed.

    Attributes:
      folder: For the runs.
      kills: Signals in all.
      epochs: Of each run.
      seed: Of the moments.
      minutes: No chain begins later.
    """

    folder: tyro.conf.Positional[Path]
    kills: int = 300
    epochs: int = 100
    seed: int = 0
    minutes: float = 240.0


def start(out: Path, epochs: int) -> subprocess.Popen:
    """The command, in the background; what it says is added to a file."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path])}
    command = [*COMMAND, str(out), "--epochs", str(epochs)]
    with out.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def end_of(out: Path) -> tuple[list, list]:
    """The metrics without times, and the checksums of the last state."""
    lines = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").open()]
    metrics = [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    newest = max(int(p.name) for p in (out / "checkpoints-0").iterdir() if p.name.isdigit())
    checksums = out / "checkpoints-0" / str(newest) / "checksums" / "metadata"
    return metrics, [newest, json.loads(checksums.read_text())["mixed"]]


def main(options: tyro.conf.OmitArgPrefixes[Options]) -> None:
    """Kill and compare, until there were enough kills or it is late."""
    rng, began = random.Random(options.seed), time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    whole, duration = options.folder / "whole", 0.0
    for _ in range(2):  # the first compiles
        shutil.rmtree(whole, ignore_errors=True)
        first = time.monotonic()
        assert start(whole, options.epochs).wait() == 0
        duration = time.monotonic() - first
    expected = end_of(whole)
    statuses: Counter[str] = Counter()
    chains, equal, kills, unexpected = 0, 0, 0, []
    while kills < options.kills and time.monotonic() - began < 60 * options.minutes:
        out = options.folder / f"chain-{chains}"
        for _ in range(min(10, options.kills - kills)):
            process, number = start(out, options.epochs), rng.choice(SIGNALS)
            try:
                process.wait(rng.uniform(0.2, 1.0) * duration)
                break  # it has ended before
            except subprocess.TimeoutExpired:
                process.send_signal(number)
            status = process.wait()
            kills += 1
            statuses[f"{number.name} {status}"] += 1
            if status not in STATUSES[number]:
                unexpected.append([str(out), number.name, status])
        last = start(out, options.epochs).wait()
        chains += 1
        is_equal = last == 0 and end_of(out) == expected
        equal += is_equal
        if is_equal:
            shutil.rmtree(out)
        print(f"{kills} kills, {equal} of {chains} chains end with the same bits", flush=True)
    print(
        json.dumps(
            {
                "kills": kills,
                "chains": chains,
                "equal": equal,
                "statuses": dict(sorted(statuses.items())),
                "unexpected": unexpected,
                "minutes": (time.monotonic() - began) / 60,
            }
        )
    )


if __name__ == "__main__":
    tyro.cli(main)
