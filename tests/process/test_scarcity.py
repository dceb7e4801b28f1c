"""A member that runs out of memory or descriptors: it says so, to the others too, or goes on more slowly."""

from __future__ import annotations

import pytest

from multiworld.testing import Crew, WorkerGroup
from tests.process import scarcity_programs

pytestmark = pytest.mark.usefixtures("no_leaks")

BACKENDS = ["tcp", "shm"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_message_that_there_is_no_memory_for_breaks_the_world_and_both_sides_read_why(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 1)
        join = crew[0].call("join", world="w", rank=0, world_size=2, store=crew.store, backend=backend)
        receiver = workers.start(scarcity_programs.receive_without_memory, crew.store, backend, name="receiver")
        join.result()
        crew[0].do("collective", world="w", kind="all_reduce", numel=1_000_000)
        crew[0].call("send", world="w", dst=1, value=1.0, numel=50_000_000)
        broken = receiver.await_event("broken")
        assert (broken["error"], broken["rank"]) == ("WorldBrokenError", 1)
        assert "rank 1 had no memory for a message of 200000000 bytes from rank 0" in broken["cause"]
        told = crew[0].await_broken("w")
        assert (told["error"], told["fields"]["rank"]) == ("WorldBrokenError", 1)
        assert "rank 1 had no memory" in told["message"]
        assert receiver.wait() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thread_that_finds_no_descriptor_to_wait_with_waits_all_the_same(backend: str) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 1)
        join = crew[0].call("join", world="w", rank=0, world_size=2, store=crew.store, backend=backend)
        receiver = workers.start(scarcity_programs.receive_without_descriptors, crew.store, backend, name="receiver")
        join.result()
        receiver.await_event("waiting")
        crew[0].do("send", world="w", dst=1, value=7.0, numel=4)
        assert receiver.await_event("received")["value"] == [7.0] * 4
        assert receiver.wait() == 0
        assert "which makes it slower" in receiver.stderr
