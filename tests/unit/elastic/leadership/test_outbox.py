"""What the coordinator tells its agents: in order, and a few messages in each turn of its loop."""

from __future__ import annotations

import itertools
from typing import cast

from benchmarks.elastic.simulated_cluster import HandDrivenLoop
from multiworld.elastic.job.actions import Die, Reset
from multiworld.elastic.leadership.messages import AgentMessage
from multiworld.elastic.leadership.outbox import SLICE_S, Outbox, Outgoing
from multiworld.wire.progress.thread import ProgressThread

PER_TURN = 4
DIE, RESET = Die(), Reset()


class Posting:
    """An outbox whose clock goes on with every look at it."""

    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.sent: list[tuple[str, AgentMessage]] = []
        looks = itertools.count()
        self.outbox = Outbox(
            cast(ProgressThread, self.loop),
            lambda agent, message: self.sent.append((agent, message)),
            clock=lambda: next(looks) * SLICE_S / (PER_TURN + 0.5),
        )

    def turn(self) -> str:
        """Let the loop turn once; returns whom all that were told so far are."""
        for _ in range(len(self.loop.due)):
            self.loop.due.popleft()()
        return "".join(agent for agent, _ in self.sent)


def test_a_few_are_told_at_once_and_others_in_later_turns_of_the_loop() -> None:
    posting = Posting()
    posting.outbox.post("abcdefghij", DIE)
    assert [agent for agent, _ in posting.sent] == [*"abcd"]
    assert posting.turn() == "abcdefgh"
    assert posting.turn() == "abcdefghij"
    posting.outbox.post("k", DIE)
    assert posting.turn() == "abcdefghijk"
    posting.turn()
    assert not posting.loop.due


def test_each_agent_is_told_in_the_order_of_the_decisions() -> None:
    posting = Posting()
    posting.outbox.post("abcdef", DIE)
    posting.outbox.post_later(lambda: Outgoing("ab", RESET))
    posting.outbox.post("a", DIE)
    posting.loop.run()
    assert posting.sent[:6] == [(agent, DIE) for agent in "abcdef"]
    assert posting.sent[6:] == [("a", RESET), ("b", RESET), ("a", DIE)]


def test_what_is_made_later_is_made_when_all_before_it_is_sent() -> None:
    posting = Posting()
    posting.outbox.post("abcdef", DIE)
    sent_before: list[int] = []
    posting.outbox.post_later(lambda: sent_before.append(len(posting.sent)))
    assert not sent_before
    posting.loop.run()
    assert sent_before == [6]


def test_what_is_made_later_is_not_made_in_the_turn_of_the_decision() -> None:
    posting = Posting()
    posting.outbox.post("a", DIE)
    posting.outbox.post_later(lambda: Outgoing("b", RESET))
    posting.outbox.post("a", RESET)
    assert posting.sent == [("a", DIE)]
    posting.turn()
    assert posting.sent == [("a", DIE), ("b", RESET), ("a", RESET)]


def test_what_waits_for_an_agent_that_comes_anew_is_dropped() -> None:
    posting = Posting()
    posting.outbox.post("abcdefgf", DIE)
    posting.outbox.forget("f")
    posting.loop.run()
    assert [agent for agent, _ in posting.sent] == [*"abcdeg"]


def test_nothing_is_told_once_it_is_closed() -> None:
    posting = Posting()
    posting.outbox.post("abcdef", DIE)
    posting.outbox.close()
    assert posting.turn() == "abcd"
