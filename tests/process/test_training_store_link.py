"""The store of a training is lost and found again: in the background, and it is told who trains."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

import multiworld as mw
from multiworld.errors import StoreError
from multiworld.store.tcp import TCPStore
from multiworld.testing import wait_until
from multiworld.training.recovery.agreement import Rules
from multiworld.training.recovery.membership import Membership, MembershipOptions, new_member
from multiworld.training.recovery.records import Announcement, Generation, LostMember
from multiworld.training.recovery.store_link import StoreLink
from multiworld.wire.messages import decode
from multiworld.wire.progress.waiting import wait_blocking

from .one_process import in_thread

TIMEOUT_S = 10.0


@pytest.fixture
def manager() -> Iterator[mw.WorldManager]:
    manager = mw.WorldManager()
    yield manager
    manager.close(timeout_s=0.2)


class Server:
    """Serves a store, and an empty one at the same address after it was lost."""

    def __init__(self) -> None:
        self._manager = mw.WorldManager()
        self.url = self._manager.serve_store("tcp://127.0.0.1:0")

    def lose(self) -> None:
        self._manager.close(timeout_s=0.2)

    def come_back(self) -> None:
        self._manager = mw.WorldManager()
        self._manager.serve_store(self.url)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.lose()


def test_a_lost_store_is_found_again_without_anybody_asking(manager: mw.WorldManager, server: Server) -> None:
    introduced: list[TCPStore] = []
    twice = threading.Event()

    def introduce(store: TCPStore) -> None:
        introduced.append(store)
        if len(introduced) == 2:
            twice.set()

    link = StoreLink(manager, server.url, introduce)
    first = link.store(TIMEOUT_S)
    assert introduced == [first]
    server.lose()
    assert wait_until(lambda: link.store_nowait() is None, TIMEOUT_S)
    with pytest.raises(StoreError):
        link.store(0.2)
    server.come_back()
    assert twice.wait(TIMEOUT_S)
    assert link.store(TIMEOUT_S) is introduced[1]
    link.close()


def test_a_store_that_is_lost_while_it_is_introduced_is_not_used(manager: mw.WorldManager, server: Server) -> None:
    tries = iter([StoreError(server.url, "lost again"), None])

    def introduce(store: TCPStore) -> None:
        if (error := next(tries)) is not None:
            raise error

    link = StoreLink(manager, server.url, introduce)
    assert link.store(TIMEOUT_S).lost_reason is None
    link.close()


def test_closing_ends_the_search(manager: mw.WorldManager, server: Server) -> None:
    server.lose()
    link = StoreLink(manager, server.url, lambda store: None)
    waiting = in_thread(link.store, 60.0)
    with pytest.raises(StoreError):
        link.store(0.1)
    link.close()
    with pytest.raises(StoreError):
        waiting.result()
    server.come_back()


def new_membership(
    manager: mw.WorldManager, url: str, rank: int, *, gather_s: float = 0.2, lease_s: float = 1.0
) -> Membership:
    options = MembershipOptions(
        name="t", rules=Rules(expected=2, gather_s=gather_s), lease_s=lease_s, join_timeout_s=TIMEOUT_S, store=url
    )
    return Membership(manager, new_member(rank, "here"), options)


def test_a_new_store_is_told_of_the_generation_that_stands_and_newcomers_wait_for_its_members(
    manager: mw.WorldManager, server: Server
) -> None:
    trains = new_membership(manager, server.url, 0)
    generation = trains.agree(lambda: Announcement(member=trains.member, has_state=False))
    assert (generation.number, generation.is_restart) == (1, True)
    trains.settled()
    before = trains.store
    server.lose()
    assert wait_until(lambda: before.lost_reason is not None, TIMEOUT_S)
    server.come_back()
    store = trains.store
    record = wait_blocking(store.get(trains.prefix + "generation"))
    assert record is not None
    restored = decode(Generation, record)
    assert (restored.number, restored.members, restored.was_restored) == (1, generation.members, True)

    comes = new_membership(manager, server.url, 1)
    agreeing = in_thread(comes.agree, lambda: Announcement(member=comes.member, has_state=False))

    def hears_of_it() -> bool:
        trains.look_for_newcomers(every_s=0.0)
        return trains.newcomers == (comes.member.id,)

    assert wait_until(hears_of_it, TIMEOUT_S)
    second = trains.agree(lambda: Announcement(member=trains.member))
    assert agreeing.result(TIMEOUT_S) == second
    assert [each.rank for each in second.members] == [0, 1]
    assert second.stateless == (comes.member.id,)
    for each in (trains, comes):
        each.close()


def test_one_that_is_found_lost_while_the_others_agree_is_not_waited_for(
    manager: mw.WorldManager, server: Server
) -> None:
    """Its presence stands in the store until the store finds it lost, too, and here its silence is none for long."""
    one, other = (
        new_membership(manager, server.url, rank, gather_s=TIMEOUT_S, lease_s=4 * TIMEOUT_S) for rank in (0, 1)
    )
    first = in_thread(one.agree, lambda: Announcement(member=one.member, has_state=False))
    generation = other.agree(lambda: Announcement(member=other.member, has_state=False))
    assert first.result(TIMEOUT_S) == generation
    assert len(generation.members) == 2
    gone = LostMember(id=other.member.id, cause="PeerUnreachableError")
    looks = itertools.count()
    second = one.agree(lambda: Announcement(member=one.member), lambda: () if next(looks) < 3 else (gone,))
    assert second.members == (one.member,)
    for each in (one, other):
        each.close()


def test_members_beat_while_the_store_is_looked_for(manager: mw.WorldManager, server: Server) -> None:
    """A world breaks on the progress thread just when the store is lost: nobody waits for that thread."""
    member = new_membership(manager, server.url, 0)
    member.agree(lambda: Announcement(member=member.member, has_state=False))
    member.settled()
    for _ in range(5):
        server.lose()
        server.come_back()
        done = threading.Event()

        def break_world(done: threading.Event = done) -> None:
            member.beat()
            done.set()

        manager._loop.call_soon(break_world)
        assert done.wait(TIMEOUT_S)
        assert member.store.lost_reason is None
        member.settled()
    member.close()
