"""Worlds of which some members share a host: memory between these, TCP to the others, and a refusal by shm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.testing import Crew, Host, Member, Network, WorkerGroup
from tests.bounds import CUT_S, KILL_S

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

LARGE = 1_000_000
KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    """Two hosts; the first has two members."""
    with Network(2) as network:
        first, second = network.hosts
        yield first, first, second


def shares_memory(member: Member) -> bool:
    return "memfd:multiworld" in Path(f"/proc/{member.worker.pid}/maps").read_text()


def play(crew: Crew, world: str, kind: str, num_rounds: int) -> None:
    calls = [member.call("play", world=world, kind=kind, num_rounds=num_rounds, numel=LARGE) for member in crew.members]
    assert [call.result() for call in calls] == [num_rounds] * len(calls)


def test_auto_uses_memory_on_one_host_and_tcp_between_hosts(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        crew.form("w", backend="auto")
        for kind in KINDS:
            play(crew, "w", kind, 2)
        assert [shares_memory(member) for member in crew.members] == [True, True, False]


def test_a_death_and_a_cut_break_a_mixed_world_everywhere(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        for world in ("dying", "cut"):
            crew.form(world, backend="auto")
            play(crew, world, "all_reduce", 2)
        crew.form("local", [0, 1], backend="auto")
        cut_at = hosts[2].cut()
        for member in crew.members[:2]:
            broken = member.await_broken("cut")
            assert broken["error"] == "PeerUnreachableError", broken["message"]
            assert broken.at - cut_at < CUT_S
        crew.check_works("local", [0, 1])
        killed_at = crew[1].worker.kill()
        broken = crew[0].await_broken("local")
        assert broken["error"] == "PeerDiedError"
        assert broken.at - killed_at < KILL_S


def test_shm_refuses_members_on_another_host_and_names_them(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        fields = {"world": "w", "world_size": 3, "store": crew.store, "backend": "shm"}
        joins = [member.call("join", rank=rank, timeout_s=5, **fields) for rank, member in enumerate(crew.members)]
        outcomes = [join.failure() for join in joins]
        assert [outcome.error for outcome in outcomes] == ["JoinRefusedError"] * 3
        assert "rank 2 cannot share memory" in outcomes[0].message
        assert "ranks 0, 1 cannot share memory" in outcomes[2].message
        assert all("use backend 'auto' or 'tcp'" in outcome.message for outcome in outcomes)
        crew.form("w", backend="auto")
        crew.check_works("w")
