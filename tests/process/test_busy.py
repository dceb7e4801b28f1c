"""Busy is not dead: blocked main threads, a held interpreter lock and an overloaded machine break nothing."""

from __future__ import annotations

import time

import pytest

from multiworld.testing import Crew, WorkerGroup

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

BACKENDS = ["tcp", "gloo"]
LEASE_S = 0.5


def run_beside(crew: Crew, victim: int, command: str, seconds: float) -> None:
    """Let one member misbehave for some leases, while another waits for it in a receive; then all must be in order."""
    others = [rank for rank in range(len(crew.members)) if rank != victim]
    receive = crew[others[0]].call("recv", world="w", src=victim).started()
    crew[victim].call(command, seconds=seconds).result(seconds + 20)
    crew[victim].do("send", world="w", dst=others[0], value=3.0)
    assert receive.result() == [3.0, 3.0]
    crew.check_works("w")
    assert not any(member.is_broken("w") for member in crew.members)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("command", ["block_main_thread", "hold_gil", "burn"])
def test_a_busy_member_loses_no_world(backend: str, command: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, lease_s=LEASE_S)
        crew.form("w", backend=backend)
        run_beside(crew, 1, command, 2.5)


def test_the_store_host_may_be_busy_too() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2, lease_s=LEASE_S)
        crew.form("w")
        run_beside(crew, 0, "hold_gil", 2.5)


def test_all_members_may_hold_their_interpreter_locks_at_once() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, lease_s=LEASE_S)
        crew.form("w")
        for call in [member.call("hold_gil", seconds=2.5) for member in crew.members]:
            call.result(20)
        crew.check_works("w")
        assert not any(member.is_broken("w") for member in crew.members)


def test_a_stopped_peer_is_still_found_while_another_is_busy() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, lease_s=LEASE_S)
        crew.form("w", [0, 1])
        crew.form("busy", [0, 2])
        busy = crew[2].call("hold_gil", seconds=3).started()
        crew[1].worker.stop()
        assert crew[0].await_broken("w")["error"] == "PeerStoppedError"
        busy.result()
        crew.check_works("busy", [0, 2])


@pytest.mark.timeout(120)
def test_eight_busy_processes_break_nothing() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 8, lease_s=1.0)
        crew.form("w")
        begin = time.monotonic()
        for call in [member.call("burn", seconds=6) for member in crew.members]:
            call.result(60)
        assert time.monotonic() - begin >= 6
        crew.check_works("w")
        assert not any(member.is_broken("w") for member in crew.members)
