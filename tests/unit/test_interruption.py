"""What a signal does to a command, and when. How it ends one is tested with processes of their own."""

from __future__ import annotations

import asyncio
import signal

import pytest

from multiworld.process.interruptible import run_interruptible
from multiworld.process.interruption import SIGNALS, Interrupted, handled_by, held, undoing, unwinding
from multiworld.serving.kept_folder import works_folder


def dispositions() -> list[object]:
    return [signal.getsignal(signum) for signum in SIGNALS]


def test_the_first_signal_is_handed_over_and_the_dispositions_are_set_back() -> None:
    before = dispositions()
    came: list[int] = []
    with handled_by(came.append):
        assert dispositions() != before
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
    assert dispositions() == before


def test_a_signal_takes_effect_at_the_end_of_what_holds_it() -> None:
    came: list[int] = []
    with handled_by(came.append), held():
        with held():
            signal.raise_signal(signal.SIGINT)
        assert came == []
        signal.raise_signal(signal.SIGTERM)  # the first one counts
    assert came == [signal.SIGINT]


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled_by(lambda _: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_contexts_are_left_by_a_signal_that_unwinds() -> None:
    with pytest.raises(Interrupted, match="ended by SIGTERM"), unwinding(), undoing(works_folder()) as folder:
        signal.raise_signal(signal.SIGTERM)
    assert not folder.exists()


def test_a_coroutine_is_cancelled_and_has_time_to_end() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    with pytest.raises(Interrupted) as raised:
        run_interruptible(work())
    assert (raised.value.signum, steps) == (signal.SIGINT, ["ended"])


def test_a_coroutine_that_no_signal_ends_returns_its_result() -> None:
    async def work() -> int:
        return 3

    assert run_interruptible(work()) == 3
