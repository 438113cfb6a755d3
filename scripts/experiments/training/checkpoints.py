"""Write a training run's checkpoints in the background, and check checkpoints that are read.

The two newest checkpoints are retained. A checkpoint contains arrays, checksums of the arrays,
notes, and a list of the checkpoint's files with their SHA-256 sums, as `sha256sum` prints them. If
a checksum proves that a checkpoint is damaged, the checkpoint is renamed, and the previous
checkpoint is used. In a bucket of Google Cloud Storage, a checkpoint has no list of its files. Such
a checkpoint is complete if the object `commit_success.txt` exists, because Orbax writes this object
last.
"""

import copy
import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, UInt32

from experiments import files, storage
from experiments.cli import InputError
from experiments.training import processes
from experiments.training.processes import is_main_process
from jaxnorm.internal import checkpoints

Tree = TypeVar("Tree")

LIST = "files.sha256"
# The loggers of Orbax. Orbax logs every save. If a save fails, `save` raises the error, and threads
# of Orbax also log its traceback.
NOISE = ("absl", "asyncio", "concurrent.futures")


class DamagedError(Exception):
    """The error that a checkpoint's file or array is missing or differs from what was saved."""


class Checkpoints:
    """The checkpoints of one run; an object is a context manager.

    At the end of the `with` statement, the object waits until all checkpoints are written.
    """

    def __init__(self, checkpoint_dir: Path):
        for name in NOISE:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        sys.unraisablehook = _without_closed_loops
        self.dir = storage.absolute(checkpoint_dir)
        self.remote = storage.is_remote(checkpoint_dir)
        if str(self.dir).startswith("s3://"):
            raise InputError(
                "checkpoints must be in a local folder or at gs://, because Orbax writes nowhere "
                f"else; got {self.dir}"
            )
        with self._explained("written"):
            storage.make_folder(self.dir)
            self.manager = checkpoints.manager(
                self.dir, max_to_keep=2, when_written=self._list_files
            )
            self.inode = self._inode()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with self._explained("written"):
                self.manager.close()
        except InputError:
            if kind is None:  # if `kind` is not None, an exception is being raised already
                raise

    def _inode(self) -> int | None:
        """The inode of `dir`, which shows whether the folder was replaced; None in a bucket."""
        return None if self.remote or not self.dir.is_dir() else self.dir.stat().st_ino

    def newest(self) -> int | None:
        """The last step that has a checkpoint; None if no step has a checkpoint."""
        return max(self.manager.all_steps(), default=None)

    def save(self, step: int, state: Any, notes: Any = None) -> None:
        """Save the state of a step, unless the step already has a checkpoint.

        The function returns before all files are written.

        Args:
          step: Number of the step.
          state: Arrays.
          notes: Values that `restore` returns with the arrays; they must be valid in JSON.

        Raises:
          InputError: The folder cannot be written, or does not exist any longer.
        """
        if self._inode() != self.inode:
            raise InputError(
                f"the folder of a run must remain until the run ends; {self.dir} was moved or "
                "removed"
            )
        if step in self.manager.all_steps():
            return
        # Copies are saved, because the next step can change `notes`, or donate the buffers of
        # `state`, before `notes` and `state` are written.
        notes = copy.deepcopy(notes)
        leaves = [jnp.copy(leaf) for leaf in jax.tree.leaves(state)]
        sums = sums_of(leaves)
        with self._explained("written"):
            checkpoints.save(
                self.manager,
                step,
                arrays={"state": leaves},
                notes={"checksums": {"mixed": sums, "notes": notes}},
            )

    def restore(self, like: Tree, log: Callable[[str], None]) -> tuple[Tree, Any]:
        """Read the newest undamaged state and its notes.

        If there is no undamaged state, the result is `like` and None.

        Args:
          like: A state with the structure, shapes and shardings of the saved state.
          log: A function that is called with a line for each damaged checkpoint.

        Raises:
          InputError: A checkpoint cannot be read, although no checksum proves that the checkpoint
            is damaged.
        """
        leaves, structure = jax.tree.flatten(like)
        while (step := self._newest_whole(log)) is not None:
            try:
                restored, notes = self._read(step, leaves)
            except DamagedError as error:
                self._set_aside(step, str(error), log)
            else:
                return jax.tree.unflatten(structure, restored), notes
        return like, None

    def _newest_whole(self, log: Callable[[str], None]) -> int | None:
        """The last step with a checkpoint whose files agree with their checksums.

        The main process finds the step, and all processes use this step.
        """
        found = -1
        if is_main_process():
            for step in sorted(self.manager.all_steps(), reverse=True):
                try:
                    check_files(self.dir / str(step))
                except DamagedError as error:
                    self._set_aside(step, str(error), log)
                else:
                    found = step
                    break
        if jax.process_count() > 1:
            found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
        return found if found >= 0 else None

    def _set_aside(self, step: int, reason: str, log: Callable[[str], None]) -> None:
        path = self.dir / str(step)
        if is_main_process():
            number, aside = 1, path.with_name(f"{step}.damaged")
            while aside.exists():
                number += 1
                aside = path.with_name(f"{step}.damaged-{number}")
            path.rename(aside)
            log(f"checkpoint {step} is damaged ({reason}): renamed to {aside}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"{step} is set aside")
        self.manager.reload()

    def _read(self, step: int, leaves: list[Array]) -> tuple[list[Array], Any]:
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in leaves]
        with self._explained("read", str(step)):
            read = checkpoints.restore(
                self.manager, step, arrays={"state": shapes}, notes=("checksums",)
            )
            written = read["checksums"]["mixed"]
        if sums_of(read["state"]) != written:
            raise DamagedError("its arrays differ from the arrays that were written")
        return read["state"], read["checksums"]["notes"]

    @contextmanager
    def _explained(self, verb: str, step: str = "") -> Iterator[None]:
        """A context that turns exceptions of Orbax and TensorStore into one sentence."""
        try:
            with processes.together():
                yield
        except InputError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            raise InputError(
                f"the checkpoint {self.dir / step} must be {verb}; "
                f"{type(error).__name__}: {reason[0]}"
            ) from error

    def _list_files(self) -> None:
        """List the files of a checkpoint before Orbax gives the checkpoint's folder its final name.

        In a bucket, the function writes no list, because the files would have to be read again, and
        because objects in a bucket have their own checksums.
        """
        if is_main_process() and not self.remote:
            for folder in self.dir.glob("*.orbax-checkpoint-tmp"):
                list_files(folder)


def _without_closed_loops(raised: Any) -> None:
    """Do not print TensorStore's error "Event loop is closed", which follows a failed save."""
    if str(raised.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(raised)


def list_files(folder: Path) -> None:
    """Sync all files of a checkpoint's folder to the disk; then list the files in its subfolders.

    The list does not have the files outside the subfolders, because Orbax still changes these
    files, for example to write the time of the checkpoint.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix != ".__lock")
    for path in [*paths, folder]:
        files.sync(path)
    listed = [path for path in paths if path.is_file() and path.parent != folder]
    lines = (f"{sha256(path)}  {path.relative_to(folder)}\n" for path in listed)
    files.write(folder / LIST, "".join(lines))


def check_files(folder: Path) -> None:
    """Compare the files of a folder with the checksums in its file `LIST`, if this file exists.

    Raises:
      DamagedError: A file is missing or differs from its checksum, or the file `LIST` is damaged.
    """
    content = files.read_bytes(folder / LIST)
    if content is None:
        return
    lines = content.decode(errors="replace").splitlines()
    if not lines:
        raise DamagedError(f"{folder / LIST} is empty")
    for digest, _, name in (line.partition("  ") for line in lines):
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
        if sha256(path) != digest:
            raise DamagedError(f"{path} differs from the file that was written")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums_of(leaves: list[Array]) -> list[int]:
    """The checksums of arrays, as Python integers."""
    return [int(value) for value in jax.device_get(checksums(leaves))]


@jax.jit
def checksums(leaves: list[Array]) -> list[UInt32[Array, ""]]:
    """For each array, a checksum of all bits and positions; it does not depend on the sharding.

    Elements that do not have 32 bits raise a ValueError. The checksum is a sum over all elements.
    Its terms are values of MurmurHash3's finalizer, which is a bijection. If one element changes,
    the checksum always changes. If several elements change, the checksum remains equal with
    probability 2⁻³².
    """
    return [_checksum(leaf) for leaf in leaves]


@jax.jit  # this function is traced once for each shape of arrays
def _checksum(leaf: Array) -> UInt32[Array, ""]:
    bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    positions = jnp.arange(bits.size, dtype=jnp.uint32).reshape(bits.shape)
    h = bits + positions * jnp.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ (h >> shift)) * jnp.uint32(factor)
    return jnp.sum(h, dtype=jnp.uint32)
