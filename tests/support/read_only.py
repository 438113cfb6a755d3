"""Tests a file system that becomes read-only while a command runs.

    unshare --mount python read_only.py FOLDER COMMAND

The command runs on its own small disk. As soon as a file that matches the command's pattern exists,
a read-only view replaces the disk, as after an error of the disk. Every later attempt to open a
file for writing then fails. The program prints one object of JSON with the status and the output of
the command, and the files that are not valid JSON. The object also says whether the same command,
on a writable disk, then ends with the numbers of an undisturbed run.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from tools import random_kills

# For each command, its arguments, and a pattern of a file that exists in the middle of its run.
COMMANDS = {
    "train": ("digits-mlp --epochs 4 --drops 0.5", "seed-0/metrics.jsonl"),
    "prune": ("--epochs 1 --seeds 1 --images 64 --batch-sizes 1", "run/seed-0/metrics.jsonl"),
    "covariate_shift": ("--epochs 2 --seeds 1 --exact 20", "runs/*.json"),
    "check_theorems": ("--paper cwda --claim Lemma --precision 2", "measured.json"),
}


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def half_written(out: Path) -> list[str]:
    """Files of results that are not valid JSON."""
    found = []
    for path in [*out.rglob("*.json"), *out.rglob("*.jsonl")]:
        lines = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        try:
            [json.loads(line) for line in lines]
        except ValueError:
            found.append(path.name)
    return found


def interrupted_by(disk: Path, view: Path, command: str) -> tuple[int, float]:
    """The status of a command whose disk becomes read-only, and its seconds until it ends."""
    process = random_kills.start(command, disk / "out")
    while process.is_alive() and not any((disk / "out").glob(COMMANDS[command][1])):
        time.sleep(0.005)
    mount("--bind", str(view), str(disk))
    began = time.monotonic()
    return random_kills.status_of(process), time.monotonic() - began


def main(folder: Path, command: str) -> None:
    """Run the command undisturbed, on a disk that becomes read-only, and again on this disk."""
    random_kills.COMMANDS[command] = COMMANDS[command][0]
    random_kills.import_commands(folder / "compiled")
    assert random_kills.status_of(random_kills.start(command, folder / "whole")) == 0
    disk, view = folder / "disk", folder / "view"
    for path in (disk, view):
        path.mkdir()
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk))
    mount("--bind", str(disk), str(view))
    mount("-o", "remount,bind,ro", str(view))
    log = folder / "out.log"  # the log stays writable, because it is outside the disk
    (disk / "out.log").symlink_to(log)
    (status, seconds), said = interrupted_by(disk, view, command), log.read_text()
    damaged = half_written(disk / "out")
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    again = random_kills.status_of(random_kills.start(command, disk / "out"))
    same = random_kills.end_of(disk / "out") == random_kills.end_of(folder / "whole")
    left = sorted(path.name for path in random_kills.unfinished(disk / "out"))
    found = {"status": status, "seconds": seconds, "said": said, "half_written": damaged}
    print(json.dumps(found | {"again": again, "same": same, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
