"""The fault matrix: for each fault and file, what a run prints and which files remain.

This file and test_run_folder.py test what `docs/training.md` promises about faults.
"""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

import train
from experiments import files, signals
from experiments.training import loop
from tests.support import full_disk
from tools import random_kills

pytestmark = pytest.mark.slow
STRANGER = 1234  # a user without permission to read files of other users


@pytest.fixture(scope="module", autouse=True)
def users_jax(tmp_path_factory):
    """Use JAX's default settings, and compile the programs of all runs only once."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(loop, "BETWEEN_CHECKPOINTS", 0)
        for owner, name in full_disk.CACHED:
            # `patch` will restore this attribute, which `compile_once` replaces.
            patch.setattr(owner, name, getattr(owner, name))
        full_disk.compile_once()
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a finished run `whole` and a run `half`, interrupted after two checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    folder.chmod(0o755)
    assert full_disk.run(folder / "whole")[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        looks = iter([False, True])
        patch.setattr(signals.Interruption, "is_set", lambda self: next(looks))
        status, said = full_disk.run(folder / "half")
    assert (status, "terminated; the state is saved" in said) == (143, True)
    return folder


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def removed(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def containing(content: bytes):
    def write(path):
        removed(path)
        path.write_bytes(content)

    write.__name__ = f"containing {content[:9]!r}"
    return write


class Fault(NamedTuple):
    """A fault in a file, and what the next run must print, return as status, and leave as files."""

    fault: Callable[[Path], None]
    where: str
    words: str
    status: int = 2
    remains: tuple[str, ...] = ("checkpoints-0/5/files.sha256", "checkpoints-0/10/files.sha256")


LINES = "metrics.jsonl was incomplete; the file is written again from the checkpoint"
MATRIX = [
    *(
        Fault(fault, "seed-0/metrics.jsonl", LINES, 0, ())
        for fault in (flipped, cut, emptied, removed, containing(b"\xff\xfe"), containing(b"1\n2"))
    ),
    Fault(removed, "seed-0", LINES, 0, ()),
    *(
        Fault(fault, "recipe.json", "recipe.json must be JSON in UTF-8")
        for fault in (cut, emptied, containing(b"\xff"), containing(b"[" * 99_999))
    ),
    Fault(containing(b"[]"), "recipe.json", "recipe.json must hold a JSON dict; its type is list"),
    Fault(removed, "recipe.json", "recipe.json must exist, because"),
    Fault(containing(b"{}"), "recipe.json", "has dataset None, not digits"),
    Fault(containing(b"text"), "checkpoints-0", "checkpoints-0 must be", 2, ("recipe.json",)),
    Fault(removed, "checkpoints-0", "", 0, ()),
    Fault(removed, "checkpoints-0/10", "", 0, ()),
]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row.fault.__name__} {row.where}")
def test_a_fault_is_mended_or_named(row, runs, tmp_path):
    out = shutil.copytree(runs / "half", tmp_path / "run")
    row.fault(out / row.where)
    status, said = full_disk.run(out)
    assert (status, "Traceback" in said) == (row.status, False), said
    assert row.words in said
    assert all((out / name).exists() for name in row.remains)
    if status == 0:
        assert full_disk.numbers(out) == full_disk.numbers(runs / "whole")


# These files have no checksum. Orbax changes the first file after it writes the list of checksums,
# and does not read the second and the third file.
UNLISTED = ("_CHECKPOINT_METADATA", "commit_success.txt", "files.sha256")


@pytest.mark.parametrize("fault", [flipped, cut, emptied, removed])
def test_every_file_of_a_checkpoint_may_be_damaged(fault, runs, tmp_path):
    newest = runs / "half" / "checkpoints-0" / "10"
    names = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(names) > 15
    for number, name in enumerate(names):
        out = shutil.copytree(runs / "half", tmp_path / f"{number}")
        whole = (newest / name).read_bytes()
        fault(out / "checkpoints-0" / "10" / name)
        status, said = full_disk.run(out)
        assert (status, "Traceback" in said) == (0, False), said
        assert full_disk.numbers(out) == full_disk.numbers(runs / "whole")
        is_said = (
            "checkpoint 10 is damaged (" in said and (out / "checkpoints-0/10.damaged").is_dir()
        )
        assert is_said or not whole or str(name) in UNLISTED


def test_both_checkpoints_damaged_start_anew_and_remain(runs, tmp_path):
    out = shutil.copytree(runs / "half", tmp_path / "run")
    for step in ("5", "10"):
        emptied(out / "checkpoints-0" / step / "state" / "manifest.ocdbt")
    status, said = full_disk.run(out)
    assert (status, said.count("is damaged (")) == (0, 2)
    assert {"5.damaged", "10.damaged"} <= {p.name for p in (out / "checkpoints-0").iterdir()}
    assert full_disk.numbers(out) == full_disk.numbers(runs / "whole")


@contextmanager
def as_stranger():
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("closed", "words"),
    [
        (".", "--out must be a folder that can be written"),
        ("checkpoints-0/10/state/manifest.ocdbt", "manifest.ocdbt must be one that this user may"),
        ("recipe.json", "recipe.json must be one that this user may use"),
        ("checkpoints-0", "must be"),
        ("seed-0/metrics.jsonl", "metrics.jsonl must be one that this user may use"),
    ],
)
def test_what_another_user_may_not_read_is_named_and_remains(closed, words, runs, tmp_path):
    # A worker of pytest-xdist puts one more folder into the path.
    for folder in (*tmp_path.parents[:3], tmp_path):
        if folder.owner() == "root" and folder.name != "tmp":
            folder.chmod(0o755)
    out = shutil.copytree(runs / "half", tmp_path / "run")
    for path in (out, *out.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    os.chown(out / closed, 0, 0)
    (out / closed).chmod(0o700)
    before = sorted(path.relative_to(out) for path in (out / "checkpoints-0").rglob("*"))
    with as_stranger():
        status, said = full_disk.run(out)
    assert (status, "Traceback" in said) == (2, False), said
    assert words in said
    assert before == sorted(p.relative_to(out) for p in (out / "checkpoints-0").rglob("*"))


@pytest.mark.parametrize("size", [100, 2000, 20_000])
def test_a_limit_of_file_sizes_is_named_and_costs_nothing(size, runs, tmp_path):
    out = shutil.copytree(runs / "half", tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        status, said = full_disk.run(out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, "Traceback" in said) == (2, False), said
    assert "File too large" in said
    assert full_disk.run(out)[0] == 0
    assert full_disk.numbers(out) == full_disk.numbers(runs / "whole")


COMMANDS = sorted(path.stem for path in Path(train.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("megabytes", [512, 1024, 2048])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_of_the_address_space_is_named_at_once(command, megabytes, tmp_path):
    """Without a check of the limit, imports of libraries would fail or wait for memory forever."""
    needed = {"analyze": ["weights.npz"], "train": ["digits-mlp"], "prune_lm": ["model"]}
    found = subprocess.run(
        [sys.executable, f"{Path(train.__file__).parent}/{command}.py", *needed.get(command, ())],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, 2 * (megabytes << 20,)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = "error: a command must have an address space of at least 4096 MiB; the limit is "
    assert (found.returncode, found.stderr) == (2, f"{said}{megabytes} MiB (ulimit -v)\n")


def test_a_folder_in_use_is_refused(runs, tmp_path):
    out = shutil.copytree(runs / "half", tmp_path / "run")
    with files.in_use(out):
        status, said = full_disk.run(out)
    assert (status, f"not be in use; process {os.getpid()} on" in said) == (2, True)


ENVIRONMENT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "false", "XLA_FLAGS": ""}


def start(out, *options, **changes):
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)} | changes
    return subprocess.Popen(
        [sys.executable, train.__file__, "digits-mlp", "--out", str(out), *options],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def test_of_two_starts_one_is_refused(tmp_path):
    pair = [start(tmp_path / "run", "--epochs", "300") for _ in range(2)]
    said = [process.communicate(timeout=300)[1] for process in pair]
    assert sorted(process.returncode for process in pair) == [0, 2]
    refused = said[0] if pair[0].returncode else said[1]
    assert "--out must not be in use; process" in refused
    assert "Traceback" not in "".join(said)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("process", [0, 1])
def test_when_one_process_dies_or_hangs_the_other_says_so_and_ends(process, fault, tmp_path):
    """The surviving process ends within a minute; the last line that it prints is our message."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = ("--epochs", "9999", "--coordinator", f"localhost:{port}", "--processes", "2")
    pair = [
        start(
            tmp_path / "run",
            *(*options, "--process", str(i), "--heartbeat", "20"),
            JAX_NUM_CPU_DEVICES="1",
        )
        for i in range(2)
    ]
    metrics, limit = tmp_path / "run" / "seed-0" / "metrics.jsonl", time.monotonic() + 200
    while not metrics.exists() and time.monotonic() < limit:
        time.sleep(0.2)
    pair[process].send_signal(fault)
    began = time.monotonic()
    said = pair[1 - process].communicate(timeout=100)[1]
    pair[process].kill()
    pair[process].communicate()
    assert time.monotonic() - began < 60
    assert pair[1 - process].returncode == 2
    sentence = "error: all processes must run to the end; another process seems to have ended"
    assert (said.count(sentence), said.count("error: ")) == (1, 1)
    assert sentence in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_full_disk_at_any_write_is_named_and_costs_nothing(tmp_path):
    """The run is repeated for every seventh of its writes, at which the disk is full."""
    library = tmp_path / "full_disk.so"
    source = Path(full_disk.__file__).with_name("full_disk.c")
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    found = subprocess.run(
        [sys.executable, full_disk.__file__, str(tmp_path), "7"],
        env=os.environ
        | {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)}
        | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in found.stderr
    head, *moments = map(json.loads, found.stdout.splitlines())
    assert len(moments) == -(-head["writes"] // 7) >= 15
    for moment in moments:
        assert moment["same"], moment
        assert moment["status"] == (2 if moment["full"] else 0), moment
        assert ("error: " in moment["said"]) == moment["full"]
        assert ("No space left on device" in moment["said"]) == moment["full"]
        assert "Traceback" not in moment["said"]


@pytest.mark.parametrize("command", random_kills.COMMANDS)
def test_kills_at_random_moments_change_nothing(command, tmp_path, pytestconfig):
    kills = pytestconfig.getoption("kills")
    found = subprocess.run(
        [sys.executable, random_kills.__file__, tmp_path, "--command", command, "--kills", kills],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(found.stdout.splitlines()[-1])
    assert result["kills"] == int(kills)
    assert result["equal"] == result["chains"]
    assert not result["unexpected"]
