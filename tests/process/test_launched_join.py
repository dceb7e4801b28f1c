"""Joins under a launcher: processes die, are replaced, and are fewer; the store goes with its host; programs fork."""

from __future__ import annotations

import pytest

import multiworld as mw
from multiworld.testing import Worker, WorkerGroup
from tests.process import launched_programs
from tests.unit.elastic.launching_agent import TOKEN, Agent, agent_of, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


def start(workers: WorkerGroup, agent: Agent, worker_id: str) -> Worker:
    environment = agent.launch_of(worker_id).to_environment()
    return workers.start(launched_programs.work_in_whatever_world_there_is, name=worker_id, env=environment)


def test_the_world_is_formed_again_with_a_replacement_at_another_store_and_then_without_it() -> None:
    with agent_of() as agent, WorkerGroup() as workers:
        host = mw.WorldManager(token=TOKEN)
        url = host.serve_store("tcp://127.0.0.1:0")
        for rank, worker_id in enumerate(("stays", "dies")):
            agent.place(worker_id, rank, 2, url)
        stays, dies, spare = (start(workers, agent, worker_id) for worker_id in ("stays", "dies", "spare"))
        for rank, worker in enumerate((stays, dies)):
            worker.await_event("works", rank=rank, world_size=2, generation=1, total=2)

        dies.kill()
        stays.await_event("broken", cause="PeerDiedError")
        host.close()
        host = mw.WorldManager(token=TOKEN)
        url = host.serve_store("tcp://127.0.0.1:0")
        agent.place("stays", 0, 2, url)
        agent.place("spare", 1, 2, url)  # the same membership: a process was replaced
        for rank, worker in enumerate((stays, spare)):
            worker.await_event("works", rank=rank, world_size=2, generation=2, total=2)

        agent.place("stays", 0, 1, url, generation=2)
        spare.kill()
        stays.await_event("works", rank=0, world_size=1, generation=3, total=1)
        eventually(lambda: agent.gone == ["dies", "spare"])
        host.close()


def test_a_program_that_forks_and_cleans_nothing_up_ends_as_without_a_launcher() -> None:
    with agent_of() as agent, WorkerGroup() as workers, mw.WorldManager(token=TOKEN) as host:
        agent.place("a", 0, 1, host.serve_store("tcp://127.0.0.1:0"))
        environment = agent.launch_of("a").to_environment()
        worker = workers.start(launched_programs.fork_and_forget, name="a", env=environment)
        worker.await_event("child ended", status=0)
        worker.await_event("goes on", rank=0)
        assert worker.wait(10) == 0
        assert worker.stderr == ""
        eventually(lambda: agent.gone == ["a"])
        formed = [news["name"] for _, news in agent.news if news["news"] == "formed"]
        assert formed == ["w", "child"]
        assert sum(news["news"] == "progress" for _, news in agent.news) == 2
