"""What a signal does to a command, and when. How it ends one is tested with processes of their own."""

from __future__ import annotations

import asyncio
import signal

import pytest

import multiworld_command
from multiworld.process.interruptible import run_interruptible
from multiworld.process.interruption import (
    ENDING,
    Interrupted,
    _State,
    end_on_signals,
    handled_by,
    held,
    undoing,
    unwinding,
)
from multiworld.serving.locked_folder import works_folder


def dispositions() -> list[object]:
    return [signal.getsignal(signum) for signum in ENDING]


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


@pytest.mark.parametrize("signum", ENDING)
def test_a_signal_that_is_ignored_stays_so(signum: signal.Signals) -> None:
    before = signal.signal(signum, signal.SIG_IGN)
    try:
        with handled_by(lambda _: None):
            assert signal.getsignal(signum) == signal.SIG_IGN
    finally:
        signal.signal(signum, before)


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_a_command_goes_on_ignoring_what_it_was_started_to_ignore(
    ignored: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in both}

    def command() -> int:
        end_on_signals("a command")
        seen.extend(signal.getsignal(signum) == signal.SIG_IGN for signum in both)
        return 0

    monkeypatch.setattr("multiworld.cli.main.main", command)
    monkeypatch.setattr("multiworld.process.interruption._state", _State())
    hangup = signal.getsignal(signal.SIGHUP)
    signal.signal(ignored, signal.SIG_IGN)
    try:
        assert multiworld_command.main() == 0
    finally:
        for signum, handler in {**before, signal.SIGHUP: hangup}.items():
            signal.signal(signum, handler)
    assert seen == [signum == ignored for signum in both]


def test_a_signal_that_is_handled_in_c_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda signum: None if signum == signal.SIGTERM else signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", lambda signum, handler: taken.append(signum))
    with handled_by(lambda _: None):
        assert set(taken) == {signal.SIGINT, signal.SIGHUP}
    assert signal.SIGTERM not in taken


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
