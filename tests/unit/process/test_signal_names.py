"""The names of signals, real-time ones included."""

from __future__ import annotations

import signal

from multiworld.process.signal_names import how_ended, signal_name


def test_a_signal_has_its_name() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(int(signal.SIGTERM)) == "SIGTERM"


def test_a_real_time_signal_without_a_name_is_told_by_its_number() -> None:
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_a_process_that_a_real_time_signal_killed_can_be_described() -> None:
    """Naming it raised ValueError where its end was told."""
    assert how_ended(-(signal.SIGRTMIN + 3)) == f"was killed by signal {signal.SIGRTMIN + 3}"


def test_how_a_process_ended() -> None:
    assert how_ended(-9) == "was killed by SIGKILL"
    assert how_ended(3) == "ended with status 3"
    assert how_ended(None) == "has ended"
