"""Commands end with one line and a status."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import jax
import pytest

import train
from experiments import cli, signals


@pytest.mark.parametrize("hard", [2 * cli.ADDRESS_SPACE, resource.RLIM_INFINITY])
def test_the_limit_of_the_address_space_in_force_is_checked(hard, monkeypatch):
    """A process may raise its soft limit, which is in force, up to its hard limit."""
    limits = {"soft": cli.ADDRESS_SPACE}
    monkeypatch.setattr(cli.resource, "getrlimit", lambda kind: (limits["soft"], hard))
    cli.check_start()
    limits["soft"] //= 2
    with pytest.raises(cli.InputError, match="at least 4096 MiB; the limit is 2048 MiB"):
        cli.check_start()


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (cli.InputError("a\x1b[2Jb\nc"), 2, "error: a\\x1b[2Jb\\nc"),
        (cli.StoppedError(signal.SIGTERM), 143, "terminated; the state is saved, start again"),
        (cli.StoppedError(signal.SIGINT), 130, "interrupted; the state is saved, start again"),
        (KeyboardInterrupt(), 130, "interrupted; start again from the beginning"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/x"),
            2,
            "error: out/x must be on a disk that has room; No space left on device",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "out/x"),
            2,
            "error: out/x must be on a file system that can be written; Read-only file system",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "out/x"),
            2,
            "error: out/x must be one that this user may use; Permission denied",
        ),
        (
            FileExistsError(errno.EEXIST, "File exists", "out/x"),
            2,
            "error: out/x must be a folder, not a file; File exists",
        ),
        (OSError("odd"), 2, "error: a file of the run must be usable; odd"),
        (MemoryError(), 2, "error: there must be enough memory for this command; it ran out\n"),
        (
            MemoryError("8 GiB are needed"),
            2,
            "error: there must be enough memory for this command; it ran out; 8 GiB are needed\n",
        ),
    ],
)
def test_each_end_is_one_line_and_a_status(error, status, line, capsys):
    with pytest.raises(SystemExit) as end, cli.ending():
        raise error
    assert end.value.code == status
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1


class LeftError(BaseException):
    """Raised by a fake `os._exit`, with the status and the captured output."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (cli.InputError("x"), 2),
        (cli.StoppedError(signal.SIGTERM), 143),
        (KeyboardInterrupt(), 130),
        (OSError("odd"), 2),
        (MemoryError(), 2),
    ],
)
def test_one_of_several_processes_says_its_line_and_waits_for_no_other(
    error, status, monkeypatch, capfd
):
    """Without `os._exit`, JAX waits at the end for processes that may have ended."""

    def leave(status):
        raise LeftError(status, capfd.readouterr())

    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", leave)
    print("a result")
    with pytest.raises(LeftError) as left, cli.ending():
        raise error
    found, said = left.value.args
    assert (found, said.out) == (status, "a result\n")
    assert said.err.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), cli.ending():
        raise ZeroDivisionError


def test_signals_are_remembered_and_handlers_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with signals.caught() as interrupted:
        assert not interrupted.is_set()
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
        assert interrupted.received == signal.SIGINT
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_a_second_ctrl_c_ends_at_once(capfd, monkeypatch):
    ended = []
    monkeypatch.setattr(signals.os, "_exit", ended.append)
    with signals.caught():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert ended == [130]
    assert capfd.readouterr().err.count("\n") == 1


@pytest.fixture
def ended(monkeypatch):
    """The statuses with which a fake `os._exit` was called."""
    statuses = []
    monkeypatch.setattr(signals.os, "_exit", statuses.append)
    return statuses


def test_ctrl_c_in_a_command_is_one_line(ended, capfd):
    before = signal.getsignal(signal.SIGINT)
    with cli.ending("start again to resume"):
        signal.raise_signal(signal.SIGINT)
    assert (ended, capfd.readouterr().err) == ([130], "interrupted; start again to resume\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_callback_is_not_lost(ended, capfd):
    """Python only prints exceptions that callbacks of the garbage collector raise."""

    def interrupt(phase, _):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)

    with cli.ending():
        gc.callbacks.append(interrupt)
        gc.collect()
        gc.callbacks.remove(interrupt)
    assert ended == [130]
    assert capfd.readouterr().err == "interrupted; start again from the beginning\n"


def test_a_library_that_is_not_installed_is_named_before_a_command_computes(monkeypatch, capsys):
    """Some commands compute for hours before they record versions, so the check is at the start."""

    def missing(name):
        raise PackageNotFoundError(name)

    computed = []
    monkeypatch.setattr(cli, "version", missing)
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as end:
        cli.run(lambda: computed.append(True))
    assert (end.value.code, computed) == (2, [])
    assert "jaxnorm must be installed" in capsys.readouterr().err


COMMANDS = sorted(Path(train.__file__).parent.glob("*.py"))
REQUIRED = {"analyze": ["weights.npz"], "train": ["digits-mlp"], "prune_lm": ["model"]}
# These commands check whether the folder of the model exists, before they import large packages.
NO_MODEL = ("compare_lm", "prune_lm")
commands = pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.stem)


def run_with_modules(folder, text, names, command, *arguments):
    """Run a command for which each module of `names` is a file with the given text."""
    for name in names:
        (folder / f"{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, command, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


@commands
@pytest.mark.parametrize("names", [["tyro"], ["jax", "numpy", "geometry"]], ids=" ".join)
def test_ctrl_c_while_a_command_imports_is_one_line(command, names, tmp_path):
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    arguments = REQUIRED.get(command.stem, ())
    found = run_with_modules(tmp_path, interrupt, names, command, *arguments)
    if command.stem in NO_MODEL and "jax" in names:
        assert (found.returncode, found.stderr.count("\n")) == (2, 1)
        return
    assert (found.returncode, found.stdout) == (130, "")
    assert found.stderr.startswith("interrupted")
    assert found.stderr.count("\n") == 1


HEAVY = ("jax", "flax", "numpy", "scipy", "matplotlib", "jaxnorm", "pruning", "geometry")


@commands
def test_options_are_read_before_anything_heavy_is_imported(command, tmp_path):
    """`--help` and a wrong option import only tyro and small modules."""
    refuse = "raise AssertionError(__name__)"
    required = REQUIRED.get(command.stem, ())
    shown = run_with_modules(tmp_path, refuse, HEAVY, command, *required, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "options" in shown.stdout
    wrong = run_with_modules(tmp_path, refuse, HEAVY, command, *required, "--pears", "3")
    assert wrong.returncode == 2
    assert "--pears" in wrong.stderr


@commands
def test_help_that_nobody_reads_ends_without_a_word(command):
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, command, "--help"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")
