"""Stores the programs that tests compile, so that later runs of the tests need not compile them.

Each run has its own folder, which at first contains links to all stored files. At the end of the
run, its new files are stored. Incomplete files, which a killed process may leave, are not stored.
"""

import os
import shutil
import tempfile
import time
import zlib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "compiled"
MOST_BYTES = 500 * 2**20  # a run of all tests stores approximately 150 MB of programs
DAY = 86400


def begin(folder: Path = FOLDER) -> Path:
    """Make a folder for this run, with the programs of earlier runs of the same JAX version."""
    kept = _kept(folder)
    kept.mkdir(parents=True, exist_ok=True)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    for program in kept.iterdir():
        with suppress(FileNotFoundError):  # another run can remove the file in the meantime
            os.link(program, run / program.name)
    return run


def end(run: Path, most_bytes: int = MOST_BYTES) -> None:
    """Store the newest programs of a run, at most `most_bytes`, and remove the run's folder."""
    kept, size = _kept(run.parent), 0
    for program in sorted(run.iterdir(), key=lambda path: -path.stat().st_mtime):
        size += program.stat().st_size
        place = kept / program.name
        if size > most_bytes:
            place.unlink(missing_ok=True)
        elif not place.exists() and _is_whole(program):
            program.rename(place)
    shutil.rmtree(run)
    for left in run.parent.glob("run-*"):  # a killed run leaves its folder behind
        if left.stat().st_mtime < time.time() - DAY:
            shutil.rmtree(left, ignore_errors=True)


def _kept(folder: Path) -> Path:
    return folder / f"jax-{version('jax')}-jaxlib-{version('jaxlib')}"


def _is_whole(program: Path) -> bool:
    try:
        zlib.decompress(program.read_bytes())
    except zlib.error:
        return False
    return True
