"""torchrun with our rendezvous: its agents find each other, go on without any one of them, and take others in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec

from benchmarks.elastic.etcd_server import EtcdServer, etcd_program
from benchmarks.elastic.job import free_port
from multiworld.elastic.agent.master_store import MasterStore
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.torchrun.generation_store import GenerationStore, Standing

from .torchrun_nodes import Nodes, Parent

HANDLERS = {entry.name for entry in metadata.entry_points(group="torchrun.handlers")}

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif("multiworld" not in HANDLERS, reason="installed before there were handlers: make setup"),
]


@pytest.fixture(scope="module", autouse=True)
def what_stays() -> None:
    """The first c10d store of a process makes a pipe that stays, for all that follow."""
    MasterStore("127.0.0.1", 0).close()


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.close()


@pytest.fixture
def nodes(parent: Parent, tmp_path: Path) -> Callable[..., Nodes]:
    """Make hosts that meet at a free port of this one."""

    def make(nnodes: str, *options: str, max_restarts: int = 3) -> Nodes:
        endpoint = ["--rdzv-backend=multiworld", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job"]
        return Nodes(parent, tmp_path, f"--nnodes={nnodes}", *endpoint, f"--max-restarts={max_restarts}", *options)

    return make


def test_a_process_group_is_formed_again_without_the_host_of_the_store(nodes: Callable[..., Nodes]) -> None:
    with nodes("1:2") as crew:
        one, two = crew.start(REDUCES="1"), crew.start(REDUCES="1")
        first, second = crew.formed(2)
        assert [first.total, second.total] == [2.0, 2.0]
        assert {first.node, second.node} == {one.name, two.name}
        crew.of(first).kill()
        (left,) = crew.formed(1)
        assert (left.node, left.total) == (second.node, 1.0)
        left.exit(0)
        assert crew.of(left).wait() == 0


def test_workers_fail_and_hosts_come_and_go_and_the_job_ends_well(nodes: Callable[..., Nodes]) -> None:
    with nodes("1:2") as crew:
        for _ in range(2):
            crew.start()
        first, second = crew.formed(2)
        second.exit(3)
        again = crew.formed(2)
        assert sorted(worker.restarts for worker in again) == [0, 1]
        assert again[0].port != first.port

        spare = crew.start()
        crew.of(again[1]).kill()
        third = crew.formed(2)
        assert spare.name in {worker.node for worker in third}

        for worker in third:
            worker.exit(0)
        assert [crew.of(worker).wait() for worker in third] == [0, 0]


def test_a_host_that_has_finished_is_not_needed_any_more(nodes: Callable[..., Nodes]) -> None:
    with nodes("1:2") as crew:
        for _ in range(2):
            crew.start()
        first, second = crew.formed(2)
        first.exit(0)
        second.exit(3)
        (left,) = crew.formed(1)
        assert left.node == second.node
        left.exit(0)
        assert [crew.of(worker).wait() for worker in (first, second)] == [0, 0]


def test_who_may_not_restart_its_workers_ends_the_job_for_all(nodes: Callable[..., Nodes]) -> None:
    with nodes("2", max_restarts=0) as crew:
        for _ in range(2):
            crew.start()
        first, second = crew.formed(2)
        first.exit(3)
        assert [crew.of(worker).wait() for worker in (first, second)] == [1, 1]
        assert "ChildFailedError" in crew.of(first).log.read_text()
        assert "RendezvousClosedError: rendezvous 'job' was closed" in crew.of(second).log.read_text()


def test_a_job_that_does_not_come_together_ends_in_time(nodes: Callable[..., Nodes]) -> None:
    with nodes("2", "--rdzv-conf=join_timeout=1") as crew:
        alone = crew.start()
        assert alone.wait() == 1
        assert "RendezvousTimeoutError: rendezvous 'job': only 1 of 2 hosts came within 1 s" in alone.log.read_text()


@pytest.mark.parametrize("dead", ["another host", "the store's host"])
@pytest.mark.parametrize("node_rank", [0, 1])
def test_an_agent_goes_on_whose_generation_is_lost_while_ranks_are_exchanged(node_rank: int, dead: str) -> None:
    master = MasterStore("127.0.0.1", 1)
    place = Assignment(
        generation=1,
        restarts=0,
        rank=node_rank,
        local_rank=0,
        node_rank=node_rank,
        role_rank=node_rank,
        world_size=2,
        local_world_size=1,
        num_nodes=2,
        role_world_size=2,
        master_addr=master.address,
        master_port=master.port,
    )
    store = GenerationStore(place, 5.0, standing=lambda: Standing.LOST, on_finished=lambda: None)
    if dead == "the store's host":
        master.close()
    spec = WorkerSpec(role="trainer", local_world_size=2, entrypoint="true", rdzv_handler=cast(Any, None))
    workers = SimpleElasticAgent._assign_worker_ranks(cast(Any, None), store, node_rank, 2, spec)
    assert [worker.global_rank for worker in workers] == [2 * node_rank, 2 * node_rank + 1]
    assert [worker.world_size for worker in workers] == [4, 4]
    master.close()


@pytest.mark.skipif(etcd_program() is None, reason="etcd is not installed: etcd-server")
def test_hosts_that_meet_through_etcd_go_on_without_any_one_of_them(parent: Parent, tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as etcd:
        endpoint = ["--rdzv-backend=multiworld-etcd", f"--rdzv-endpoint={etcd.endpoint}", "--rdzv-id=job"]
        with Nodes(parent, tmp_path, "--nnodes=1:2", *endpoint, "--rdzv-conf=lease_ttl=2") as crew:
            for _ in range(2):
                crew.start()
            first, second = crew.formed(2)
            crew.of(first).kill()
            (left,) = crew.formed(1)
            assert left.node == second.node
            crew.start()
            both = crew.formed(2)
            os.kill(crew.of(both[1]).pid, signal.SIGTERM)
            (last,) = crew.formed(1)
            last.exit(0)
            assert crew.of(last).wait() == 0
