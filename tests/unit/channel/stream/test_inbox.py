"""What the properties of matching leave open: tags that were abandoned, and messages that are put back."""

from __future__ import annotations

from collections import deque
from typing import Any

from multiworld.channel.stream.inbox import Arrival, Inbox


def inbox() -> Inbox[str, str]:
    return Inbox(anything)


def anything(receive: str, message: str) -> bool:
    return True


def test_receives_on_an_abandoned_tag_wait_in_vain_and_ask_for_nothing() -> None:
    box = inbox()
    box.post(7, "first", large=True)
    box.post(7, "second", large=False)
    box.post(8, "other", large=False)
    assert box.abandon(7) == ["first", "second"]
    assert box.receives() == ["other"]
    assert box.is_abandoned(7)
    assert not box.is_abandoned(8)
    assert box.abandon(9) == []
    assert box.is_abandoned(9), "also for receives that come later"


def test_what_came_before_a_tag_was_abandoned_can_be_received() -> None:
    box = inbox()
    box.arrive(7, 1, "message", 4, eager=True, transferring=True)
    box.complete(1)
    assert box.abandon(7) == []
    assert not box.is_abandoned(7)
    box.post(7, "receive", large=False)
    assert box.is_abandoned(7)


def test_a_message_that_is_put_back_waits_before_those_behind_it() -> None:
    box = inbox()
    for seq in (1, 2):
        box.arrive(7, seq, f"message {seq}", 4, eager=True, transferring=True)
        box.complete(seq)
    box.post(7, "first", large=False)
    assert box.put_back(7, 1, "message 1", 4) is None
    again = box.post(7, "again", large=False)
    assert isinstance(again, Arrival)
    assert again.message == "message 1"
    behind = box.post(7, "behind", large=False)
    assert isinstance(behind, Arrival)
    assert behind.message == "message 2"


def test_a_message_that_is_put_back_meets_the_receive_that_waits_first() -> None:
    box = inbox()
    for receive in ("first", "second", "third"):
        box.post(7, receive, large=True)
    box.arrive(7, 1, "message 1", 4, eager=True, transferring=True)
    box.complete(1)
    box.arrive(7, 2, "message 2", 4, eager=False, transferring=False)  # called for by the second
    met = box.put_back(7, 1, "message 1", 4)
    assert met is not None
    assert met.posted is not None
    assert (met.message, met.posted.receive) == ("message 1", "second")
    begun = box.begin(2, eager=False)
    assert begun is not None
    assert begun.posted is not None
    assert begun.posted.receive == "third"


def test_nothing_is_put_back_on_a_tag_that_was_forgotten() -> None:
    box = inbox()
    box.forget(7)
    assert box.put_back(7, 1, "message", 4) is None
    assert not box.has_complete(7)


def test_a_message_that_is_complete_is_taken_by_the_first_receive_if_it_fits() -> None:
    box = inbox()
    assert box.arrive_complete(7, 1, "message", 4, anything) is None, "nobody waits: it has to arrive"
    box.post(7, "large", large=True)
    box.post(7, "small", large=False)
    box.credits_to_give.clear()
    assert box.arrive_complete(7, 1, "message", 4, lambda receive, _: receive == "small") is None, (
        "not before the first"
    )
    assert box.arrive_complete(7, 1, "message", 4, anything) == "large"
    assert box.arrive_complete(7, 1, "message", 4, anything) is None, "an old number: arrive() refuses it"
    assert box.arrive_complete(7, 2, "message", 4, anything) == "small"
    assert box.take_consumed() == 8
    assert box.num_posted == 0
    assert not box.has_receives
    assert box.num_tags == 1, "the credit that the large one asked for is still out"


def test_a_complete_message_waits_where_no_receive_does() -> None:
    box = inbox()
    assert box.wait_complete(7, 1, "first", 4)
    assert not box.wait_complete(7, 1, "again", 4), "an old number: arrive() refuses it"
    assert box.has_complete(7)
    assert box.consumed_bytes == 0, "it still lies in the window"
    assert not box.has_receives
    met = box.post(7, "receive", large=False)
    assert isinstance(met, Arrival)
    assert (met.message, met.complete) == ("first", True)
    assert box.take_consumed() == 4
    box.post(7, "waits", large=False)
    assert not box.wait_complete(7, 2, "second", 4), "a receive is there: fitting or not, it has to arrive"


def test_nothing_waits_on_a_forgotten_tag() -> None:
    box = inbox()
    box.forget(7)
    assert not box.wait_complete(7, 1, "message", 4)
    assert box.num_tags == 0


def test_nobody_takes_a_complete_message_on_a_forgotten_tag() -> None:
    box = inbox()
    box.post(7, "receive", large=False)
    box.forget(7)
    assert box.arrive_complete(7, 1, "message", 4, anything) is None
    assert box.arrive(7, 1, "message", 4, eager=True, transferring=True).dropped


def test_a_look_for_a_complete_message_bears_that_another_thread_takes_it() -> None:
    box = inbox()
    assert box.wait_complete(7, 1, "message", 4)

    class Taken(deque[Any]):
        """The other thread comes between two looks at it."""

        def __bool__(self) -> bool:
            is_there = len(self) > 0
            if is_there:
                self.popleft()
            return is_there

    state = box._tags[7]
    state.arrived = Taken(state.arrived)
    assert not box.has_complete(7)


def test_what_waits_is_lost_together() -> None:
    box = inbox()
    assert box.wait_complete(7, 1, "message", 4)
    assert box.wait_complete(8, 2, "message", 4)
    box.lose_arrived()
    assert not box.has_complete(7)
    assert not box.has_complete(8)
