"""The stand-in reports what torchrun's agent does as exits of one worker, and calls that agent back when it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.elastic.job.actions import Exited, Report, Start, Stop
from multiworld.elastic.job.assignment import Assignment, Membership
from multiworld.elastic.torchrun.stand_in import ROLE, Part, StandIn


def assignment(generation: int) -> Assignment:
    return Assignment(
        generation=generation,
        restarts=0,
        rank=0,
        local_rank=0,
        node_rank=0,
        role_rank=0,
        world_size=2,
        local_world_size=1,
        num_nodes=2,
        role_world_size=2,
        master_addr="127.0.0.1",
        master_port=1000 + generation,
    )


class Host:
    """A stand-in between a coordinator and an agent of torchrun, both played by the test."""

    def __init__(self) -> None:
        self.exits: list[tuple[str, int, bool]] = []
        self.has_left = False
        self.stand_in = StandIn(
            self._hear,
            open_master=lambda generation: None,
            serving=lambda: None,
            on_change=lambda: None,
            on_left=self._leave,
        )

    def start(self, worker: str, generation: int) -> None:
        self.stand_in.obey(Start(worker=worker, assignment=assignment(generation)))

    def stop(self, worker: str) -> None:
        self.stand_in.obey(Stop(workers=(worker,), signum=15, grace_s=1.0))

    def go_out(self) -> Part:
        part = self.stand_in.ready
        assert part is not None
        assert self.stand_in.depart(part)
        return part

    @property
    def introduced(self) -> list[str]:
        return [report.worker for report in self.stand_in.introduction().workers]

    def _hear(self, report: Report) -> None:
        assert isinstance(report, Exited)
        self.exits.append((report.worker, report.returncode, report.ordered))

    def _leave(self) -> None:
        self.has_left = True


@pytest.fixture
def host() -> Host:
    """Return one whose agent is out with the first part."""
    host = Host()
    host.stand_in.arrive()
    host.start("a", 1)
    host.go_out()
    return host


def test_it_has_what_the_leadership_reports_of_an_agent(host: Host) -> None:
    assert host.stand_in.running == ["a"]
    assert host.stand_in.pids == {}


def test_an_agent_that_comes_back_by_itself_has_failed(host: Host) -> None:
    host.stand_in.arrive()
    assert host.exits == [("a", -9, False)]
    assert host.stand_in.ready is None
    host.start("b", 2)
    assert host.go_out().assignment.generation == 2


def test_a_part_that_is_stopped_ends_when_the_agent_is_back(host: Host) -> None:
    host.stop("a")
    assert host.stand_in.is_wanted
    assert host.exits == []
    assert host.stand_in.running == ["a"]
    host.stand_in.arrive()
    assert host.exits == [("a", -15, True)]
    assert not host.stand_in.is_wanted
    assert host.introduced == []


def test_a_part_that_is_stopped_before_the_agent_is_out_ends_at_once(host: Host) -> None:
    host.stand_in.arrive()
    host.start("b", 2)
    part = host.stand_in.ready
    host.stop("b")
    assert host.exits[1:] == [("b", -15, True)]
    assert part is not None
    assert not host.stand_in.depart(part)


def test_a_part_waits_for_an_agent_that_still_stops_its_workers(host: Host) -> None:
    host.stand_in.fence(lambda: None)
    host.start("b", 2)
    assert host.stand_in.is_wanted
    assert host.stand_in.ready is None
    host.stand_in.arrive()
    assert host.exits == []
    assert host.go_out().worker == "b"


def test_a_generation_whose_store_was_used_here_is_refused(host: Host) -> None:
    host.stand_in.arrive()
    host.start("b", 1)
    assert host.exits[1:] == [("b", 1, False)]
    assert host.stand_in.ready is None


def test_fenced_workers_are_gone_when_the_agent_is_back(host: Host) -> None:
    calls: list[str] = []
    host.stand_in.fence(lambda: calls.append("gone"), forgets=True)
    assert host.stand_in.is_wanted
    assert host.introduced == []
    assert calls == []
    host.stand_in.arrive()
    assert calls == ["gone"]
    assert host.exits == []


def test_success_is_told_again_to_the_next_coordinator(host: Host) -> None:
    part = host.stand_in.out
    assert part is not None
    host.stand_in.finish(part)
    host.stand_in.fence(lambda: None)
    assert host.introduced == ["a"]
    host.stand_in.repeat()
    assert host.exits == [("a", 0, False)] * 2
    assert not host.has_left


def test_a_host_that_has_finished_leaves_when_all_are_started_again(host: Host) -> None:
    part = host.stand_in.out
    assert part is not None
    host.stand_in.finish(part)
    host.start("b", 2)
    assert host.has_left


def test_a_host_whose_part_is_stopped_leaves_when_it_has_finished(host: Host) -> None:
    part = host.stand_in.out
    assert part is not None
    host.stop("a")
    host.stand_in.finish(part)
    assert host.has_left
    assert host.exits == []


def test_the_workers_of_a_host_keep_their_ranks_in_another_membership() -> None:
    host = Host()
    host.start("1", 1)
    part = host.stand_in.part
    assert part is not None
    before = part.assignment
    membership = Membership(
        generation=2,
        world_size=3,
        num_nodes=3,
        role_world_sizes={ROLE: 3},
        master_addr="127.0.0.1",
        master_port=1002,
    )
    host.stand_in.obey(membership)
    assert (part.assignment.rank, part.assignment.world_size, part.assignment.generation) == (before.rank, 3, 2)
    host.stop("1")
    host.stand_in.obey(replace(membership, generation=3))
    assert part.assignment.generation == 2  # it is to end
