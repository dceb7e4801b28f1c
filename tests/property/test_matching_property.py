"""Messages and receives over an in-order link with delay: order, no loss, no deadlock, credits and windows bounded."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multiworld.channel.stream.inbox import Arrival, Inbox, Posted
from multiworld.channel.stream.outbox import Outbox, Route

EAGER_BYTES, WINDOW_BYTES, REPORT_BYTES = 4, 10, 3
MAX_LEFTOVERS = 1
COLLECTIVE = 9  # the tag that a receiver may give up
TAGS = st.sampled_from([0, 1, 2, COLLECTIVE])
SIZES = st.sampled_from([0, 1, EAGER_BYTES, EAGER_BYTES + 1, 100])
INDEX = st.integers(0, 1_000_000)


@dataclass(eq=False)
class Send:
    seq: int
    tag: int
    size: int
    state: str = "open"  # then sent, withdrawn, rejected


@dataclass(eq=False)
class Receive:
    """``size`` None takes any message. ``got``: the message that it was completed with."""

    tag: int
    size: int | None
    state: str = "open"  # then done, cancelled, mismatched
    got: Arrival[Receive, Send] | None = None


def fits(receive: Receive, message: Send) -> bool:
    return receive.size is None or receive.size == message.size


@dataclass
class Frame:
    kind: str
    tag: int = 0
    send: Send | None = None
    number: int = 0


@dataclass
class Receiver:
    """What a shell does with an ``Inbox``."""

    to_sender: deque[Frame]
    inbox: Inbox[Receive, Send] = field(default_factory=lambda: Inbox(fits, max_leftovers=MAX_LEFTOVERS))
    receives: list[Receive] = field(default_factory=list)
    arrivals: list[Arrival[Receive, Send]] = field(default_factory=list)
    transferring: Arrival[Receive, Send] | None = None
    recalled: Counter[int] = field(default_factory=Counter)

    def post(self, receive: Receive) -> None:
        self.receives.append(receive)
        large = receive.size is None or receive.size > EAGER_BYTES
        met = self.inbox.post(receive.tag, receive, large=large)
        if isinstance(met, Arrival) and met.complete:
            self.finish(met)
        self.act()

    def cancel(self, receive: Receive) -> None:
        receive.state = "cancelled"
        self.inbox.withdraw_receive(receive)
        self.act()

    def forget(self, tag: int) -> None:
        for receive in self.receives:
            if receive.tag == tag and receive.state == "open":
                self.cancel(receive)
        self.reject(self.inbox.forget(tag))
        self.act()

    def reject(self, seqs: list[int]) -> None:
        self.to_sender.extend(Frame("reject", number=seq) for seq in seqs)

    def take(self, frame: Frame) -> None:
        """A frame came; of one with a payload, only the header."""
        send = frame.send
        if frame.kind == "returned":
            self.inbox.returned(frame.tag, frame.number)
        elif frame.kind == "withdraw":
            assert send is not None
            met = self.inbox.withdraw_message(send.seq)
            if met is not None:
                assert met.complete
                self.finish(met)
        elif frame.kind in ("payload", "eager payload"):
            assert send is not None
            self.transferring = self.inbox.begin(send.seq, eager=frame.kind == "eager payload")
            assert self.transferring is not None
        elif frame.kind == "eager" and send is not None and send.seq % 2 and self.take_complete(send):
            pass
        else:
            assert send is not None
            eager, begins = frame.kind == "eager", frame.kind != "announce"
            arrival = self.inbox.arrive(send.tag, send.seq, send, send.size, eager=eager, transferring=begins)
            self.arrivals.append(arrival)
            if begins:
                self.transferring = arrival
            elif arrival.dropped:
                self.reject([send.seq])
        self.act()

    def take_complete(self, send: Send) -> bool:
        """The payload is here with its header: the quick way."""
        receive = self.inbox.arrive_complete(send.tag, send.seq, send, send.size, fits)
        if receive is not None:
            posted = Posted(send.tag, receive, large=False)
            arrival = Arrival(send.tag, send.seq, send, eager=True, size_bytes=send.size, posted=posted, complete=True)
            self.finish(arrival)
        elif self.inbox.wait_complete(send.tag, send.seq, send, send.size):
            arrival = self.inbox._tags[send.tag].arrived[-1]
        else:
            return False
        self.arrivals.append(arrival)
        return True

    def end(self) -> None:
        """The rest of the payload came."""
        assert self.transferring is not None
        arrival = self.inbox.complete(self.transferring.seq)
        assert arrival is self.transferring
        self.transferring = None
        if arrival.posted is not None:
            self.finish(arrival)
        self.act()

    def finish(self, arrival: Arrival[Receive, Send]) -> None:
        assert arrival.posted is not None
        receive = arrival.posted.receive
        assert receive.state == "open", "a receive that was over got a message"
        assert receive.tag == arrival.tag
        assert fits(receive, arrival.message)
        receive.state, receive.got = "done", arrival

    def act(self) -> None:
        for mismatch in self.inbox.mismatches:
            assert mismatch.receive.state == "open"
            assert not fits(mismatch.receive, mismatch.message)
            mismatch.receive.state = "mismatched"
        self.inbox.mismatches.clear()
        self.to_sender.extend(Frame("credit", tag) for tag in self.inbox.credits_to_give)
        self.inbox.credits_to_give.clear()
        self.to_sender.extend(Frame("recall", tag) for tag in self.inbox.credits_to_recall)
        self.inbox.credits_to_recall.clear()
        if self.inbox.consumed_bytes >= REPORT_BYTES:
            self.to_sender.append(Frame("window", number=self.inbox.take_consumed()))


@dataclass
class Sender:
    """What a shell does with an ``Outbox``."""

    to_receiver: deque[Frame]
    outbox: Outbox[Send] = field(default_factory=lambda: Outbox(eager_bytes=EAGER_BYTES, window_bytes=WINDOW_BYTES))
    sends: dict[int, Send] = field(default_factory=dict)

    def send(self, tag: int, size: int) -> None:
        send = Send(0, tag, size)
        send.seq, route = self.outbox.issue(tag, size, send)
        self.sends[send.seq] = send
        kinds = {Route.EAGER: "eager", Route.CREDITED: "credited", Route.ANNOUNCED: "announce"}
        send.state = "open" if route is Route.ANNOUNCED else "sent"
        self.to_receiver.append(Frame(kinds[route], tag, send))

    def no_room_for_a_small_one(self) -> bool:
        """Whether the first message that waits for the window has to go on waiting."""
        small = [send for send in self.sends.values() if send.state == "open" and send.size <= EAGER_BYTES]
        return not small or self.outbox._unconsumed_bytes + small[0].size > WINDOW_BYTES

    def withdraw(self, seq: int, state: str) -> None:
        if self.outbox.withdraw(seq) is not None:
            send = self.sends[seq]
            send.state = state
            self.to_receiver.append(Frame("withdraw", send.tag, send))

    def take(self, frame: Frame) -> None:
        if frame.kind == "credit":
            credited = self.outbox.credit(frame.tag)
            if credited is not None:
                credited.state = "sent"
                self.to_receiver.append(Frame("payload", frame.tag, credited))
        elif frame.kind == "window":
            for send in self.outbox.consumed(frame.number):
                send.state = "sent"
                self.to_receiver.append(Frame("eager payload", send.tag, send))
            assert self.no_room_for_a_small_one()
        elif frame.kind == "reject":
            self.withdraw(frame.number, "rejected")
        else:
            self.to_receiver.append(Frame("returned", frame.tag, number=self.outbox.recall(frame.tag)))


class Traffic(RuleBasedStateMachine):
    """One direction of traffic; both sides act at any time between the deliveries of single frames."""

    def __init__(self) -> None:
        super().__init__()
        self.to_receiver: deque[Frame] = deque()
        self.to_sender: deque[Frame] = deque()
        self.sender = Sender(self.to_receiver)
        self.receiver = Receiver(self.to_sender)
        self.given_up = False
        self.max_wanted: Counter[int] = Counter()

    # ---- what may happen

    @rule(tag=TAGS, size=SIZES, times=st.integers(1, 3))
    def send(self, tag: int, size: int, times: int) -> None:
        for _ in range(times):
            self.sender.send(tag, size)

    @rule(tag=TAGS, size=SIZES | st.none(), times=st.integers(1, 3))
    def post(self, tag: int, size: int | None, times: int) -> None:
        if not (tag == COLLECTIVE and self.given_up):
            for _ in range(times):
                self.receiver.post(Receive(tag, size))

    @rule(index=INDEX)
    def cancel_receive(self, index: int) -> None:
        waiting = [receive for receive in self.receiver.receives if receive.state == "open"]
        if waiting:
            self.receiver.cancel(waiting[index % len(waiting)])

    @rule(index=INDEX)
    def cancel_send(self, index: int) -> None:
        waiting = [seq for seq, send in self.sender.sends.items() if send.state == "open"]
        if waiting:
            self.sender.withdraw(waiting[index % len(waiting)], "withdrawn")

    @precondition(lambda self: not self.given_up)
    @rule()
    def give_up(self) -> None:
        self.given_up = True
        self.receiver.forget(COLLECTIVE)

    @precondition(lambda self: self.receiver.transferring is not None or self.to_receiver)
    @rule(times=st.integers(1, 4))
    def deliver_to_receiver(self, times: int) -> None:
        for _ in range(times):
            if self.receiver.transferring is not None:
                self.receiver.end()
            elif self.to_receiver:
                self.receiver.take(self.to_receiver.popleft())
            self.credits_are_conserved_and_bounded()  # what is wanted may be most between two frames

    @precondition(lambda self: self.to_sender)
    @rule(times=st.integers(1, 4))
    def deliver_to_sender(self, times: int) -> None:
        for _ in range(min(times, len(self.to_sender))):
            self.sender.take(self.to_sender.popleft())

    # ---- what must hold

    def open_messages(self, tag: int) -> list[Arrival[Receive, Send]]:
        """The messages here that no receive has for good: a payload that has begun stays with its receive."""
        withdrawn = {frame.send for frame in self.to_receiver if frame.kind == "withdraw"}
        done = {receive.got for receive in self.receiver.receives}
        return [
            arrival
            for arrival in self.receiver.arrivals
            if arrival.tag == tag
            and not arrival.dropped
            and arrival not in done
            and (arrival.message.state in ("open", "sent") or arrival.message in withdrawn)
            and not (arrival.transferring and arrival.posted)
        ]

    def open_receives(self, tag: int) -> list[Receive]:
        bound = {
            arrival.posted.receive
            for arrival in self.receiver.arrivals
            if arrival.transferring and arrival.posted is not None
        }
        return [
            receive
            for receive in self.receiver.receives
            if receive.tag == tag and receive.state == "open" and receive not in bound
        ]

    @invariant()
    def messages_and_receives_meet_in_order(self) -> None:
        for tag in (0, 1, 2, COLLECTIVE):
            receives: list[Receive | None] = [*self.open_receives(tag)]
            messages = self.open_messages(tag)
            met = [None if arrival.posted is None else arrival.posted.receive for arrival in messages]
            assert met == (receives + [None] * len(messages))[: len(messages)]

    @invariant()
    def no_message_is_received_twice(self) -> None:
        got = [receive.got.seq for receive in self.receiver.receives if receive.got is not None]
        assert len(got) == len(set(got))

    @invariant()
    def credits_are_conserved_and_bounded(self) -> None:
        for tag in (0, 1, 2, COLLECTIVE):
            if tag == COLLECTIVE and self.given_up:
                continue
            held = self.sender.outbox._credits.get(tag, 0)
            under_way = sum(frame.kind == "credit" and frame.tag == tag for frame in self.to_sender)
            used = sum(frame.kind in ("credited", "payload") and frame.tag == tag for frame in self.to_receiver)
            back = sum(frame.number for frame in self.to_receiver if (frame.kind, frame.tag) == ("returned", tag))
            wanted = sum(arrival.posted is not None for arrival in self.open_messages(tag) if not arrival.complete)
            wanted += sum(
                receive.size is None or receive.size > EAGER_BYTES
                for receive in self.open_receives(tag)[len(self.open_messages(tag)) :]
            )
            self.max_wanted[tag] = max(self.max_wanted[tag], wanted)
            assert held >= 0
            assert wanted <= held + under_way + used + back <= self.max_wanted[tag]

    @invariant()
    def unread_eager_bytes_stay_within_the_window(self) -> None:
        kinds = ("eager", "eager payload")
        under_way = sum(frame.send.size for frame in self.to_receiver if frame.kind in kinds and frame.send)
        done = {receive.got for receive in self.receiver.receives}
        unread = sum(
            arrival.size_bytes
            for arrival in self.receiver.arrivals
            if arrival.eager and arrival not in done and not (arrival.dropped and arrival.complete)
        )
        assert under_way + unread <= WINDOW_BYTES

    def teardown(self) -> None:
        """Deliver all that is under way: what can meet has met and moved; then use up the rest, and nothing is left."""
        self.settle()
        for tag in (0, 1, 2, COLLECTIVE):
            messages, receives = self.open_messages(tag), self.open_receives(tag)
            assert not (messages and receives), "a message and a receive were left apart"
            assert all(arrival.complete for arrival in messages if arrival.message.state == "sent")
        for tag in (0, 1, 2, COLLECTIVE):
            for receive in self.open_receives(tag):
                self.receiver.cancel(receive)
            for _ in self.open_messages(tag):
                self.receiver.post(Receive(tag, None))
        self.settle()
        got = {receive.got.message for receive in self.receiver.receives if receive.got is not None}
        for send in self.sender.sends.values():
            assert send.state != "open", "a send was never let go"
            if send.state == "sent" and not (send.tag == COLLECTIVE and self.given_up):
                assert send in got, "a message was lost"
        inbox = self.receiver.inbox
        assert inbox.receives() == []
        assert inbox.num_posted == inbox.num_arrived == 0
        assert inbox._by_seq == {}
        assert inbox.num_tags <= MAX_LEFTOVERS
        assert len(self.sender.outbox._credits) <= MAX_LEFTOVERS
        assert self.sender.outbox._announced == {}
        assert self.sender.outbox._small == {}

    def settle(self) -> None:
        while self.to_receiver or self.to_sender or self.receiver.transferring is not None:
            if self.receiver.transferring is not None:
                self.receiver.end()
            elif self.to_receiver:
                self.receiver.take(self.to_receiver.popleft())
            else:
                self.sender.take(self.to_sender.popleft())
            self.messages_and_receives_meet_in_order()


Traffic.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestTraffic = Traffic.TestCase
