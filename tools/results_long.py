"""Train the networks of the papers' tables for a number of hours; a later run resumes.

    make results-long ARGS="--list --data-dir DIR"               # the order, with estimates
    make results-long ARGS="--hours 8 --data-dir DIR --out DIR"

The tool runs scripts of the folder `scripts` one after another. When the time is over, or at
Ctrl-C, the tool interrupts the running script, and the script saves its state. To resume the
interrupted script, run the same command line again. On a CPU, networks that need an accelerator are
left out. OUT/NAME is the folder of a network, and OUT/NAME.log is its log. OUT/NAME.json has our
number, the number printed in the paper, and the differences from the paper's training. OUT/index.md
lists all networks.
"""

import ctypes
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from experiments import cli, files, signals
from experiments.cli import StoppedError
from experiments.options import Above, LocalPath, checked
from experiments.progress import print_above, progress_bar
from tools import long_plan
from tools.long_plan import PRUNED_SEEDS, Job, Network
from tools.results import HOUR, ROOT

# A command is polled every TICK seconds, and must save its state within GRACE seconds of a signal.
TICK, GRACE = 0.5, 600.0
PR_SET_PDEATHSIG = 1  # the value from linux/prctl.h
HEAD = ("table or figure", "printed", "ours", "differs", "status")


@dataclass(frozen=True)
class Options:
    """The options of this tool.

    Attributes:
      data_dir: Folder of the data sets in tensorflow-datasets' format.
      hours: Hours after which the running script is interrupted.
      list: Whether only to print the order of training and the estimated times.
      out: Folder with the folders of all networks.
    """

    data_dir: LocalPath
    hours: Above = 8.0
    list: bool = False
    out: LocalPath = Path("out/long")


class Workspace(NamedTuple):
    """The folders of data and of trained networks, and whether the machine has an accelerator."""

    data_dir: Path
    out: Path
    accelerated: bool


@checked
def main(options: tyro.conf.OmitArgPrefixes[Options]) -> None:
    """Train unfinished networks, or list all networks; exit with status 1 if a script failed."""
    workspace = Workspace(options.data_dir.resolve(), options.out.resolve(), has_accelerator())
    jobs = long_plan.jobs(accelerated=workspace.accelerated)
    if options.list:
        show(jobs, workspace)
        return
    with files.in_use(workspace.out), signals.caught() as interrupted:
        failed = run_all(jobs, workspace, HOUR * options.hours, interrupted)
        networks = list(dict.fromkeys(job.network for job in jobs))
        rows = write(networks, workspace, failed)
    cli.show_table("figures and tables", HEAD, rows, left=HEAD, min_width=150)
    cli.say(f"Open {workspace.out / 'index.md'}")
    if interrupted.received is not None:
        raise StoppedError(interrupted.received)
    sys.exit(bool(failed))


def has_accelerator() -> bool:
    """Whether JAX finds an accelerator; a separate process asks, so that the device stays free."""
    words = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    return found.stdout.split()[-1] != "cpu"


def run_all(
    jobs: Sequence[Job], workspace: Workspace, seconds: float, interrupted: signals.Interruption
) -> dict[str, str]:
    """Run unfinished networks until the time is over; return the error of each failed network."""
    start, failed = time.monotonic(), dict[str, str]()
    with progress_bar("numbers") as progress:
        task = progress.add_task("starting", total=seconds, numbers="")

        def is_over(network: Network | None = None) -> bool:
            passed = time.monotonic() - start
            if network:
                numbers = status(network, workspace)
                completed = min(passed, seconds)
                progress.update(
                    task, completed=completed, description=network.name, numbers=numbers
                )
            return passed >= seconds or interrupted.is_set()

        for job in jobs:
            if is_over():
                break
            name = job.network.name
            if (
                name not in failed
                and not is_done(job, workspace.out)
                and not refusal(job, workspace)
            ):
                error = run(job, workspace, lambda job=job: is_over(job.network))
                failed |= {name: error} if error else {}
                print_above(progress, f"{name}: {error or status(job.network, workspace)}")
    return failed


def run(job: Job, workspace: Workspace, is_over: Callable[[], bool]) -> str | None:
    """Run a job's script until it ends or time is over; return an error message if it failed."""
    workspace.out.mkdir(parents=True, exist_ok=True)
    folder, log = workspace.out / job.network.name, workspace.out / f"{job.network.name}.log"
    while files.is_in_use(folder):  # a command whose parent was killed is still saving
        if is_over():
            return None
        time.sleep(TICK)
    # The command has its own process group, so that it gets Ctrl-C only once; a second Ctrl-C would
    # end it without saving.
    with (
        log.open("ab") as file,
        subprocess.Popen(
            command(job, workspace),
            cwd=ROOT,
            stdout=file,
            stderr=file,
            process_group=0,
            preexec_fn=interrupt_with_parent,
        ) as child,
    ):
        try:
            was_asked = wait(child, is_over)
        except BaseException:
            child.kill()
            raise
    if child.returncode == 0 or was_asked:
        return None
    said = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return f"failed with status {child.returncode}; {said}"


def interrupt_with_parent() -> None:
    """Ask Linux to interrupt this process if its parent is killed, so that this process saves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def wait(child: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> bool:
    """Wait for a child process; return whether it was interrupted because `is_over` became true."""
    asked = None
    while child.poll() is None:
        if asked is None and is_over():
            child.send_signal(signal.SIGINT)
            asked = time.monotonic()
        elif asked is not None and time.monotonic() - asked > GRACE:
            child.kill()
        time.sleep(TICK)
    return asked is not None


def command(job: Job, workspace: Workspace) -> list[str]:
    """The command line that trains the network of a job, as a list of words."""
    network = job.network
    script, *words = network.command.split()
    words = [str(workspace.out / str(network.after)) if word == "RUN" else word for word in words]
    seeds = ["--seeds", str(job.seeds)] if job.seeds else []
    folders = ["--data-dir", str(workspace.data_dir), "--out", str(workspace.out / network.name)]
    return [sys.executable, str(ROOT / "scripts" / script), *words, *seeds, *folders]


def results_of(network: Network, out: Path) -> dict[str, Any] | None:
    """The results that a network's script wrote when it ended; None if there are no results yet."""
    return files.read_json(out / network.name / "results.json", dict)


def is_done(job: Job, out: Path) -> bool:
    """Whether the script of a job has written results for all seeds of the job."""
    results = results_of(job.network, out)
    return results is not None and len(results.get("seeds", ())) >= job.seeds


def refusal(job: Job, workspace: Workspace) -> str | None:
    """The reason why a job cannot run on this machine or cannot run yet; None without a reason."""
    network = job.network
    if network.hours is None and not workspace.accelerated:
        return "needs an accelerator"
    if not (workspace.data_dir / network.dataset).is_dir():
        return f"{network.dataset} is not in --data-dir"
    before = Job(network._replace(name=str(network.after)), PRUNED_SEEDS)
    if network.after and not is_done(before, workspace.out):
        return f"after {network.after}"
    return None


def epochs(network: Network, out: Path) -> tuple[list[list[dict[str, Any]]], int]:
    """The metrics of each seed's finished epochs, and the total number of epochs of a seed."""
    folder = out / network.name
    recipe = files.read_json(folder / "recipe.json", dict) or {}
    paths = sorted(folder.glob("seed-*/metrics.jsonl"), key=lambda path: path.parent.name)
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return [seed for seed in lines if seed], recipe.get("epochs", 0)


def status(network: Network, workspace: Workspace) -> str:
    """A short text about the progress of a network's training."""
    results, (lines, total) = results_of(network, workspace.out), epochs(network, workspace.out)
    if lines and len(lines[-1]) < total:
        return f"seed {len(lines) - 1}, {len(lines[-1])} of {total} epochs"
    if results is not None:
        return f"{len(lines)} of {network.runs} seeds" if network.runs else "done"
    return "not run" if not (workspace.out / network.name).exists() else "begun"


def hours_left(job: Job, workspace: Workspace) -> float | None:
    """The estimated remaining hours of a job, or None if there is no estimate.

    The estimate uses the times of finished epochs. Without such times, the estimate is the known
    time on two cores.
    """
    lines, total = epochs(job.network, workspace.out)
    gaps = [
        after["seconds"] - before["seconds"]
        for seed in lines
        for before, after in itertools.pairwise(seed)
    ]
    if any(gap > 0 for gap in gaps) and job.seeds:
        missing = job.seeds * total - sum(map(len, lines))
        return max(missing, 0) * statistics.median(gap for gap in gaps if gap > 0) / HOUR
    if workspace.accelerated or job.network.hours is None:
        return None
    return job.network.hours * (max(job.seeds - len(lines), 1) if job.seeds else 1)


def show(jobs: Sequence[Job], workspace: Workspace) -> None:
    """Print the networks in training order, with the estimated remaining times."""
    rows = []
    for job in jobs:
        hours = hours_left(job, workspace)
        left = "not measured" if hours is None else f"{hours:.1f} h"
        state = "done" if is_done(job, workspace.out) else refusal(job, workspace) or left
        runs = str(job.seeds) if job.seeds else "its own"
        rows.append([job.network.name, job.network.shows, runs, state])
    head = ("network", "table or figure", "seeds", "time left")
    cli.show_table("in this order", head, rows, left=head, min_width=150)


def write(
    networks: Sequence[Network], workspace: Workspace, failed: dict[str, str]
) -> list[list[str]]:
    """Write a file for each network and a table of all networks; return the rows of the table."""
    rows = []
    for network in networks:
        found = compare(network, workspace)
        found["status"] = failed.get(network.name, found["status"])
        files.write_results(workspace.out / f"{network.name}.json", found)
        rows.append([found[key] for key in ("shows", "printed", "ours", "differs", "status")])
    lines = ["| " + " | ".join(re.sub(r"\s+", " ", cell) for cell in row) + " |" for row in rows]
    head = ["| " + " | ".join(HEAD) + " |", "| " + " | ".join("---" for _ in HEAD) + " |"]
    files.write(workspace.out / "index.md", "\n".join([*head, *lines, ""]))
    return rows


def compare(network: Network, workspace: Workspace) -> dict[str, Any]:
    """Our number, the number in the paper, and how our training differs from the paper's."""
    results, (lines, total) = results_of(network, workspace.out), epochs(network, workspace.out)
    ours, differs = "", [network.differs]
    if results is not None:
        ours = network.measured(results)
        differs.append(results.get("note") or results.get("data", {}).get("note", ""))
        runs = len(results.get("seeds", ()))
        differs.append(f"{runs} of {network.runs} seeds" if runs < network.runs else "")
    elif lines:
        ours = f"{100 * lines[0][-1]['accuracy']:.2f} %"
        differs.append(f"{len(lines[0])} of {total} epochs of one seed")
    text = status(network, workspace)
    if text == "not run":
        text += "".join(f": {why}" for why in [refusal(Job(network, 1), workspace)] if why)
    return {
        "network": network.name,
        "shows": network.shows,
        "printed": network.printed,
        "ours": ours or "not run",
        "differs": "; ".join(filter(None, differs)),
        "status": text,
        "command": f"python scripts/{network.command}",
        **{key: (results or {}).get(key) for key in ("accuracy", "seconds", "environment", "date")},
    }


if __name__ == "__main__":
    cli.run(main, again="start again to resume")
