"""The end of a program: what is called, what is printed, and which status the process gets."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import pytest

from multiworld.remote.errors import RemoteError, RemoteOperationError
from multiworld.remote.master import ending
from multiworld.remote.master.ending import Ending, is_failure, report_unseen

ERROR = RemoteOperationError(1, "aten.mm.default", "train.py:7 in step", "RuntimeError", "no memory")


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses with which this process would end."""
    told: list[int] = []
    monkeypatch.setattr(ending, "_end_with", told.append)
    monkeypatch.delattr(sys, "last_type", raising=False)
    return told


class Closed:
    def __init__(self, *unseen: RemoteError, error: type[BaseException] | None = None) -> None:
        self.drops: list[bool] = []
        self.failures: list[bool] = []
        self._unseen, self._error = unseen, error

    def __call__(self, *, drop: bool, failed: bool) -> Sequence[RemoteError]:
        self.drops.append(drop)
        self.failures.append(failed)
        if self._error is not None:
            raise self._error
        return self._unseen


def end(closed: Closed) -> None:
    ending_ = Ending(closed, lambda: None)
    try:
        ending_.at_exit()
    finally:
        ending_.cancel()


def test_an_error_that_nobody_saw_is_printed_and_gives_status_1(
    statuses: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    closed = Closed(ERROR)
    end(closed)
    assert (closed.drops, closed.failures) == ([False], [False])
    assert statuses == [1]
    text = capsys.readouterr().err
    assert "nobody saw this error: aten.mm.default failed on node 1" in text
    assert "train.py:7" in text


def test_errors_that_say_the_same_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    other = RemoteOperationError(1, "aten.mm.default", "train.py:8 in step", "RuntimeError", "no memory")
    report_unseen([ERROR, other, ERROR])
    text = capsys.readouterr().err
    assert text.count("train.py:7") == 1
    assert "nobody saw this error, which came 2 times: aten.mm.default failed" in text
    assert text.count("nobody saw this error: ") == text.count("train.py:8") == 1


def test_a_program_without_errors_keeps_its_status(statuses: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    end(Closed())
    assert statuses == []
    assert capsys.readouterr().err == ""


def test_after_an_error_of_the_program_its_own_status_stays(
    statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    closed = Closed(ERROR)
    end(closed)
    assert (closed.drops, closed.failures, statuses) == ([False], [True], [])


def test_after_an_interrupt_the_nodes_drop_what_waits(statuses: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_type", KeyboardInterrupt, raising=False)
    closed = Closed()
    end(closed)
    assert (closed.drops, statuses) == ([True], [])


def test_an_interrupt_while_the_end_waits_is_the_status(statuses: list[int]) -> None:
    end(Closed(error=KeyboardInterrupt))
    assert statuses == [130]


@pytest.mark.parametrize(("error", "is_frozen"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_the_last_search_for_garbage_is_left_out_after_an_interrupt_only(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], is_frozen: bool
) -> None:
    monkeypatch.setattr(sys, "last_type", error, raising=False)
    gc.unfreeze()  # another test may have left something frozen
    try:
        ending._hasten_after_interrupt()
        assert bool(gc.get_freeze_count()) is is_frozen
    finally:
        gc.unfreeze()


def test_nothing_is_printed_for_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    report_unseen([])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (None, False),
        (SystemExit(), False),
        (SystemExit(0), False),
        (SystemExit(3), True),
        (SystemExit("a text"), True),
        (ValueError(), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_an_error_fails_a_program_unless_it_is_an_exit_with_status_0(error: BaseException | None, fails: bool) -> None:
    assert is_failure(error) is fails
