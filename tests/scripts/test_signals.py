"""Signals that ask a training run to end."""

from signal import SIGINT, SIGTERM

import pytest

from experiments import signals


@pytest.mark.parametrize(
    ("received", "ends"),
    [
        ((SIGTERM, SIGTERM, SIGTERM), False),
        ((SIGINT, SIGTERM), False),
        ((SIGINT, SIGINT), True),
        ((SIGTERM, SIGINT), True),
    ],
)
def test_only_a_second_signal_that_is_ctrl_c_ends_at_once(received, ends, monkeypatch):
    ended = []
    monkeypatch.setattr(signals, "end_at_once", lambda line, signum=SIGINT: ended.append(line))
    asked = signals.Interruption()
    assert not asked.is_set()
    for signum in received:
        asked.handle(signum, None)
        assert asked.is_set()
    assert bool(ended) == ends
    assert asked.received == received[-1]
