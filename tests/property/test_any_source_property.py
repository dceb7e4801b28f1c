"""Receives from any rank beside receives that name it: none gets another's message, order, turns, nobody is forgotten.

The shell is that of ``AnyReceives`` and ``MessageStream``: streams are asked one after the other, and may be slow to
answer; what arrives meanwhile is offered at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multiworld.channel.stream.any_source import AnySource
from multiworld.channel.stream.inbox import Arrival, Inbox

PEERS = [0, 2, 3]
TAGS = [0, 1]
TAG = st.sampled_from([0, 0, 0, 1])  # most things happen on one tag, where they meet
TAKES = st.sampled_from([None, None, True, False])
INDEX = st.integers(0, 1_000_000)


@dataclass(eq=False)
class Message:
    peer: int
    tag: int
    seq: int
    is_odd: bool
    state: str = "announced"  # then begun, complete, withdrawn


@dataclass(eq=False)
class Receive:
    """``only`` is the peer that it names. ``is_odd`` None takes any message."""

    tag: int
    only: int | None
    is_odd: bool | None
    issued: int
    state: str = "open"  # then done, cancelled, mismatched
    source: int | None = None
    got: Message | None = None


@dataclass
class Looking:
    """One receive that goes from peer to peer."""

    receive: Receive
    peers: deque[int]


def fits(receive: Receive, message: Message) -> bool:
    return receive.is_odd is None or receive.is_odd == message.is_odd


@dataclass
class Peer:
    inbox: Inbox[Receive, Message] = field(default_factory=lambda: Inbox(fits))
    messages: list[Message] = field(default_factory=list)


class AnyTraffic(RuleBasedStateMachine):
    """Three peers send; each rule is one step under one stream's read side."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = {peer: Peer() for peer in PEERS}
        self.source: AnySource[Receive] = AnySource(PEERS)
        self.receives: list[Receive] = []
        self.looking: list[Looking] = []

    # ---- what may happen

    @rule(peer=st.sampled_from(PEERS), tag=TAG, is_odd=st.booleans(), begins=st.booleans())
    def arrive(self, peer: int, tag: int, is_odd: bool, begins: bool) -> None:
        at = self.peers[peer]
        message = Message(peer, tag, len(at.messages) + 1, is_odd, "begun" if begins else "announced")
        at.messages.append(message)
        arrival = at.inbox.arrive(tag, message.seq, message, 1, eager=begins, transferring=begins)
        if arrival.posted is None:
            self.serve(peer, tag)
        self.act(peer)

    @rule(index=INDEX)
    @precondition(lambda self: self.all_in("announced"))
    def begin(self, index: int) -> None:
        message = self.pick(self.all_in("announced"), index)
        message.state = "begun"
        self.peers[message.peer].inbox.begin(message.seq, eager=True)
        self.act(message.peer)

    @rule(index=INDEX)
    @precondition(lambda self: self.all_in("begun"))
    def complete(self, index: int) -> None:
        message = self.pick(self.all_in("begun"), index)
        message.state = "complete"
        arrival = self.peers[message.peer].inbox.complete(message.seq)
        assert arrival is not None
        if arrival.posted is not None:
            self.finish(arrival)

    @rule(index=INDEX)
    @precondition(lambda self: self.all_in("announced"))
    def withdraw_message(self, index: int) -> None:
        message = self.pick(self.all_in("announced"), index)
        message.state = "withdrawn"
        met = self.peers[message.peer].inbox.withdraw_message(message.seq)
        if met is not None and met.complete:
            self.finish(met)
        self.act(message.peer)

    @rule(peer=st.sampled_from(PEERS), tag=TAG, is_odd=TAKES)
    def receive_from_one(self, peer: int, tag: int, is_odd: bool | None) -> None:
        receive = Receive(tag, peer, is_odd, len(self.receives))
        self.receives.append(receive)
        self.post(peer, receive)
        self.act(peer)

    @rule(tag=TAG, is_odd=TAKES, looks=st.integers(0, len(PEERS)))
    def receive_from_any(self, tag: int, is_odd: bool | None, looks: int) -> None:
        receive = Receive(tag, None, is_odd, len(self.receives))
        self.receives.append(receive)
        looking = Looking(receive, deque(self.source.post(tag, receive)))
        self.looking.append(looking)
        for _ in range(looks):
            if looking in self.looking:
                self.look(self.looking.index(looking))

    @rule(index=INDEX)
    @precondition(lambda self: self.looking)
    def look(self, index: int) -> None:
        looking = self.looking[index % len(self.looking)]
        if looking.receive.state != "open" or looking.receive.source is not None:
            self.looking.remove(looking)
            return
        peer = looking.peers.popleft()
        self.serve(peer, looking.receive.tag)
        self.act(peer)
        if not looking.peers:
            self.looking.remove(looking)

    @rule(index=INDEX)
    @precondition(lambda self: self.open_receives())
    def cancel(self, index: int) -> None:
        receive = self.open_receives()[index % len(self.open_receives())]
        receive.state = "cancelled"
        if receive.only is None and self.source.withdraw(receive.tag, receive):
            assert receive.source is None
            return
        peer = receive.only if receive.only is not None else receive.source
        if peer is not None:
            self.peers[peer].inbox.withdraw_receive(receive)
            self.act(peer)

    # ---- the shell

    def post(self, peer: int, receive: Receive) -> None:
        met = self.peers[peer].inbox.post(receive.tag, receive, large=False)
        if isinstance(met, Arrival) and met.complete:
            self.finish(met)

    def serve(self, peer: int, tag: int) -> None:
        inbox = self.peers[peer].inbox
        while inbox.has_unmet(tag):
            receive = self.source.take(tag, peer)
            if receive is None:
                return
            assert receive.state == "open"
            receive.source = peer
            self.post(peer, receive)
            self.fail_mismatches(peer)

    def act(self, peer: int) -> None:
        inbox = self.peers[peer].inbox
        parted, inbox.parted = inbox.parted, []
        for tag in parted:
            self.serve(peer, tag)
        self.fail_mismatches(peer)
        inbox.credits_to_give.clear()
        inbox.credits_to_recall.clear()

    def fail_mismatches(self, peer: int) -> None:
        inbox = self.peers[peer].inbox
        for mismatch in inbox.mismatches:
            assert mismatch.receive.state == "open"
            mismatch.receive.state = "mismatched"
        inbox.mismatches.clear()

    def finish(self, arrival: Arrival[Receive, Message]) -> None:
        assert arrival.posted is not None
        receive, message = arrival.posted.receive, arrival.message
        assert receive.state == "open"
        assert fits(receive, message)
        assert receive.tag == message.tag
        assert message.peer == (receive.source if receive.only is None else receive.only)
        assert all(other.got is not message for other in self.receives), "a message was received twice"
        receive.state, receive.got = "done", message

    # ---- what must hold

    @invariant()
    def no_message_waits_beside_a_receive_that_has_looked_everywhere(self) -> None:
        looking = {looking.receive for looking in self.looking}
        for tag in TAGS:
            waiting = [r for r in self.source._waiting.get(tag, ()) if r not in looking]
            for peer in PEERS:
                assert not (waiting and self.peers[peer].inbox.has_unmet(tag)), "left apart"

    @invariant()
    def what_one_peer_sent_is_received_in_its_order_unless_a_receive_was_cancelled(self) -> None:
        if any(receive.state == "cancelled" for receive in self.receives):
            return
        for peer in PEERS:
            for tag in TAGS:
                got = [
                    (receive.issued, receive.got.seq)
                    for receive in self.receives
                    if receive.only is None and receive.tag == tag and receive.got and receive.got.peer == peer
                ]
                assert got == sorted(got, key=lambda pair: pair[1]), "out of order"

    def teardown(self) -> None:
        """Everything sent can be received from any rank, and then nothing is left anywhere."""
        while self.looking:
            self.look(0)
        for message in self.all_in("announced"):
            self.peers[message.peer].inbox.begin(message.seq, eager=True)
            message.state = "begun"
        while self.all_in("begun"):
            self.complete(0)
        for receive in self.open_receives():
            receive.state = "cancelled"
            if not (receive.only is None and self.source.withdraw(receive.tag, receive)):
                peer = receive.only if receive.only is not None else receive.source
                assert peer is not None
                self.peers[peer].inbox.withdraw_receive(receive)
                self.act(peer)
        for tag in TAGS:
            self.take_turns(tag)
        assert len(self.source) == 0
        for peer in PEERS:
            assert self.peers[peer].inbox.num_arrived == self.peers[peer].inbox.num_posted == 0
            assert self.peers[peer].inbox._by_seq == {}

    def take_turns(self, tag: int) -> None:
        """Receive all that waits: no peer that has messages is passed over twice in a row."""
        waiting_for = dict.fromkeys(PEERS, 0)
        while any(self.peers[peer].inbox.has_unmet(tag) for peer in PEERS):
            had = [peer for peer in PEERS if self.peers[peer].inbox.has_unmet(tag)]
            self.receive_from_any(tag, None, 0)
            receive = self.receives[-1]
            while self.looking:
                self.look(0)
            assert receive.state == "done"
            for peer in had:
                waiting_for[peer] = 0 if peer == receive.source else waiting_for[peer] + 1
                assert waiting_for[peer] < len(PEERS), "a peer waited while others had two turns"

    # ---- helpers

    def all_in(self, state: str) -> list[Message]:
        return [message for peer in PEERS for message in self.peers[peer].messages if message.state == state]

    def open_receives(self) -> list[Receive]:
        return [receive for receive in self.receives if receive.state == "open"]

    def pick(self, messages: list[Message], index: int) -> Message:
        """A connection carries one payload at a time, in the order of the headers that begin it; any will do here."""
        return messages[index % len(messages)]


AnyTraffic.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyTraffic = AnyTraffic.TestCase
