"""Replies find the request that they are to, whenever they come; those that nobody takes are discarded."""

from __future__ import annotations

from multiworld.errors import WorldBrokenError
from multiworld.remote.protocol.reply import with_elements
from multiworld.remote.session.answers import Answers
from multiworld.wire.progress.waiting import OperationCancelled

BROKEN = WorldBrokenError("a", 0, 1, "gone")


class Fixture:
    def __init__(self, *requests: int) -> None:
        self.open = set(requests)
        self.discarded: list[int] = []
        self.answers = Answers(self.open.__contains__, lambda request, reply: self.discarded.append(request))

    def reply(self, request: int) -> memoryview:
        reply = memoryview(with_elements(request, b"12"))
        self.answers.came(reply)
        return reply


def test_replies_come_in_any_order_before_and_behind_the_wait() -> None:
    fixture = Fixture(1, 2)
    first = fixture.answers.of(1)
    assert fixture.answers.are_awaited
    replies = fixture.reply(2), fixture.reply(1)
    assert first.result() == replies[1]
    assert fixture.answers.of(2).result() == replies[0]
    assert not fixture.answers.are_awaited
    for request in (1, 2):
        fixture.answers.close(request)
    assert len(fixture.answers) == 0
    assert fixture.discarded == []


def test_a_reply_that_nobody_waits_for_is_discarded() -> None:
    fixture = Fixture(1)
    fixture.reply(5)
    assert fixture.discarded == [5]
    assert len(fixture.answers) == 0


def test_a_reply_to_a_wait_that_was_given_up_is_discarded() -> None:
    fixture = Fixture(1, 2)
    fixture.answers.of(1).cancel_or_undo(OperationCancelled())
    fixture.reply(1)
    assert fixture.discarded == [1]
    fixture.reply(2)
    fixture.answers.of(2).cancel_or_undo(OperationCancelled())  # in the moment in which it came
    assert fixture.discarded == [1, 2]


def test_waits_fail_with_the_link_but_what_has_come_is_there() -> None:
    fixture = Fixture(1, 2, 3)
    before = fixture.answers.of(1)
    fixture.reply(2)
    fixture.answers.ended(BROKEN)
    assert before.error is BROKEN
    assert fixture.answers.of(3).error is BROKEN
    assert fixture.answers.of(2).error is None


def test_what_is_no_reply_is_left_out() -> None:
    fixture = Fixture(1)
    fixture.answers.came(memoryview(b"short"))
    assert len(fixture.answers) == 0
    assert fixture.discarded == []
