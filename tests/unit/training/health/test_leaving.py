"""How a member is asked to leave: by signals and by notices."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from multiworld.training.health.leaving import LeaveRequest, LeaveSignals, NoticePoller, default_signals


def test_only_the_first_to_ask_counts() -> None:
    request = LeaveRequest()
    assert not request
    assert request.reason == ""
    request.ask("it got SIGTERM")
    request.ask("a notice", 5.0)
    assert (bool(request), request.reason, request.seconds_left) == (True, "it got SIGTERM", None)


def test_a_signal_asks_and_its_handler_is_set_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda signum, frame: seen.append(signum))
    try:
        request = LeaveRequest()
        signals = LeaveSignals((signal.SIGUSR2,), request)
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert request.reason == "it got SIGUSR2"
        signals.close()
        signals.close()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        signals = LeaveSignals((signal.SIGUSR2,), LeaveRequest())
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signals.close()
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_that_cannot_be_handled_is_refused_and_nothing_stays() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(ValueError, match=r"leave_on=.*SIGKILL.*job.leave\(\)"):
        LeaveSignals((signal.SIGUSR2, signal.SIGKILL), LeaveRequest())
    assert signal.getsignal(signal.SIGUSR2) == before


def test_only_the_launcher_s_workers_take_signals_by_default_and_no_handler_of_the_program_is_replaced() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    interrupt_before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert default_signals(is_launched=True) == (signal.SIGTERM, signal.SIGINT)
        assert default_signals(is_launched=False) == ()
        signal.signal(signal.SIGTERM, lambda signum, frame: None)
        assert default_signals(is_launched=True) == (signal.SIGINT,)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert default_signals(is_launched=True) == ()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt_before)
    found: list[tuple[signal.Signals, ...]] = []
    thread = threading.Thread(target=lambda: found.append(default_signals(is_launched=True)))
    thread.start()
    thread.join()
    assert found == [()]


class Asked(LeaveRequest):
    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def ask(self, reason: str, seconds_left: float | None = None) -> None:
        super().ask(reason, seconds_left)
        self.came.set()


def test_the_poller_asks_again_until_a_notice_comes_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    answers = [None, OSError("no route"), 117.0]

    def notice() -> float | None:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    request = Asked()
    poller = NoticePoller([notice], request, every_s=0.001)
    assert request.came.wait(20)
    poller.close(20)
    assert (request.reason, request.seconds_left) == ("it was given notice: 117 s are left", 117.0)
    assert "no route" in caplog.text
    assert not any(thread.name == "multiworld-notices" for thread in threading.enumerate())


def test_a_poller_that_is_closed_asks_no_more() -> None:
    asked = threading.Event()

    def notice() -> None:
        asked.set()

    poller = NoticePoller([notice], LeaveRequest(), every_s=600)
    assert asked.wait(20)
    poller.close(20)
    assert not any(thread.name == "multiworld-notices" for thread in threading.enumerate())
