"""Requests are numbered, and each is answered once, or counted as lost or duplicated."""

from __future__ import annotations

import pytest

from multiworld.demo.ledger import RequestLedger


def test_what_has_no_answer_is_open() -> None:
    ledger = RequestLedger()
    assert [ledger.open() for _ in range(3)] == [0, 1, 2]
    ledger.answer(1)
    assert (ledger.num_sent, ledger.num_answered, ledger.num_open, ledger.num_duplicated) == (3, 1, 2, 0)


def test_second_answers_are_counted() -> None:
    ledger = RequestLedger()
    request = ledger.open()
    for _ in range(3):
        ledger.answer(request)
    assert (ledger.num_answered, ledger.num_open, ledger.num_duplicated) == (1, 0, 2)


def test_answer_to_a_request_that_was_never_sent_is_an_error() -> None:
    with pytest.raises(ValueError, match="never sent"):
        RequestLedger().answer(0)
