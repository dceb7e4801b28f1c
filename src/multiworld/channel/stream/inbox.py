"""Decide which message meets which receive. Pure: no socket, clock, thread or tensor.

One ``Inbox`` stands for what one peer sends us, one ``Outbox`` for what we send to it. Messages and receives of one tag
meet in the order in which they were issued. One that is withdrawn counts as if it had never been: what had met behind
it moves up, except that a payload which has begun stays with its receive.

A large message waits for a *credit* on its tag (``outbox``). Credits are interchangeable within a tag. The receiver
counts those that it has given and no payload has used yet, and those that it wants out: one for each large receive
without a message, one for each announced message that has met a receive. It gives what is missing. What is too much
stays with the sender for the next receive, until too many tags lie idle with such *leftovers*: then they are recalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Generic, TypeVar

from ...errors import ProtocolError

MAX_LEFTOVERS: Final = 64  # idle tags whose credits stay with the sender
MAX_FORGOTTEN: Final = 65536
"""A message on a tag that was forgotten so long ago would wait for ever, and do no other harm."""

R = TypeVar("R")  # the shell's receive
M = TypeVar("M")  # the shell's description of a message


class Posted(Generic[R]):
    """A receive. ``large``: it asks for a credit before any message has come."""

    __slots__ = ("large", "receive", "tag")

    def __init__(self, tag: int, receive: R, large: bool) -> None:
        self.tag, self.receive, self.large = tag, receive, large


class Arrival(Generic[R, M]):
    """A message that has been announced or has begun to arrive. ``dropped``: nobody will receive it."""

    __slots__ = ("complete", "dropped", "eager", "message", "posted", "seq", "size_bytes", "tag", "transferring")

    def __init__(
        self,
        tag: int,
        seq: int,
        message: M,
        eager: bool,
        size_bytes: int,
        posted: Posted[R] | None = None,
        transferring: bool = False,
        complete: bool = False,
    ) -> None:
        self.tag, self.seq, self.message, self.eager, self.size_bytes = tag, seq, message, eager, size_bytes
        self.posted, self.transferring, self.complete = posted, transferring, complete
        self.dropped = False


class Mismatch(Generic[R, M]):
    """This receive cannot take that message; the message stays."""

    __slots__ = ("message", "receive")

    def __init__(self, receive: R, message: M) -> None:
        self.receive, self.message = receive, message


class _Tag(Generic[R, M]):
    __slots__ = ("arrived", "called", "given", "posted", "wanted")

    def __init__(self) -> None:
        self.posted: deque[Posted[R]] = deque()  # receives without a message
        self.arrived: deque[Arrival[R, M]] = deque()  # messages without a receive; one of the two is empty
        self.called: deque[Arrival[R, M]] = deque()  # announced messages that have met a receive
        self.wanted = 0
        self.given = 0

    @property
    def idle(self) -> bool:
        return not (self.posted or self.arrived or self.called)


class Inbox(Generic[R, M]):
    """Receives posted and messages arrived from one peer. ``fits(receive, message)`` compares their shapes.

    Methods raise ProtocolError for what an honest peer never sends.
    """

    def __init__(self, fits: Callable[[R, M], bool], *, max_leftovers: int = MAX_LEFTOVERS) -> None:
        self._fits = fits
        self._max_leftovers = max_leftovers
        self._tags: dict[int, _Tag[R, M]] = {}
        self._num_posted = 0
        self._spare: _Tag[R, M] | None = None
        self._by_seq: dict[int, Arrival[R, M]] = {}
        self._met: dict[Arrival[R, M], None] = {}  # those that have a receive and are not complete, as they met
        self.last_seq = 0
        """The number of the last message that has arrived."""
        self.consumed_bytes = 0  # eager bytes since the last report
        self._leftovers: dict[int, None] = {}  # tags that were idle with credits given
        self._forgotten: dict[int, None] = {}
        self._abandoned: dict[int, None] = {}
        self.credits_to_give: list[int] = []  # tags; the shell sends and clears them
        self.credits_to_recall: list[int] = []  # likewise
        self.mismatches: list[Mismatch[R, M]] = []  # the shell fails and clears them
        self.parted: list[int] = []  # tags on which a message has lost its receive; the shell offers it and clears them

    @property
    def has_receives(self) -> bool:
        """Whether receives wait for messages, or for the rest of one. Any thread."""
        return bool(self._met) or self._num_posted > 0

    @property
    def has_posted(self) -> bool:
        """Whether receives have no message."""
        return self._num_posted > 0

    @property
    def has_moving(self) -> bool:
        """Whether the payload of a message that has met a receive is coming. Any thread."""
        return any(arrival.transferring for arrival in list(self._met))

    @property
    def num_posted(self) -> int:
        """How many receives have no message. Any thread."""
        return self._num_posted

    @property
    def num_arrived(self) -> int:
        """How many messages have no receive. Any thread."""
        return sum(len(state.arrived) for state in list(self._tags.values()))

    @property
    def num_tags(self) -> int:
        return len(self._tags)

    def post(self, tag: int, receive: R, *, large: bool) -> Arrival[R, M] | Posted[R] | None:
        """A receive is issued. Return the arrival that it meets, or its place in the queue; None: it was a mismatch."""
        state = self._tag(tag)
        if state.arrived:
            arrival = state.arrived[0]
            if not self._fits(receive, arrival.message):
                self.mismatches.append(Mismatch(receive, arrival.message))
                return None
            state.arrived.popleft()
            self._meet(state, arrival, Posted(tag, receive, large))
            self._settle(tag, state)
            return arrival
        posted = Posted(tag, receive, large)
        state.posted.append(posted)
        self._num_posted += 1
        if large:
            state.wanted += 1
            self._settle(tag, state)
        return posted

    def take_complete(self, tag: int, fits: Callable[[M], bool]) -> Arrival[R, M] | None:
        """Take the message that a receive would meet now, if it is complete and fits."""
        state = self._tags.get(tag)
        if state is None or not state.arrived:
            return None
        arrival = state.arrived[0]
        if not arrival.complete or not fits(arrival.message):
            return None
        state.arrived.popleft()
        self._consume(arrival)
        self._settle(tag, state)
        return arrival

    def arrive_complete(
        self, tag: int, seq: int, message: M, size_bytes: int, fits: Callable[[R, M], bool]
    ) -> R | None:
        """An eager message is here, complete. Return the receive that takes it, and both are done with.

        None: the first receive does not fit, or there is none; the message has not arrived yet (``arrive``).
        """
        state = self._tags.get(tag)
        if state is None or not state.posted or tag in self._forgotten or seq <= self.last_seq:
            return None
        if not fits(state.posted[0].receive, message):
            return None
        self.last_seq = seq
        posted = state.posted.popleft()
        self._num_posted -= 1
        state.wanted -= int(posted.large)
        self.consumed_bytes += size_bytes
        self._settle(tag, state)
        return posted.receive

    def take_arriving(self, tag: int, seq: int, size_bytes: int) -> bool:
        """An eager message is here, complete, for a receive that is issued now: both are done with.

        False: something else is open on its tag.
        """
        state = self._tags.get(tag)
        if (state is not None and not state.idle) or tag in self._forgotten or seq <= self.last_seq:
            return False
        self.last_seq = seq
        self.consumed_bytes += size_bytes
        return True

    def wait_complete(self, tag: int, seq: int, message: M, size_bytes: int) -> bool:
        """An eager message is here, complete, and waits for a receive. False: one is there, or the tag is forgotten."""
        state = self._tags.get(tag)
        if (state is not None and state.posted) or tag in self._forgotten or seq <= self.last_seq:
            return False
        self.last_seq = seq
        self._tag(tag).arrived.append(Arrival(tag, seq, message, True, size_bytes, None, True, True))
        return True

    def arrive(
        self, tag: int, seq: int, message: M, size_bytes: int, *, eager: bool, transferring: bool
    ) -> Arrival[R, M]:
        """A message is announced or begins (``transferring``). Its ``posted`` tells where it goes, if anywhere yet."""
        if seq <= self.last_seq:
            raise ProtocolError(f"message {seq} came after message {self.last_seq}")
        self.last_seq = seq
        arrival: Arrival[R, M] = Arrival(tag, seq, message, eager, size_bytes, transferring=transferring)
        self._by_seq[seq] = arrival
        if tag in self._forgotten:
            arrival.dropped = True
            return arrival
        state = self._tag(tag)
        if transferring and not eager:
            self._use_credit(state)
        posted = None if state.arrived else self._take_fitting(state, message)
        if posted is None:
            state.arrived.append(arrival)
        else:
            self._meet(state, arrival, posted)
        self._settle(tag, state)
        return arrival

    def begin(self, seq: int, *, eager: bool) -> Arrival[R, M] | None:
        """The payload of an announced message begins, on a credit or within the window. None: it is unknown."""
        arrival = self._by_seq.get(seq)
        if arrival is None or arrival.transferring or arrival.complete:
            return None
        arrival.transferring, arrival.eager = True, eager
        if arrival.dropped:
            return arrival
        state = self._tags[arrival.tag]
        if not eager:
            self._use_credit(state)
        if arrival.posted is not None:
            state.called.remove(arrival)
            state.wanted -= 1
        self._settle(arrival.tag, state)
        return arrival

    def complete(self, seq: int) -> Arrival[R, M] | None:
        """The payload is there: with ``posted`` the receive is done, else the message waits for one. None: unknown."""
        arrival = self._by_seq.get(seq)
        if arrival is None:
            return None
        arrival.complete = True
        if arrival.posted is not None or arrival.dropped:
            self._consume(arrival)
        return arrival

    def withdraw_receive(self, receive: R) -> Arrival[R, M] | None:
        """A receive is cancelled. Return the arrival that it had met and that now waits for another receive."""
        for tag, state in self._tags.items():
            for posted in state.posted:
                if posted.receive is receive:
                    state.posted.remove(posted)
                    self._num_posted -= 1
                    state.wanted -= int(posted.large)
                    self._settle(tag, state)
                    return None
        for arrival in self._met:
            if arrival.posted is not None and arrival.posted.receive is receive:
                self._part(arrival)
                return arrival
        return None

    def withdraw_all(self) -> list[R]:
        """Take out all receives of whose payload nothing has come; no message meets another one instead."""
        withdrawn = []
        for state in self._tags.values():
            withdrawn += [posted.receive for posted in state.posted]
            withdrawn += [arrival.posted.receive for arrival in state.called if arrival.posted is not None]
            for arrival in state.called:
                arrival.posted = None
                self._met.pop(arrival, None)
            state.arrived = deque(sorted((*state.arrived, *state.called), key=attrgetter("seq")))
            state.posted.clear()
            state.called.clear()
            state.wanted = 0
        self._num_posted = 0
        return withdrawn

    def put_back(self, tag: int, seq: int, message: M, size_bytes: int) -> Arrival[R, M] | None:
        """A message that was received waits again, before those behind it. Return the receive that meets it, if any."""
        if tag in self._forgotten:
            return None
        arrival: Arrival[R, M] = Arrival(tag, seq, message, eager=False, size_bytes=size_bytes, complete=True)
        self._by_seq[seq] = arrival
        state = self._tag(tag)
        state.arrived.append(arrival)
        met = self._meet_again(state)
        self._settle(tag, state)
        return met

    def withdraw_message(self, seq: int) -> Arrival[R, M] | None:
        """The sender took an announced message back. Return the complete one that a receive now meets, if any."""
        arrival = self._by_seq.get(seq)
        if arrival is None or arrival.transferring:
            return None
        del self._by_seq[seq]
        self._met.pop(arrival, None)
        if arrival.dropped:
            return None
        state = self._tags[arrival.tag]
        met = None
        if arrival.posted is None:
            state.arrived.remove(arrival)
        else:
            met = self._meet_again(state, without=arrival)
        self._settle(arrival.tag, state)
        return met

    def forget(self, tag: int) -> list[int]:
        """Nobody will receive on this tag any more. Return the messages to reject: they were only announced.

        The sender answers a rejection by withdrawing the message, unless its payload is under way.
        """
        self._forgotten[tag] = None
        if len(self._forgotten) > MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        state = self._tags.get(tag)
        if state is None:
            return []
        announced = []
        for arrival in state.arrived:
            arrival.dropped = True
            if arrival.complete:
                self._consume(arrival)
            elif not arrival.transferring:
                announced.append(arrival.seq)
        state.arrived.clear()
        if state.idle:
            if state.given:
                self.credits_to_recall.append(tag)
            del self._tags[tag]
        return announced

    def abandon(self, tag: int) -> list[R]:
        """The sender sends nothing more on this tag. Return the receives that wait there in vain."""
        self._abandoned[tag] = None
        if len(self._abandoned) > MAX_FORGOTTEN:
            del self._abandoned[next(iter(self._abandoned))]
        state = self._tags.get(tag)
        if state is None:
            return []
        receives = [posted.receive for posted in state.posted]
        state.wanted -= sum(posted.large for posted in state.posted)
        self._num_posted -= len(state.posted)
        state.posted.clear()
        self._settle(tag, state)
        return receives

    def is_abandoned(self, tag: int) -> bool:
        """Whether a receive on this tag would wait in vain."""
        state = self._tags.get(tag)
        return tag in self._abandoned and not (state is not None and state.arrived)

    def returned(self, tag: int, num_credits: int) -> None:
        """The sender gave back what it still held of the credits that were recalled."""
        state = self._tags.get(tag)
        if state is None:
            return
        if num_credits > state.given:
            raise ProtocolError(f"{num_credits} credits came back where {state.given} were given")
        state.given -= num_credits
        self._settle(tag, state)

    def take_consumed(self) -> int:
        """Return how many eager bytes were consumed since the last report, which this is."""
        consumed, self.consumed_bytes = self.consumed_bytes, 0
        return consumed

    def lose_arrived(self) -> None:
        """One of the messages may be lost: those behind it are, too."""
        for state in self._tags.values():
            state.arrived.clear()

    def has_unmet(self, tag: int) -> bool:
        """Whether a message on this tag, complete or not, waits for a receive."""
        state = self._tags.get(tag)
        return state is not None and bool(state.arrived)

    def has_complete(self, tag: int) -> bool:
        """Whether a receive on this tag would be satisfied at once. Any thread."""
        state = self._tags.get(tag)
        try:
            return state is not None and bool(state.arrived) and state.arrived[0].complete
        except IndexError:  # another thread has taken it between the two looks
            return False

    def arrived(self, tag: int) -> list[M]:
        """Return the messages on a tag that have no receive."""
        state = self._tags.get(tag)
        return [] if state is None else [arrival.message for arrival in state.arrived]

    def receives(self) -> list[R]:
        """All receives that have not completed."""
        waiting = [posted.receive for state in self._tags.values() for posted in state.posted]
        met = [arrival.posted.receive for arrival in self._met if arrival.posted is not None]
        return waiting + met

    def _tag(self, tag: int) -> _Tag[R, M]:
        state = self._tags.get(tag)
        if state is None:
            state, self._spare = self._spare or _Tag(), None
            self._tags[tag] = state
        return state

    def _take_fitting(self, state: _Tag[R, M], message: M) -> Posted[R] | None:
        while state.posted:
            posted = state.posted.popleft()
            self._num_posted -= 1
            state.wanted -= int(posted.large)
            if self._fits(posted.receive, message):
                return posted
            self.mismatches.append(Mismatch(posted.receive, message))
        return None

    def _meet(self, state: _Tag[R, M], arrival: Arrival[R, M], posted: Posted[R]) -> None:
        arrival.posted = posted
        if arrival.complete:
            self._consume(arrival)
            return
        self._met[arrival] = None
        if not arrival.transferring:
            state.called.append(arrival)
            state.wanted += 1

    def _part(self, arrival: Arrival[R, M]) -> None:
        """The receive that an arrival had met is gone."""
        arrival.posted = None
        del self._met[arrival]
        state = self._tag(arrival.tag)
        if arrival.tag in self._forgotten:  # its payload is under way, or called for
            arrival.dropped = True
            if not arrival.transferring:
                state.called.remove(arrival)
                state.wanted -= 1
        else:
            if arrival.transferring:
                state.arrived.append(arrival)
            self._meet_again(state)
            if state.arrived:
                self.parted.append(arrival.tag)
        self._settle(arrival.tag, state)

    def _meet_again(self, state: _Tag[R, M], without: Arrival[R, M] | None = None) -> Arrival[R, M] | None:
        """Something was withdrawn: let all whose payload has not begun meet anew, in order.

        Return the message among them that is complete; it is one at most, as only one receive became free.
        """
        for arrival in reversed(state.called):
            if arrival.posted is not None:
                state.posted.appendleft(arrival.posted)
                self._num_posted += 1
                arrival.posted = None
                self._met.pop(arrival, None)  # but for the one that was withdrawn
        state.arrived.extend(arrival for arrival in state.called if arrival is not without)
        state.arrived = deque(sorted(state.arrived, key=attrgetter("seq")))
        state.called.clear()
        state.wanted = sum(posted.large for posted in state.posted)
        completed = None
        while state.arrived:
            posted = self._take_fitting(state, state.arrived[0].message)
            if posted is None:
                break
            arrival = state.arrived.popleft()
            self._meet(state, arrival, posted)
            if arrival.complete:
                completed = arrival
        return completed

    def _use_credit(self, state: _Tag[R, M]) -> None:
        if not state.given:
            raise ProtocolError("a payload came on a credit that was never given")
        state.given -= 1

    def _settle(self, tag: int, state: _Tag[R, M]) -> None:
        """Give the credits that are missing, and forget a tag on which nothing is open."""
        while state.given < state.wanted:
            state.given += 1
            self.credits_to_give.append(tag)
        if not state.idle:
            return
        if not state.given:
            del self._tags[tag]
            self._spare = state
        elif tag not in self._leftovers:
            self._leftovers[tag] = None
            if len(self._leftovers) > self._max_leftovers:
                self._recall()

    def _recall(self) -> None:
        tag = next(iter(self._leftovers))
        del self._leftovers[tag]
        state = self._tags.get(tag)
        if state is not None and state.idle:
            self.credits_to_recall.append(tag)

    def _consume(self, arrival: Arrival[R, M]) -> None:
        self._by_seq.pop(arrival.seq, None)
        self._met.pop(arrival, None)
        if arrival.eager:
            self.consumed_bytes += arrival.size_bytes
