"""How members of a world meet through a store: generations, taken ranks, disagreements, and joins that are given up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from multiworld.errors import JoinMismatchError, JoinRefusedError, ProtocolError, StoreError
from multiworld.store.client import Answer, StoreClient
from multiworld.store.state import Reply, Request, StoreState
from multiworld.testing import wait_until
from multiworld.wire.progress.operation import Operation, StepsCancelled, drive
from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.joining.rendezvous import Invitation, Meeting, Rendezvous
from multiworld.world.links.peers import PeerInfo

PREFIX = "job/w/"


class Server:
    """One store state and the clients that wait for its replies."""

    def __init__(self) -> None:
        self.state = StoreState()
        self.clients: dict[str, Client] = {}

    def deliver(self, replies: list[Reply]) -> None:
        for reply in replies:
            client = self.clients.get(str(reply.client))
            if client is not None:
                client.replied(reply)

    def list_keys(self) -> list[str]:
        (reply,) = self.state.handle("test", 0, Request.LIST, 0, [b""])
        return sorted(key.decode() for key in reply.values[::2])


class Client(StoreClient):
    """A ``Store`` without a network. ``hold()`` keeps back replies, as a slow network does, until ``release()``."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__("tcp://test:1")
        self._server, self._name = server, name
        self._seqs = itertools.count(1)
        self._waiting: dict[int, Operation[Answer]] = {}
        self._held: list[Reply] | None = None
        self.lost = False
        server.clients[name] = self

    def hold(self) -> None:
        self._held = []

    def release_one(self) -> None:
        if self._held:
            self._settle(self._held.pop(0))

    def release(self) -> None:
        held, self._held = self._held or [], None
        for reply in held:
            self._settle(reply)

    def disconnect(self) -> None:
        self.lost = True
        self._server.deliver(self._server.state.disconnect(self._name))

    def replied(self, reply: Reply) -> None:
        if self._held is not None:
            self._held.append(reply)
        elif not self.lost:
            self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        operation = self._waiting.pop(reply.seq, None)
        if operation is not None:
            operation.succeed((reply.status, reply.values))

    def _request(self, request: Request, fields: list[bytes], lease: bool = False) -> Operation[Answer]:
        operation: Operation[Answer] = Operation()
        if self.lost:
            operation.fail(StoreError(self.url, "lost"))
            return operation
        seq = next(self._seqs)
        self._waiting[seq] = operation
        self._server.deliver(self._server.state.handle(self._name, seq, request, int(lease), fields))
        return operation

    def _tell(self, request: Request, fields: list[bytes]) -> None:
        self._request(request, fields)

    def close(self) -> None:
        self.disconnect()


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-rendezvous")
    yield loop
    loop.stop()


@pytest.fixture
def server() -> Server:
    return Server()


class Member:
    """A process that wants to join."""

    def __init__(
        self,
        loop: ProgressThread,
        server: Server,
        rank: int,
        world_size: int = 2,
        *,
        name: str = "",
        backend: str = "tcp",
        min_generation: int = 1,
    ) -> None:
        name = name or f"member{rank}"
        self.store = Client(server, name)
        self.info = PeerInfo(
            id=name, host="127.0.0.1", port=1, pid=rank + 1, start_time=1, host_id="00", hostname="test"
        )
        invitation = Invitation(job="job", name="w", rank=rank, world_size=world_size, backend=backend, me=self.info)
        self.rendezvous = Rendezvous(loop, self.store, invitation, min_generation=min_generation)

    def meet(self) -> Operation[Meeting]:
        return drive(self.rendezvous.meet())


def test_members_meet_once_all_are_there(loop: ProgressThread, server: Server) -> None:
    members = [Member(loop, server, rank, 3) for rank in range(3)]
    meetings = [member.meet() for member in members[:2]]
    assert not any(meeting.done for meeting in meetings)
    meetings.append(members[2].meet())
    results = [meeting.result() for meeting in meetings]
    assert {result.generation for result in results} == {1}
    assert len({result.uid for result in results}) == 1
    assert all(result.members == [member.info for member in members] for result in results)


def test_the_next_meeting_is_another_generation_and_uid(loop: ProgressThread, server: Server) -> None:
    members = [Member(loop, server, rank) for rank in range(2)]
    uids = set()
    for generation in (1, 2, 3):
        meetings = [member.meet() for member in members]
        results = [meeting.result() for meeting in meetings]
        assert [result.generation for result in results] == [generation] * 2
        uids |= {result.uid for result in results}
        for member in members:
            member.rendezvous.withdraw()
    assert len(uids) == 3


def test_a_member_that_was_further_on_takes_the_others_along(loop: ProgressThread, server: Server) -> None:
    """The store is a new one, and one of them was in generation 6 before."""
    fresh, veteran = Member(loop, server, 0), Member(loop, server, 1, min_generation=7)
    meetings = [fresh.meet(), veteran.meet()]
    assert [meeting.result().generation for meeting in meetings] == [7, 7]


def test_a_record_vanishes_with_its_owner_and_a_replacement_takes_its_place(
    loop: ProgressThread, server: Server
) -> None:
    dying, survivor = Member(loop, server, 0), Member(loop, server, 1)
    dying.meet()
    dying.store.disconnect()
    meeting = survivor.meet()
    assert not meeting.done
    replacement = Member(loop, server, 0, name="replacement")
    replacing = replacement.meet()
    assert meeting.result().members == replacing.result().members == [replacement.info, survivor.info]


def test_a_rank_that_stays_taken_is_refused_with_the_name_of_its_owner(loop: ProgressThread, server: Server) -> None:
    owner, second = Member(loop, server, 0), Member(loop, server, 0, name="second")
    owner.meet()
    meeting = second.meet()
    assert wait_until(lambda: meeting.done, timeout_s=5)
    assert isinstance(meeting.error, JoinRefusedError)
    assert "rank 0 is taken by pid 1 on test" in str(meeting.error)
    assert f"{PREFIX}1/2/tcp/0" in server.list_keys(), "the owner keeps its place"


def test_a_rank_that_is_free_soon_is_not_refused(loop: ProgressThread, server: Server) -> None:
    owner, second = Member(loop, server, 0), Member(loop, server, 0, name="second")
    owner.meet()
    meeting = second.meet()
    owner.store.disconnect()
    assert wait_until(lambda: second.rendezvous.key is not None, timeout_s=5)
    assert not meeting.done


@pytest.mark.parametrize(("world_size", "backend"), [(3, "tcp"), (2, "gloo")])
def test_members_that_disagree_say_what_they_disagree_about(
    loop: ProgressThread, server: Server, world_size: int, backend: str
) -> None:
    Member(loop, server, 0).meet()
    meeting = Member(loop, server, 1, world_size, backend=backend).meet()
    assert isinstance(meeting.error, JoinMismatchError)
    assert "world_size=2, backend='tcp'" in str(meeting.error)
    assert f"world_size={world_size}, backend={backend!r}" in str(meeting.error)
    assert server.list_keys() == [f"{PREFIX}1/2/tcp/0", f"{PREFIX}generation"]
    assert drive(Member(loop, server, 1, name="right").rendezvous.meet()).result().generation == 1


def test_whoever_disagrees_about_the_size_completes_nothing_with_those_who_wait(
    loop: ProgressThread, server: Server
) -> None:
    waiting = [Member(loop, server, rank, 3).meet() for rank in range(2)]
    for rank in range(2):
        meeting = Member(loop, server, rank, 2, name=f"wrong{rank}").meet()
        assert isinstance(meeting.error, JoinMismatchError)
    assert not any(meeting.done for meeting in waiting)
    last = Member(loop, server, 2, 3).meet()
    assert [meeting.result().generation for meeting in (*waiting, last)] == [1, 1, 1]


def test_a_record_that_cannot_be_read_is_a_protocol_error(loop: ProgressThread) -> None:
    for record in (b"", b"no json", b"[]", b"{}", b'{"peer": 3}', b'{"peer": "{}", "nonce": 1}'):
        server = Server()
        Client(server, "stranger").set(f"{PREFIX}1/2/tcp/0", record)
        meeting = Member(loop, server, 1).meet()
        assert isinstance(meeting.error, ProtocolError)


def test_a_member_that_is_late_for_a_generation_tries_the_next(loop: ProgressThread, server: Server) -> None:
    waiting = Member(loop, server, 0)
    meeting = waiting.meet()
    Client(server, "others").set(f"{PREFIX}generation", b"2")
    assert not meeting.done
    assert server.list_keys() == [f"{PREFIX}2/2/tcp/0", f"{PREFIX}generation"]
    other = Member(loop, server, 1).meet()
    assert meeting.result().generation == other.result().generation == 2


def test_withdrawing_removes_the_record_and_a_lost_store_is_no_error(loop: ProgressThread, server: Server) -> None:
    member = Member(loop, server, 0)
    meeting = member.meet()
    meeting.cancel(StepsCancelled())
    member.rendezvous.withdraw()
    assert server.list_keys() == [f"{PREFIX}generation"]
    member.meet()
    member.store.disconnect()
    member.rendezvous.withdraw()


@pytest.mark.parametrize("num_answers", range(7))
def test_a_join_that_is_cancelled_while_its_record_is_on_the_way_leaves_none(
    loop: ProgressThread, server: Server, num_answers: int
) -> None:
    """The store may have put it there already, though the answer has not come yet."""
    member = Member(loop, server, 0, name=f"slow{num_answers}")
    member.store.hold()
    meeting = member.meet()
    for _ in range(num_answers):
        member.store.release_one()
    meeting.cancel(StepsCancelled())
    member.rendezvous.withdraw()
    member.store.release()
    assert [key for key in server.list_keys() if not key.endswith("generation")] == []


def test_the_ranks_that_are_missing_are_named(loop: ProgressThread, server: Server) -> None:
    member = Member(loop, server, 1, 4)
    member.meet()
    Member(loop, server, 3, 4).meet()
    assert drive(member.rendezvous.missing()).result() == [0, 2]
