"""Kill a script at random times, resume it, and compare its results with an undisturbed run.

    python -m tools.random_kills FOLDER --kills 300                  # train.py
    python -m tools.random_kills FOLDER --command prune --kills 30

A chain is one run of the script that is killed and resumed up to ten times, and then runs to its
end. The signals are SIGKILL, SIGTERM and SIGINT. About every fourth signal comes while a file or a
checkpoint is being written. The results, the metrics (except times) and the checksums of the last
states of each chain must equal the values of an undisturbed run. Networks are tiny and are saved
five times a second.

Because imports would take most of the time, each run is forked from a process that has already
imported the scripts but has computed nothing. The tool prints a line for each chain, and one JSON
object at the end. `--out` also writes this object to a file.
"""

import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import runpy
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import tyro

SCRIPTS = Path(__file__).parents[1] / "scripts"
COMMANDS = {
    "train": "digits-mlp --epochs 4 --drops 0.5",
    "prune": "--epochs 2 --seeds 1 --images 128 --batch-sizes 1 --fine-tune 1",
    "covariate_shift": "--epochs 2 --seeds 1 --exact 20",
    "reproduce": "--epochs 2 --seeds 1 --depth 8",
    "check_theorems": "--paper cwda --precision 2",
}
TIMES = {"command", "date", "seconds", "images_per_second", "tracker_seconds", "timings"}
TIMES |= {"waiting_for_data"}
# The number of bytes of a pruned network's files varies, because the files contain times.
TIMES |= {"checkpoint"}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# The allowed exit statuses. The command handled the signal, was ended by the signal, or had already
# ended.
STATUSES = {
    signal.SIGKILL: {-signal.SIGKILL, 0},
    signal.SIGTERM: {143, -signal.SIGTERM, 0},
    signal.SIGINT: {130, 0},
}


@dataclass(frozen=True)
class Options:
    """The options of this tool.

    Attributes:
      folder: Folder for the runs.
      command: Name of the script that is killed.
      kills: Total number of signals.
      seed: Seed of the random times at which signals are sent.
      minutes: Minutes after which no new chain begins.
      out: JSON file for the result.
    """

    folder: tyro.conf.Positional[Path]
    command: Literal["train", "prune", "covariate_shift", "reproduce", "check_theorems"] = "train"
    kills: int = 300
    seed: int = 0
    minutes: float = 240.0
    out: Path | None = None


def import_commands(cache: Path) -> None:
    """Import the modules of a run, make runs save often, and keep compiled programs in a folder."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.absolute())
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    warnings.filterwarnings("ignore", message=r"os\.fork", category=RuntimeWarning)
    experiments = importlib.import_module("experiments")
    modules = [found.name for found in pkgutil.walk_packages(experiments.__path__, "experiments.")]
    needed = [
        name for name in modules if "benchmarks" not in name
    ]  # no command of `COMMANDS` needs the benchmarks
    for name in (*COMMANDS, *needed, "sklearn.datasets"):
        importlib.import_module(name)
    vars(importlib.import_module("experiments.training.loop"))["BETWEEN_CHECKPOINTS"] = 0.2


def start(command: str, out: Path) -> BaseProcess:
    """Start the script in a separate process, and append its output to a log file beside `out`."""
    arguments = [str(SCRIPTS / f"{command}.py"), *COMMANDS[command].split(), "--out", str(out)]
    process = multiprocessing.get_context("fork").Process(
        target=run, args=(arguments, out.with_suffix(".log"))
    )
    process.start()
    return process


def run(arguments: list[str], log: Path) -> None:
    """Run a script in the current process, and append its output to the file `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def status_of(process: BaseProcess) -> int:
    """Wait for a process, and return its exit status."""
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def end_of(out: Path) -> dict[str, Any]:
    """The results and metrics of a finished run, and the checksums of its last checkpoints."""
    found: dict[str, Any] = {}
    for path in [*out.rglob("results.json"), *out.rglob("metrics.jsonl")]:
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        found[str(path.relative_to(out))] = [without_times(json.loads(line)) for line in lines]
    for path in sorted(out.rglob("checksums/metadata"), key=lambda p: int(p.parts[-3])):
        run = str(path.parents[2].relative_to(out))
        found[run] = [path.parts[-3], json.loads(path.read_text())["mixed"]]
    return found


def without_times(value: Any) -> Any:
    """The `value` without the fields that depend on the speed of the machine."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def unfinished(out: Path) -> set[Path]:
    """Files and checkpoints that are being written, or that a killed run has left unfinished."""
    try:
        return {*out.rglob("*.orbax-checkpoint-tmp"), *out.rglob(".*.part")}
    except FileNotFoundError:  # the file was renamed after it was listed
        return unfinished(out)


class Chains:
    """The chains of killed and resumed runs, and the counts of their outcomes."""

    def __init__(self, options: Options):
        self.options, self.rng = options, random.Random(options.seed)
        self.kills, self.while_saving, self.chains, self.equal = 0, 0, 0, 0
        self.statuses: Counter[str] = Counter()
        self.unexpected: list[list[Any]] = []
        whole = options.folder / "whole"
        for _ in range(2):  # the first run compiles
            shutil.rmtree(whole, ignore_errors=True)
            began = time.monotonic()
            assert status_of(start(options.command, whole)) == 0
            self.duration = time.monotonic() - began
        self.expected = end_of(whole)
        assert self.expected

    def run(self) -> None:
        """Kill a run up to ten times, let the run end, and compare it with the undisturbed run."""
        out = self.options.folder / f"chain-{self.chains}"
        kills = min(10, self.options.kills - self.kills)
        last = next(filter(None, (self.kill(out) for _ in range(kills))), None)
        status = status_of(last or start(self.options.command, out))
        self.chains += 1
        if status == 0 and end_of(out) == self.expected:
            self.equal += 1
            shutil.rmtree(out)
        else:
            self.unexpected.append([str(out), "end", status])
        print(
            f"{self.kills} kills, {self.equal} of {self.chains} chains end with the same numbers",
            flush=True,
        )

    def kill(self, out: Path) -> BaseProcess | None:
        """Start a run and kill the run; if it ended before the signal, return its process."""
        before, began, is_new = unfinished(out), time.monotonic(), not out.exists()
        number, is_saving = self.rng.choice(SIGNALS), self.rng.random() < 0.25
        process = start(self.options.command, out)
        process.join(self.rng.uniform(0.1, 1.0) * self.duration)
        while is_saving and process.is_alive() and unfinished(out) <= before:
            time.sleep(0.002)
        if not process.is_alive():
            if is_new:  # if the machine is faster now, signals must come earlier
                self.duration = min(self.duration, time.monotonic() - began)
            return process
        assert process.pid is not None
        os.kill(process.pid, number)
        status = status_of(process)
        self.kills += 1
        self.while_saving += not unfinished(out) <= before
        self.statuses[f"{number.name} {status}"] += 1
        if status not in STATUSES[number]:
            self.unexpected.append([str(out), number.name, status])
        return None

    def result(self) -> dict[str, Any]:
        """The JSON object that the tool prints at the end."""
        return {
            "arguments": COMMANDS[self.options.command],
            "seed": self.options.seed,
            "kills": self.kills,
            "left a file or a checkpoint half written": self.while_saving,
            "chains": self.chains,
            "equal": self.equal,
            "statuses": dict(sorted(self.statuses.items())),
            "unexpected": self.unexpected,
            "seconds of a whole run": self.duration,
        }


def main(options: tyro.conf.OmitArgPrefixes[Options]) -> None:
    """Run chains until enough signals have been sent or the time is over."""
    began = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    import_commands(options.folder / "compiled")
    chains = Chains(options)
    while chains.kills < options.kills and time.monotonic() - began < 60 * options.minutes:
        chains.run()
    cli, files = (importlib.import_module(f"experiments.{name}") for name in ("cli", "files"))
    result = cli.provenance(__file__) | chains.result()
    result |= {"seconds": time.monotonic() - began}
    if options.out is not None:
        files.write_results(options.out, result)
    print(json.dumps(result))


if __name__ == "__main__":
    tyro.cli(main)
