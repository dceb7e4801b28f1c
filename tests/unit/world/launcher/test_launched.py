"""What a worker process knows of its launcher, and what joins make of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import multiworld as mw
from multiworld import elastic
from multiworld.errors import (
    JoinError,
    JoinMismatchError,
    JoinRefusedError,
    JoinTimeoutError,
    MessageError,
    ProtocolError,
)
from multiworld.testing import scaled
from multiworld.wire.connection.frames import Header, Kind, pack_frame
from multiworld.wire.endpoints.dialer import dial
from multiworld.wire.endpoints.handshake import DialerHello
from multiworld.wire.messages import Json, from_json, to_json
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.world.launcher.launched import Launch, Place, job_name, launched
from multiworld.world.launcher.news import WORKER_NEWS, Formed
from multiworld.world.launcher.process_link import close_links
from tests.unit.elastic.launching_agent import TOKEN, Agent, agent_of, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")

SMALL_S = 0.2  # of joins that are to fail


@pytest.fixture
def agent() -> Iterator[Agent]:
    with agent_of() as agent:
        yield agent


# ---- the variables


def test_a_launch_is_read_as_it_was_written() -> None:
    launch = Launch(agent="multiworld-agent-1", worker="w3", job="train", generation=4, token="t")
    assert launched(launch.to_environment()) == launch


def test_a_process_without_an_agent_is_not_launched() -> None:
    assert launched({"MULTIWORLD_TOKEN": "t", "MULTIWORLD_JOB": "train"}) is None


def test_any_run_id_makes_a_job_name_and_different_ones_different_names() -> None:
    ids = ["train", "a/b", "a b", "", "x" * 300, "x" * 299 + "y", "größe"]
    names = [job_name(run_id) for run_id in ids]
    assert all(0 < len(name) <= 200 and "/" not in name for name in names)
    assert len(set(names)) == len(ids)
    assert names[0] == "train"
    assert [job_name(name) for name in names] == names


@pytest.mark.parametrize("wrong", [{"rank": 2}, {"rank": -1}, {"generation": -1}, {"store": None}, {"rank": True}])
def test_a_place_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    right = {"job": "j", "store": "", "rank": 0, "world_size": 2, "local_rank": 0, "generation": 1, "restarts": 0}
    assert to_json(from_json(Place, right)) == right
    with pytest.raises(MessageError):
        from_json(Place, {**right, **wrong})


# ---- outside of the launcher


def test_outside_of_the_launcher_a_join_says_what_it_misses() -> None:
    with mw.WorldManager() as manager:
        assert manager.job == "default"
        with pytest.raises(TypeError, match="needs rank and world_size and store"):
            manager.blocking.join("w")
        with pytest.raises(TypeError, match="needs store"):
            manager.blocking.join("w", 0, 1)


def test_outside_of_the_launcher_programs_may_call_what_it_offers() -> None:
    heard: list[Place] = []
    elastic.progress()
    assert elastic.place() is None
    with elastic.on_membership_change(heard.append):
        assert asyncio.run(_list(elastic.membership())) == []
    assert heard == []


async def _list(places: elastic.Memberships) -> list[Place]:
    return [place async for place in places]


# ---- joins


def form(*joins: Any) -> list[mw.World]:
    async def gather() -> list[mw.World]:
        return list(await asyncio.wait_for(asyncio.gather(*joins), scaled(10)))

    return asyncio.run(gather())


def test_rank_size_store_and_job_come_from_the_launcher(agent: Agent) -> None:
    with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        agent.place("b", 1, 2, url)
        worlds = form(first.join("w"), second.join("w"))
        assert [(world.rank, world.world_size) for world in worlds] == [(0, 2), (1, 2)]
        assert first.job == second.job == "job"


def test_what_is_given_wins_each_by_itself(agent: Agent) -> None:
    with agent.manager("a", job="mine") as first, agent.manager("b", job="mine") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 5, "tcp://127.0.0.1:1")
        agent.place("b", 1, 5, url)
        worlds = form(first.join("w", 1, 2, url), second.join("w", rank=0, world_size=2))
        assert [(world.rank, world.world_size) for world in worlds] == [(1, 2), (0, 2)]
        worlds = form(first.join("v", world_size=2, store=url), second.join("v", world_size=2))
        assert [(world.rank, world.world_size) for world in worlds] == [(0, 2), (1, 2)]


def test_blocking_joins_have_the_same_defaults(agent: Agent) -> None:
    with agent.manager("a") as manager:
        agent.place("a", 0, 1, manager.serve_store("tcp://127.0.0.1:0"))
        assert manager.blocking.join("w").world_size == 1


def test_a_rank_that_does_not_fit_the_launchers_size_is_refused(agent: Agent) -> None:
    with agent.manager("a") as manager:
        agent.place("a", 0, 2, "tcp://127.0.0.1:1")
        with pytest.raises(JoinRefusedError, match="rank 2 is out of range for world_size=2"):
            manager.blocking.join("w", rank=2)


def test_only_who_names_a_store_may_serve_it(agent: Agent) -> None:
    with agent.manager("a") as manager, pytest.raises(ValueError, match="needs store="):
        manager.blocking.join("w", serve_store=True)


async def test_a_join_waits_for_a_place_and_for_a_store(agent: Agent) -> None:
    async with agent.manager("a") as manager:
        joining = asyncio.create_task(manager.join("w"))
        await connected(agent, "a")
        agent.place("a", 0, 1)
        agent.place("a", 0, 1, manager.serve_store("tcp://127.0.0.1:0"))
        assert (await joining).rank == 0


async def connected(agent: Agent, *workers: str) -> None:
    await asyncio.to_thread(eventually, lambda: set(workers) <= set(agent.hellos))


def test_a_join_whose_place_never_comes_says_so(agent: Agent) -> None:
    with agent.manager("a") as manager:
        with pytest.raises(JoinTimeoutError, match="no place in the job"):
            manager.blocking.join("w", timeout_s=SMALL_S)
        agent.place("a", 0, 1)
        with pytest.raises(JoinTimeoutError, match="no store"):
            manager.blocking.join("w", timeout_s=SMALL_S)


def test_a_join_that_times_out_names_the_membership_it_waited_in(agent: Agent) -> None:
    with agent.manager("a") as manager:
        agent.place("a", 0, 2, manager.serve_store("tcp://127.0.0.1:0"), generation=7)
        with pytest.raises(JoinTimeoutError, match="rank 1 of 2 did not come in generation 7 of the job"):
            manager.blocking.join("w", timeout_s=SMALL_S)


async def test_a_join_goes_on_at_another_store_when_the_host_of_the_first_is_gone(agent: Agent) -> None:
    host = mw.WorldManager(token=TOKEN)
    async with agent.manager("a") as first, agent.manager("b") as second:
        url = host.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        joining = asyncio.create_task(first.join("w"))
        await waits_at(host, url, "job/w/")
        await host.aclose()
        url = second.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        agent.place("b", 1, 2, url)
        worlds = await asyncio.wait_for(asyncio.gather(joining, second.join("w")), scaled(10))
        assert [world.state for world in worlds] == [mw.WorldState.ACTIVE] * 2


async def waits_at(host: mw.WorldManager, url: str, prefix: str, num_members: int = 1) -> None:
    """Wait until so many members have put their records into a store."""
    state = host._stores._servers[url]._state

    def is_there() -> bool:
        records = [key for key in list(state._values) if key.startswith(prefix.encode()) and key.count(b"/") > 3]
        return len(records) >= num_members

    await asyncio.to_thread(eventually, is_there)


async def test_a_join_starts_again_in_another_membership_and_meets_only_its_members(agent: Agent) -> None:
    """The workers hear of it one by one; nobody refuses, or meets, who is still in the old one."""
    async with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 2, 3, url, generation=4)
        agent.place("b", 1, 3, url, generation=4)
        joins = [asyncio.create_task(manager.join("w")) for manager in (first, second)]
        await waits_at(first, url, "job/w/1/m4/3/", 2)
        agent.place("a", 0, 2, url, generation=5)
        await waits_at(first, url, "job/w/1/m5/2/", 1)
        assert not any(join.done() for join in joins)
        agent.place("b", 1, 2, url, generation=5)
        worlds = await asyncio.wait_for(asyncio.gather(*joins), scaled(10))
        assert [(world.rank, world.world_size) for world in worlds] == [(0, 2), (1, 2)]


async def test_a_place_that_says_the_same_disturbs_no_join(agent: Agent) -> None:
    async with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        joining = asyncio.create_task(first.join("w"))
        await waits_at(first, url, "job/w/1/m1/")
        before = dict(first._stores._servers[url]._state._values)
        agent.place("a", 0, 2, url, restarts=3)
        agent.place("b", 1, 2, url)
        with agent.as_worker("a"):
            await asyncio.to_thread(eventually, lambda: (elastic.place() or place_of(0)).restarts == 3)
        assert dict(first._stores._servers[url]._state._values) == before
        await asyncio.wait_for(asyncio.gather(joining, second.join("w")), scaled(10))


def place_of(rank: int, **fields: Any) -> Place:
    values = {"job": "job", "store": "", "world_size": 8, "local_rank": 0, "generation": 1, **fields}
    return Place(rank=rank, **values)


async def test_a_world_keeps_its_rank_over_a_rejoin_unless_the_launcher_gives_another(agent: Agent) -> None:
    async with agent.manager("a") as first, agent.manager("b") as second, agent.manager("c") as third:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        agent.place("b", 1, 2, url)
        old = await asyncio.wait_for(asyncio.gather(first.join("w"), second.join("w")), scaled(10))
        for rank, worker in enumerate("cab"):
            agent.place(worker, rank, 3, url, generation=2)
        joins = (third.join("w"), first.rejoin("w"), second.rejoin("w"))
        new = await asyncio.wait_for(asyncio.gather(*joins), scaled(10))
        assert [(world.rank, world.world_size) for world in new] == [(0, 3), (1, 3), (2, 3)]
        assert len({world.generation for world in new}) == 1
        assert new[0].generation > old[0].generation


@pytest.mark.parametrize("leaves", [True, False])
async def test_generations_grow_on_a_store_that_knows_nothing_also_for_who_had_left(agent: Agent, leaves: bool) -> None:
    host = mw.WorldManager(token=TOKEN)
    async with agent.manager("a") as first, agent.manager("b") as second:
        for number in range(3):
            url = host.serve_store("tcp://127.0.0.1:0")
            agent.place("a", 0, 2, url, generation=number)
            agent.place("b", 1, 2, url, generation=number)
            worlds = await asyncio.wait_for(asyncio.gather(first.join("w"), second.join("w")), scaled(10))
            assert [world.generation for world in worlds] == [number + 1] * 2
            if leaves:
                await asyncio.gather(*(world.leave() for world in worlds))
            else:
                worlds[0].abort()
                await worlds[1].wait_broken()
            await host.aclose()
            host = mw.WorldManager(token=TOKEN)
    await host.aclose()


async def test_members_that_leave_their_rank_to_the_launcher_and_others_do_not_wait_for_each_other(
    agent: Agent,
) -> None:
    async with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        joining = asyncio.create_task(first.join("w"))
        await waits_at(first, url, "job/w/1/m1/")
        with pytest.raises(JoinMismatchError, match="takes rank or world_size from the launcher"):
            await second.join("w", 1, 2, url)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining


async def test_a_cancelled_join_leaves_nothing_at_the_store_and_can_be_repeated(agent: Agent) -> None:
    async with agent.manager("a") as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        for _ in range(3):
            joining = asyncio.create_task(manager.join("w"))
            await waits_at(manager, url, "job/w/1/m1/")
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
        agent.place("a", 0, 1, url, generation=2)
        assert (await manager.join("w")).world_size == 1


# ---- an agent that is gone


async def test_joins_fail_at_once_when_the_agent_dies_and_worlds_stand(agent: Agent) -> None:
    async with agent.manager("a") as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        world = await manager.join("w", 0, 1, url)
        agent.place("a", 0, 2, url)
        joining = asyncio.create_task(manager.join("v"))
        await waits_at(manager, url, "job/v/")
        agent.close()
        with pytest.raises(JoinError, match="agent that launched this process is gone"):
            await asyncio.wait_for(joining, scaled(5))
        with pytest.raises(JoinError, match="agent that launched this process is gone"):
            await manager.join("v")
        assert world.state is mw.WorldState.ACTIVE
        assert (await manager.join("v", 0, 1, url)).state is mw.WorldState.ACTIVE


def test_a_manager_whose_agent_does_not_exist_works_with_what_it_is_given() -> None:
    agent = Agent()
    agent.close()
    with agent.manager("a") as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        assert manager.blocking.join("w", 0, 1, url).world_size == 1
        with pytest.raises(JoinError, match="is gone"):
            manager.blocking.join("v")


def test_a_wrong_token_is_named(agent: Agent) -> None:
    with agent.manager("a", token=TOKEN) as manager, agent.as_worker("b", MULTIWORLD_TOKEN="wrong"):
        url = manager.serve_store("tcp://127.0.0.1:0")
        with mw.WorldManager(token=TOKEN) as stranger:
            assert stranger.blocking.join("w", 0, 1, url).world_size == 1
            with pytest.raises(JoinError, match="tokens differ"):
                stranger.blocking.join("v")


# ---- what the agent hears


def test_the_agent_hears_of_each_world_and_how_it_ended(agent: Agent) -> None:
    with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        agent.place("b", 1, 2, url)
        worlds = form(first.join("left"), second.join("left"))
        world = {"job": "job", "name": "left", "generation": 1}
        assert agent.heard("b", "formed") == {"news": "formed", **world, "rank": 1, "world_size": 2}
        worlds[1].blocking.leave()
        assert agent.heard("b", "left") == {"news": "left", **world}
        broken = agent.heard("a", "broken")
        assert (broken["name"], broken["rank"], broken["cause"]) == ("left", 1, "PeerLeftError")
        worlds = form(first.join("aborted"), second.join("aborted"))
        agent.news.clear()
        worlds[0].abort()
        assert agent.heard("a", "left")["name"] == "aborted"
        assert agent.heard("b", "broken")["cause"] == "WorldBrokenError"
        worlds[1].blocking.leave()
        assert agent.heard("b", "left")["name"] == "aborted"


def test_a_world_that_is_formed_again_is_not_reported_as_left(agent: Agent) -> None:
    with agent.manager("a") as first, agent.manager("b") as second:
        url = first.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 2, url)
        agent.place("b", 1, 2, url)
        form(first.join("w"), second.join("w"))
        form(first.rejoin("w"), second.rejoin("w"))
        eventually(lambda: len([news for who, news in agent.news if who == "a"]) == 3)
        said = [(news["news"], news["generation"]) for who, news in agent.news if who == "a"]
        assert said == [("formed", 1), ("broken", 1), ("formed", 2)]


def test_the_agent_hears_of_a_worker_once_and_of_its_end_once(agent: Agent) -> None:
    first, second = agent.manager("a"), agent.manager("a")
    eventually(lambda: agent.hellos == ["a"])
    first.close()
    assert agent.gone == []
    second.close()
    eventually(lambda: agent.gone == ["a"])
    assert agent.hellos == ["a"]


def test_managers_of_a_process_share_one_connection(agent: Agent) -> None:
    with agent.manager("a") as first, agent.manager("a") as second:
        assert first._launcher is second._launcher
        eventually(lambda: len(agent.on_loop(lambda: agent.port.pids("a"))) == 1)


def test_a_worker_that_was_forgotten_is_not_heard_any_more(agent: Agent) -> None:
    with agent.manager("a") as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        agent.place("a", 0, 1, url)
        eventually(lambda: agent.hellos == ["a"])
        agent.on_loop(lambda: agent.port.forget("a"))
        eventually(lambda: manager._launcher is not None and manager._launcher.failure is not None)
        with pytest.raises(JoinError, match="is gone"):
            manager.blocking.join("w")
    assert agent.gone == []


NEWS = {"news": "formed", "job": "j", "name": "w", "generation": 1, "rank": 0, "world_size": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"news": "nonsense"},
        {"news": None},
        {"news": ["formed"]},
        {"name": 3},
        {"name": "w" * 300},
        {"rank": 10**30},
        {"rank": True},
        {"generation": None},
        {"world_size": 1.5},
    ],
)
def test_news_that_no_worker_tells_is_refused(changes: dict[str, Any]) -> None:
    news = WORKER_NEWS.from_json({**NEWS, "more": 1})
    assert news == Formed(job="j", name="w", generation=1, rank=0, world_size=2)
    assert WORKER_NEWS.to_json(news) == NEWS
    with pytest.raises(ProtocolError):
        WORKER_NEWS.from_json({**NEWS, **changes})


@dataclass(frozen=True, kw_only=True)
class AnyHello(DialerHello):
    """What a worker does not say."""

    worker: Json


class Stranger:
    """A worker's end that says what it likes."""

    def __init__(self) -> None:
        self.lost_reasons: list[str] = []

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        return None

    def end(self, header: Header, meta: bytes) -> None: ...

    def lost(self, reason: str) -> None:
        self.lost_reasons.append(reason)


@pytest.mark.parametrize(
    "frame",
    [
        pack_frame(Kind.WORKER_NEWS, b"{"),
        pack_frame(Kind.WORKER_NEWS, b"[]"),
        pack_frame(Kind.WORKER_NEWS, b"[" * 10000),
        pack_frame(Kind.WORKER_NEWS, b" " * 20000),
        pack_frame(Kind.WORKER_NEWS, b'{"news":"formed"}'),
        pack_frame(Kind.MESSAGE),
        b"GET / HTTP/1.1\r\n\r\n".ljust(64),
    ],
)
def test_who_talks_garbage_is_dropped_and_others_are_served(agent: Agent, frame: bytes) -> None:
    stranger = Stranger()
    hello = AnyHello(purpose="worker", worker="x")
    dialing = dial(agent.loop, "\0" + agent.port.address, 0, hello, TOKEN.encode(), stranger, timeout_s=5)
    wait_blocking(dialing).send(frame)
    eventually(lambda: agent.gone == ["x"])
    eventually(lambda: bool(stranger.lost_reasons))
    assert not agent.news
    with agent.manager("a") as manager:
        agent.place("a", 0, 1, manager.serve_store("tcp://127.0.0.1:0"))
        assert manager.blocking.join("w").world_size == 1


@pytest.mark.parametrize("worker", [None, "", 3, "w" * 300])
def test_a_hello_without_a_workers_name_is_refused(agent: Agent, worker: Any) -> None:
    hello = AnyHello(purpose="worker", worker=worker)
    dialing = dial(agent.loop, "\0" + agent.port.address, 0, hello, TOKEN.encode(), Stranger(), timeout_s=5)
    with pytest.raises(ProtocolError, match="no worker's hello"):
        wait_blocking(dialing)
    assert not agent.hellos


# ---- what programs ask


def test_the_place_is_known_at_the_first_call(agent: Agent) -> None:
    with agent.as_worker("a"):
        place = agent.place("a", 3, 8, generation=2)
        assert elastic.place() == place


def test_there_is_no_place_before_the_launcher_gives_one(agent: Agent) -> None:
    with agent.as_worker("a"):
        assert elastic.place() is None


def test_programs_hear_of_each_change_of_the_membership_and_of_nothing_else(agent: Agent) -> None:
    heard: list[Place] = []
    ended = threading.Event()
    with agent.as_worker("a"):
        agent.place("a", 1, 2)
        elastic.place()
        with elastic.on_membership_change(heard.append):
            agent.place("a", 1, 2, "tcp://127.0.0.1:1")
            agent.place("a", 1, 2, restarts=1)
            second = agent.place("a", 1, 3, generation=2)
            third = agent.place("a", 0, 3, generation=3)
            eventually(lambda: len(heard) == 2)
        with elastic.on_membership_change(lambda _: ended.set()):
            agent.place("a", 0, 4, generation=4)
            assert ended.wait(scaled(5))
    assert heard == [second, third]


def test_a_callback_that_raises_harms_nobody(agent: Agent) -> None:
    heard: list[Place] = []

    def fail(place: Place) -> None:
        raise ValueError(place)

    with agent.as_worker("a"):
        agent.place("a", 1, 2)
        elastic.place()
        with elastic.on_membership_change(fail), elastic.on_membership_change(heard.append):
            agent.place("a", 1, 3)
            agent.place("a", 1, 4)
            eventually(lambda: len(heard) == 2)


async def test_memberships_can_be_iterated_from_the_present_one_to_the_agents_end(agent: Agent) -> None:
    with agent.as_worker("a"):
        first = agent.place("a", 0, 1)
        places = elastic.membership()
    assert await anext(places) == first
    second = agent.place("a", 0, 2, generation=2)
    assert await anext(places) == second
    agent.close()
    assert await _list(places) == []


async def test_an_iteration_that_is_closed_hears_no_more(agent: Agent) -> None:
    with agent.as_worker("a"):
        places = elastic.membership()
    await places.aclose()
    agent.place("a", 0, 1)
    assert await _list(places) == []


def test_progress_is_passed_on_but_not_every_time(agent: Agent) -> None:
    with agent.as_worker("a"):
        for _ in range(1000):
            elastic.progress()
        agent.heard("a", "progress")
        assert len(agent.news) < 10


def test_the_link_of_a_process_goes_with_its_last_user(agent: Agent) -> None:
    with agent.as_worker("a"):
        manager = mw.WorldManager()
        elastic.progress()
        manager.close()
        agent.heard("a", "progress")
        close_links()
        eventually(lambda: agent.gone == ["a"])
