"""A disk becomes read-only during a command, which prints one sentence and loses nothing."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support import read_only

pytestmark = pytest.mark.slow


def may_mount() -> bool:
    """Whether this user may mount file systems in a new namespace."""
    if not shutil.which("unshare"):
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


may_mount_only = pytest.mark.skipif(
    not may_mount(), reason="only root may mount a disk that becomes read-only"
)


@may_mount_only
@pytest.mark.parametrize("command", read_only.COMMANDS)
def test_a_disk_that_becomes_read_only_is_named_and_costs_nothing(command, tmp_path):
    found = subprocess.run(
        ["unshare", "--mount", sys.executable, read_only.__file__, tmp_path, command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    moment = json.loads(found.stdout.splitlines()[-1])
    assert moment["status"] == 2, moment
    assert moment["seconds"] < 200, moment  # Orbax's own threads would wait longer before they fail
    assert moment["said"].count("error: ") == 1
    assert "Read-only file system" in moment["said"]
    assert "Traceback" not in moment["said"]
    assert not moment["half_written"]
    assert (moment["again"], moment["same"], moment["left"]) == (0, True, []), moment


SAVE = """
import subprocess, sys
from pathlib import Path
import jax.numpy as jnp
from experiments import cli
from experiments.training.checkpoints import Checkpoints

folder = sys.argv[1]
with cli.ending(), Checkpoints(Path(folder)) as checkpoints:
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    checkpoints.save(1, {"w": jnp.ones(3)})
"""


@may_mount_only
def test_a_command_that_cannot_save_ends_at_once(tmp_path):
    """The command does not wait ten minutes for Orbax's threads."""
    (tmp_path / "run").mkdir()
    found = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", SAVE, tmp_path / "run"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "run must be written; OSError: [Errno 30] Read-only file system" in found.stderr
    assert not list((tmp_path / "run").iterdir())
