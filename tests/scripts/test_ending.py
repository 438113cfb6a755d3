"""Commands end with one line and a status."""

import errno
import signal

import pytest

from experiments import cli
from experiments.training import signals


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
        (OSError("odd"), 2, "error: a file of the run must be usable; odd"),
    ],
)
def test_each_end_is_one_line_and_a_status(error, status, line, capsys):
    with pytest.raises(SystemExit) as end, cli.ending():
        raise error
    assert end.value.code == status
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1


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


def test_a_second_ctrl_c_ends_at_once(capsys, monkeypatch):
    ended = []
    monkeypatch.setattr(signals.os, "_exit", ended.append)
    with signals.caught():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert ended == [130]
    assert capsys.readouterr().err.count("\n") == 1
