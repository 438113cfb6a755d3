"""Signals that ask a training run to end."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Interruption:
    """Whether SIGTERM or Ctrl-C has asked the run to end.

    A handler that raised could be lost in a callback, or tear a write: this one sets a flag that
    the loop reads. A second Ctrl-C ends the process, which loses what a kill loses: nothing saved.
    """

    received: int | None = None

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.received is not None

    def handle(self, signum: int, _: object) -> None:
        """Remember a signal, or end at the second Ctrl-C."""
        if self.received and signum == signal.SIGINT:
            print("interrupted; start again to resume from the last checkpoint", file=sys.stderr)
            sys.stderr.flush()
            os._exit(130)
        self.received = signum


@contextmanager
def caught() -> Iterator[Interruption]:
    """Catch SIGTERM and Ctrl-C, so that a run saves its state before it ends."""
    interrupted = Interruption()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, interrupted.handle) for number in signals]
    try:
        yield interrupted
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
