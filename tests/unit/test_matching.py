"""What the properties of matching leave open: tags on which the sender sends nothing more."""

from __future__ import annotations

from multiworld.channel.matching import Inbox


def inbox() -> Inbox[str, str]:
    return Inbox(lambda receive, message: True)


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
