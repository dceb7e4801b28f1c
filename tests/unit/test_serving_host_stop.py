"""What is done about the members of a host that is being stopped."""

from __future__ import annotations

import errno
import os

import pytest

from multiworld.serving.control.actions import HostLeft, ReplicaLeft, ReplicaLost, ReplicaStarted
from multiworld.serving.control.placement import HostInfo, place
from multiworld.serving.hosts.host import Host
from multiworld.serving.hosts.orphans import end_orphans, parse_session, process_space

from .simulated_fleet import SimulatedFleet, chain


def settled() -> SimulatedFleet:
    simulation = SimulatedFleet(chain("a", "b", replicas=2))
    simulation.run_until_settled()
    simulation.events.clear()
    return simulation


def test_nothing_is_replaced_when_the_host_of_the_controller_is_stopped() -> None:
    simulation = settled()
    simulation.stop_host("host-0", ends_all=True)
    simulation.run(2)
    kinds = set(map(type, simulation.events))
    assert not kinds & {ReplicaStarted, ReplicaLost}
    assert ReplicaLeft in kinds
    assert simulation.killed == []


def test_members_of_another_host_that_is_stopped_are_replaced_elsewhere_without_blame() -> None:
    simulation = settled()
    simulation.stop_host("host-1")
    simulation.run_until_settled(5)
    assert all(member.host == "host-0" for member in simulation.fleet.members.values())
    assert [simulation.fleet.num_open(name) for name in "ab"] == [2, 2]
    assert not any(isinstance(event, ReplicaLost) for event in simulation.events)
    assert any(isinstance(event, HostLeft) for event in simulation.events)
    assert simulation.kinds().count("BackedOff") == 0


def test_replicas_of_a_host_that_is_being_stopped_leave_once_they_are_replaced_and_have_finished() -> None:
    simulation = settled()
    there = [process.member for process in simulation.processes.values() if process.host == "host-1"]
    simulation.do(simulation.fleet.host_stopping("host-1", simulation.now, ends_all=False))
    assert all(simulation.fleet.members[name].is_ready for name in there)
    simulation.run(2)
    assert not simulation.fleet.members.keys() & set(there)
    assert [simulation.fleet.num_open(name) for name in "ab"] == [2, 2]
    assert not any(isinstance(event, ReplicaLost) for event in simulation.events)
    assert simulation.killed == []


def test_whatever_a_stopped_host_did_not_tell_the_end_of_ends_with_it() -> None:
    simulation = settled()
    simulation.do(simulation.fleet.host_stopping("host-1", simulation.now, ends_all=False))
    for process in [each for each in simulation.processes.values() if each.host == "host-1"]:
        simulation._end(process)
    simulation.do(simulation.fleet.host_lost("host-1", simulation.now))
    simulation.run_until_settled(5)
    assert all(member.host == "host-0" for member in simulation.fleet.members.values())


def test_nothing_is_placed_on_a_host_that_is_leaving() -> None:
    leaving = HostInfo(name="a", address="10.0.0.1", capacity=8, leaving=True)
    staying = HostInfo(name="b", address="10.0.0.2", capacity=1)
    assert place("s", (), [leaving, staying], []) is staying
    assert place("s", ("a",), [leaving, staying], []) is None


def test_a_host_says_that_it_is_being_stopped() -> None:
    told = []
    hello = {"host": "h", "address": "127.0.0.1", "pid": 1, "capacity": 1, "members": {}}
    host = Host(hello, lambda _: None, lambda: None)
    host.take({"event": "stopping"})
    host.on_stopping = lambda: told.append(host.name)
    host.take({"event": "stopping"})
    assert told == ["h"]


def test_who_cannot_be_looked_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", is_full)
    assert end_orphans(1, [os.getsid(0)], timeout_s=0.0) == []


def test_sessions_are_read_whatever_a_program_is_called() -> None:
    assert parse_session("42 (a) b (c)) S 1 41 40 0 -1 4194560") == 40


def test_a_host_says_where_its_process_ids_mean_something() -> None:
    assert process_space() == process_space() != ""
    hello = {"host": "h", "address": "127.0.0.1", "pid": 1, "capacity": 1, "members": {}}
    assert Host(hello, lambda _: None, lambda: None).process_space == ""  # it cannot tell: nothing of it is killed
