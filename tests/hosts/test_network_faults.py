"""Members on hosts of their own: cut, one-way cut, loss, and processes that are busy, stopped or killed over there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiworld.testing import Crew, Host, Network, WorkerGroup, wait_until
from tests.bounds import CUT_S, KILL_S, STOP_S

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

BACKENDS = ["tcp", "gloo"]
LEASE_S = 0.6
WAIT_S = 10.0


def sentinels_of(pid: int) -> set[int]:
    """The processes that answer for this one to those on other hosts."""
    return {
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"sentinel_program.py\0{pid}\0" in _text(path)
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended
        return ""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    with Network(3) as network:
        yield network.hosts


def assert_both_sides_know(crew: Crew, world: str, cut_at: float) -> None:
    for member in crew.members[:2]:
        broken = member.await_broken(world)
        assert broken["error"] == "PeerUnreachableError", broken["message"]
        assert broken.at - cut_at < CUT_S, f"known after {broken.at - cut_at:.2f} s"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("silently", [False, True])
def test_a_cut_network_is_known_on_both_sides_and_to_pending_operations(
    hosts: tuple[Host, ...], backend: str, silently: bool
) -> None:
    """Silently: the host keeps its carrier, and packets vanish on the way."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts, store_host=2)
        crew.form("cut", [0, 1], backend=backend)
        crew.form("healthy", [0, 2], backend=backend)
        pending = [
            crew[0].call("recv", world="cut", src=1).started(),
            crew[1].call("recv", world="cut", src=0).started(),
        ]
        cut_at = hosts[1].drop(to=hosts[0], direction="both") if silently else hosts[1].cut()
        assert_both_sides_know(crew, "cut", cut_at)
        for call in pending:
            assert call.failure().error == "PeerUnreachableError"
        crew.check_works("healthy", [0, 2])


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_one_way_cut_is_known_on_both_sides(hosts: tuple[Host, ...], direction: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts)
        crew.form("cut")
        cut_at = hosts[0].drop(to=hosts[1], direction="in" if direction == "in" else "out")
        assert_both_sides_know(crew, "cut", cut_at)


def test_a_world_is_formed_again_when_the_network_is_back(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts)
        crew.form("w")
        hosts[1].cut()
        for member in crew.members:
            assert member.await_broken("w")["error"] == "PeerUnreachableError"
        rejoins = [member.call("rejoin", world="w", timeout_s=20) for member in crew.members]
        hosts[1].restore()
        assert [rejoin.result(25)["generation"] for rejoin in rejoins] == [2, 2]
        crew.check_works("w")


def test_a_join_across_a_cut_network_ends_in_time_and_succeeds_when_it_is_back(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts)
        fields = {"world": "w", "world_size": 2, "store": crew.store, "backend": "tcp"}
        hosts[1].cut()
        for join in [member.call("join", rank=rank, timeout_s=2, **fields) for rank, member in enumerate(crew.members)]:
            outcome = join.failure()
            assert "JoinError" in outcome.bases, outcome.message
            assert outcome.took_s < 2.5
        hosts[1].restore()
        crew.form("w")
        crew.check_works("w")


def test_a_third_member_learns_of_a_cut_between_two_others(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        crew.form("w")
        cut_at = hosts[0].drop(to=hosts[1], direction="both")
        errors = []
        for member in crew.members:
            broken = member.await_broken("w")
            assert broken.at - cut_at < CUT_S
            errors.append(broken["error"])
        # The first of the two to notice tells the third, which fences the other.
        assert errors[2] == "PeerUnreachableError"
        assert set(errors[:2]) <= {"PeerUnreachableError", "StaleGenerationError"}
        assert "PeerUnreachableError" in errors[:2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_five_percent_loss_breaks_nothing(hosts: tuple[Host, ...], backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        crew.form("w", backend=backend)
        for host in hosts:
            host.lose(5)
        plays = [member.call("play", world="w", kind="all_reduce", num_rounds=40) for member in crew.members]
        assert [play.result(50) for play in plays] == [40, 40, 40]
        assert not any(member.is_broken("w") for member in crew.members)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_member_is_known_across_hosts(hosts: tuple[Host, ...], backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, hosts=hosts)
        crew.form("w", backend=backend)
        pending = [member.call("recv", world="w", src=0).started() for member in crew.survivors(0)]
        killed_at = crew[0].worker.kill()
        for member, call in zip(crew.survivors(0), pending, strict=True):
            broken = member.await_broken("w")
            assert broken["error"] == "PeerDiedError", broken["message"]
            assert broken.at - killed_at < KILL_S
            assert call.failure().error == "PeerDiedError"


def test_a_stopped_member_is_known_across_hosts_and_called_stopped(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts, lease_s=LEASE_S)
        crew.form("w")
        stopped_at = crew[1].worker.stop()
        broken = crew[0].await_broken("w")
        assert broken["error"] == "PeerStoppedError", broken["message"]
        assert broken.at - stopped_at < LEASE_S + STOP_S


@pytest.mark.parametrize("command", ["hold_gil", "block_main_thread", "burn"])
def test_a_busy_member_on_another_host_loses_no_world(hosts: tuple[Host, ...], command: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts, lease_s=LEASE_S)
        crew.form("w")
        receive = crew[0].call("recv", world="w", src=1).started()
        crew[1].call(command, seconds=4).result(20)
        crew[1].do("send", world="w", dst=0, value=3.0)
        assert receive.result() == [3.0, 3.0]
        assert not any(member.is_broken("w") for member in crew.members)


def test_a_busy_member_whose_sentinel_was_killed_before_loses_no_world(hosts: tuple[Host, ...]) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, hosts=hosts, lease_s=LEASE_S)
        crew.form("w")
        (killed,) = sentinels_of(crew[1].worker.pid)
        os.kill(killed, signal.SIGKILL)
        assert wait_until(lambda: sentinels_of(crew[1].worker.pid) - {killed} != set(), WAIT_S)
        crew[1].call("hold_gil", seconds=3).result(20)
        crew.check_works("w")
