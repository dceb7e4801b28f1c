"""Programs that end without cleaning up: exit status and atexit handlers are theirs, and peers see that they left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multiworld.testing import Crew, WorkerGroup
from tests.process import exit_programs

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("backend", ["shm", "tcp", "gloo"])
@pytest.mark.parametrize(
    "program",
    [
        exit_programs.return_from_main,
        exit_programs.forget_everything,
        exit_programs.return_with_a_receive_pending,
        exit_programs.return_with_a_thread_blocked,
        exit_programs.call_sys_exit,
    ],
)
def test_exit_without_cleanup_is_clean_and_peers_see_that_the_member_left(
    backend: str, program: Callable[..., Any]
) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 1)
        join = crew[0].call("join", world="w", rank=0, world_size=2, store=crew.store, backend=backend)
        leaver = workers.start(program, crew.store, backend, name="leaver")
        leaver.await_event("joined")
        join.result()
        assert leaver.wait(10) == 0
        leaver.await_event("atexit")
        assert leaver.stderr == ""
        broken = crew[0].await_broken("w")
        assert broken["error"] == "PeerLeftError", broken["message"]
        assert broken["fields"]["rank"] == 1


@pytest.mark.parametrize("backend", ["gloo"])
def test_ending_while_gloo_connects_or_is_given_back_is_clean(backend: str) -> None:
    """Whatever is inside the library then must be out of it before the interpreter goes."""
    with WorkerGroup() as workers:
        store = Crew(workers, 1).store
        for delay_s in (0.0, 0.002, 0.004, 0.008):
            pair = [workers.start(exit_programs.return_while_gloo_connects, store, rank, delay_s) for rank in range(2)]
            assert [worker.wait(10) for worker in pair] == [0, 0], f"after {delay_s} s"
            assert [worker.stderr for worker in pair] == ["", ""]


def test_a_program_that_ends_by_an_exception_has_left_for_its_peers_too() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 1)
        join = crew[0].call("join", world="w", rank=0, world_size=2, store=crew.store, backend="tcp")
        failing = workers.start(exit_programs.raise_an_error, crew.store, "tcp", name="failing")
        join.result()
        assert failing.wait(10) == 1
        assert "as planned" in failing.stderr
        assert crew[0].await_broken("w")["error"] == "PeerLeftError"


def test_a_forked_child_that_ends_harms_no_world_of_its_parent() -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 1)
        join = crew[0].call("join", world="w", rank=0, world_size=2, store=crew.store, backend="tcp")
        forker = workers.start(exit_programs.return_after_a_fork, crew.store, "tcp", name="forker")
        join.result()
        assert crew[0].do("recv", world="w", src=1) == [1.0, 1.0]
        forker.await_event("sent after fork")
        assert forker.wait(10) == 0
        assert crew[0].await_broken("w")["error"] == "PeerLeftError"


@pytest.mark.parametrize(("backend", "numel"), [("tcp", 1), ("tcp", 100_000), ("gloo", 100_000)])
def test_what_was_sent_before_a_graceful_leave_is_delivered(backend: str, numel: int) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 2)
        crew.form("w", backend=backend)
        sends = [crew[1].call("send", world="w", dst=0, value=float(number), numel=numel) for number in range(5)]
        if numel == 1:  # small messages need nobody who waits for them
            for send in sends:
                send.result()
        else:
            sends[-1].started()
        leave = crew[1].call("leave", world="w").started()
        assert [crew[0].do("recv", world="w", src=1, numel=numel) for _ in range(5)] == [
            [float(i)] * 2 for i in range(5)
        ]
        leave.result()
        outcome = crew[0].call("recv", world="w", src=1).failure()
        assert outcome.error == "PeerLeftError", outcome.message
