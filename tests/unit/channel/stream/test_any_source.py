"""Which receive from any rank gets a message, and which peer is asked first."""

from __future__ import annotations

from multiworld.channel.stream.any_source import AnySource
from multiworld.channel.stream.inbox import Arrival, Inbox

TAG, OTHER = 4, 6


def test_receives_are_served_in_the_order_in_which_they_were_issued() -> None:
    source: AnySource[str] = AnySource([1, 2, 3])
    for receive in ("first", "second", "third"):
        source.post(TAG, receive)
    assert [source.take(TAG, peer) for peer in (3, 3, 1, 2)] == ["first", "second", "third", None]


def test_the_peer_behind_the_one_served_last_is_asked_first() -> None:
    source: AnySource[str] = AnySource([0, 2, 3])
    assert source.post(TAG, "a") == [0, 2, 3]
    source.take(TAG, 2)
    assert source.post(TAG, "b") == [3, 0, 2]
    source.take(TAG, 3)
    assert source.post(TAG, "c") == [0, 2, 3]


def test_each_tag_has_its_own_receives_and_its_own_turns() -> None:
    """With turns in common, two tags that are received in alternation could pass one peer over for ever."""
    source: AnySource[str] = AnySource([1, 2])
    source.post(TAG, "a")
    assert source.take(OTHER, 1) is None
    assert source.take(TAG, 1) == "a"
    assert source.post(OTHER, "b") == [1, 2]
    assert source.post(TAG, "c") == [2, 1]


def test_a_withdrawn_receive_gets_nothing() -> None:
    source: AnySource[str] = AnySource([1])
    for receive in ("a", "b"):
        source.post(TAG, receive)
    assert source.withdraw(TAG, "a")
    assert not source.withdraw(TAG, "a")
    assert not source.withdraw(OTHER, "b")
    assert source.take(TAG, 1) == "b"
    assert not source.withdraw(TAG, "b")


def test_nothing_is_kept_of_what_is_over() -> None:
    source: AnySource[int] = AnySource([1], max_turns=3)
    for tag in range(10):
        source.post(tag, tag)
        assert tag in source
        assert len(source) == 1
        source.take(tag, 1)
    assert len(source) == 0
    assert len(source._turns) == 3
    source.post(TAG, 1)
    source.post(OTHER, 2)
    assert source.withdraw_all() == [1, 2]
    assert TAG not in source
    assert source._waiting == {}


def test_an_inbox_says_which_messages_have_no_receive_and_which_have_lost_theirs() -> None:
    inbox: Inbox[str, str] = Inbox(lambda receive, message: True)
    assert not inbox.has_unmet(TAG)
    inbox.post(TAG, "receive", large=False)
    inbox.arrive(TAG, 1, "message", 1, eager=True, transferring=True)
    assert not inbox.has_unmet(TAG)
    assert inbox.parted == []
    inbox.withdraw_receive("receive")
    assert inbox.has_unmet(TAG)
    assert inbox.parted == [TAG]
    met = inbox.post(TAG, "another", large=False)
    assert isinstance(met, Arrival)
    assert met.seq == 1
    assert not inbox.has_unmet(TAG)
