"""A member is killed: every survivor knows at once, whatever it is doing, and nothing else is harmed."""

from __future__ import annotations

import signal

import pytest

from multiworld.testing import Call, Crew, Member, WorkerGroup
from tests.bounds import KILL_S, PENDING_S

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

BACKENDS = ["shm", "tcp", "gloo"]


def assert_pending_failed_in_time(call: Call, member: Member, world: str, killed_at: float, victim: int) -> None:
    broken = member.await_broken(world)
    assert broken["error"] == "PeerDiedError", broken["message"]
    assert broken["fields"]["rank"] == victim
    assert broken.at - killed_at < KILL_S, f"known after {broken.at - killed_at:.3f} s"
    outcome = call.failure()
    assert outcome.error == "PeerDiedError", outcome.message
    assert outcome.at - broken.at < PENDING_S, f"pending operation raised {outcome.at - broken.at:.3f} s later"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_every_survivor_knows_whether_idle_or_inside_an_operation(backend: str, victim: int) -> None:
    """Rank 0 hosts the store, so that its death is covered too."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        for world in ("idle", "receiving", "reducing"):
            crew.form(world, backend=backend)
        survivors = crew.survivors(victim)
        receives = [member.call("recv", world="receiving", src=victim).started() for member in survivors]
        reduces = [member.call("collective", world="reducing", kind="all_reduce").started() for member in survivors]
        killed_at = crew[victim].worker.kill()
        for member, receive, reduce in zip(survivors, receives, reduces, strict=True):
            assert_pending_failed_in_time(receive, member, "receiving", killed_at, victim)
            assert_pending_failed_in_time(reduce, member, "reducing", killed_at, victim)
            broken = member.await_broken("idle")
            assert broken["error"] == "PeerDiedError"
            assert broken.at - killed_at < KILL_S
            assert member.call("recv", world="idle", src=victim).failure().error == "PeerDiedError"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_with_a_rank_that_lives_fails_as_well_as_the_world_is_revoked(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("w", backend=backend)
        receive = crew[0].call("recv", world="w", src=1).started()
        killed_at = crew[2].worker.kill()
        assert_pending_failed_in_time(receive, crew[0], "w", killed_at, victim=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_worlds_of_the_survivors_go_on(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("all", backend=backend)
        crew.form("healthy", [0, 1], backend=backend)
        plays = [crew[rank].call("play", world="healthy", kind="all_reduce", num_rounds=200) for rank in (0, 1)]
        for rank in (0, 1):
            crew[rank].worker.await_event("playing")
        crew[2].worker.kill()
        for member in crew.survivors(2):
            member.await_broken("all")
        assert [play.result() for play in plays] == [200, 200]
        crew.check_works("healthy", [0, 1])
        assert not crew[0].is_broken("healthy")
        assert not crew[1].is_broken("healthy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replacement_joins_the_next_generation_while_the_survivors_keep_running(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("w", backend=backend)
        for _ in range(2):
            newcomer = crew.hire(1)
            crew.await_ready([newcomer])
            crew[1].worker.kill()
            for member in crew.survivors(1):
                member.await_broken("w")
            crew.reform("w", 1, newcomer, backend=backend)
            crew.check_works("w")
        assert [member.quit() for member in crew.members] == [0, 0, 0]


def test_a_member_that_is_terminated_counts_as_died() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2)
        crew.form("w")
        crew[1].worker.signal(signal.SIGTERM)
        assert crew[0].await_broken("w")["error"] == "PeerDiedError"


def test_survivors_join_new_worlds_on_another_store_after_the_store_host_died() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("standing", [1, 2])
        crew[0].worker.kill()
        crew.store = crew[1].do("serve_store")
        crew.form("new", [1, 2])
        crew.check_works("standing", [1, 2])
        crew.check_works("new", [1, 2])


def test_a_member_with_a_blocked_main_thread_still_revokes_the_world_for_others() -> None:
    """Detection runs beside the main thread: the survivor whose loop is blocked raises as soon as it looks again."""
    with WorkerGroup() as workers:
        crew = Crew(workers, 3)
        crew.form("w")
        receive = crew[0].call("recv", world="w", src=1).started()
        crew[1].call("block_main_thread", seconds=1.5).started()
        killed_at = crew[2].worker.kill()
        assert_pending_failed_in_time(receive, crew[0], "w", killed_at, victim=2)
        assert crew[1].await_broken("w")["error"] == "PeerDiedError"
