"""Handle the signals that ask a script to end."""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

SHOW_CURSOR = "\x1b[?25h\n"  # the cursor is shown again, because a progress bar hides it


def end_at_once(line: str, signum: int = signal.SIGINT) -> NoReturn:
    """End the process after one printed line.

    The function raises no exception, because an exception could be lost in a callback. Saved
    results are complete even if the process ends at once.
    """
    # `flush` raises if the signal arrived during a write to this stream
    with contextlib.suppress(RuntimeError, OSError, ValueError):
        sys.stdout.flush()
    for child in multiprocessing.active_children():
        child.terminate()
    os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}{line}\n".encode())
    os._exit(128 + signum)


def before_imports() -> None:
    """Let Ctrl-C end the process with one printed line while a script still imports modules."""
    signal.signal(signal.SIGINT, _end_imports)


def _end_imports(signum: int, _: object) -> None:
    end_at_once("interrupted", signum)


@contextmanager
def ctrl_c_ends(line: str) -> Iterator[None]:
    """A context within which Ctrl-C prints `line` and ends the process.

    After the context, the earlier handler applies again. If `before_imports` had set the earlier
    handler, the default action of SIGINT applies.
    """
    before = signal.signal(signal.SIGINT, lambda signum, _: end_at_once(line, signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is _end_imports else before)


class Interruption:
    """A record of whether SIGTERM or Ctrl-C has asked a training run to end.

    The signal handler raises no exception, because an exception could be lost in a callback or
    interrupt a write. Instead, the handler sets a flag, and the training loop reads the flag. If
    Ctrl-C follows an earlier signal, the process ends at once. Saved files remain complete.
    """

    received: int | None = None

    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self.received is not None

    def handle(self, signum: int, _: object) -> None:
        """Remember a signal, or end the process if Ctrl-C follows an earlier signal."""
        if self.received and signum == signal.SIGINT:
            end_at_once(
                "interrupted; start again to resume from the last checkpoint, if there is one"
            )
        self.received = signum


@contextmanager
def caught() -> Iterator[Interruption]:
    """A context that catches SIGTERM and Ctrl-C, so that a run saves its state before it ends."""
    interrupted = Interruption()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, interrupted.handle) for number in signals]
    try:
        yield interrupted
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
