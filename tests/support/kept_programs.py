"""Keeps the programs that tests have compiled from run to run, in a separate folder.

Each run has its own folder, which begins with links to all kept files. At the end, the complete
files are kept for the next run, because a process that a test kills may leave half a file.
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
MOST_BYTES = 500 * 2**20  # a run of all tests leaves about 150 MB
DAY = 86400


def begin(folder: Path = FOLDER) -> Path:
    """A folder for this run, with the programs of earlier runs of these versions."""
    kept = _kept(folder)
    kept.mkdir(parents=True, exist_ok=True)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    for program in kept.iterdir():
        with suppress(FileNotFoundError):  # another run has removed the file at its end
            os.link(program, run / program.name)
    return run


def end(run: Path, most_bytes: int = MOST_BYTES) -> None:
    """Keep the newest programs of a run, up to a size, and remove its folder."""
    kept, size = _kept(run.parent), 0
    for program in sorted(run.iterdir(), key=lambda path: -path.stat().st_mtime):
        size += program.stat().st_size
        place = kept / program.name
        if size > most_bytes:
            place.unlink(missing_ok=True)
        elif not place.exists() and _is_whole(program):
            program.rename(place)
    shutil.rmtree(run)
    for left in run.parent.glob("run-*"):  # folders that killed runs left
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
