"""What is done about the members of a host that is being stopped."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from multiworld.process.facts import process_space
from multiworld.process.link import ControlLink
from multiworld.serving.control.fleet.actions import HostLeft, ReplicaLeft, ReplicaLost, ReplicaStarted
from multiworld.serving.control.fleet.members import MemberState
from multiworld.serving.control.fleet.placement import HostInfo, place
from multiworld.serving.errors import DeploymentError
from multiworld.serving.hosts.host import Host
from multiworld.serving.hosts.messages import HOST_EVENTS, HOST_ORDERS, Hello, Stopping
from multiworld.serving.hosts.orphans import end_orphans
from multiworld.serving.pipeline import _wait_complete
from tests.unit.serving.simulated_fleet import SimulatedFleet, chain

HELLO = Hello(host="h", address="127.0.0.1", pid=1, capacity=1, members={})


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
    assert all(member.host == "host-0" for member in simulation.fleet.state.members.values())
    assert [simulation.fleet.state.num_open(name) for name in "ab"] == [2, 2]
    assert not any(isinstance(event, ReplicaLost) for event in simulation.events)
    assert any(isinstance(event, HostLeft) for event in simulation.events)
    assert simulation.kinds().count("BackedOff") == 0


def test_replicas_of_a_host_that_is_being_stopped_leave_once_they_are_replaced_and_have_finished() -> None:
    simulation = settled()
    there = [process.member for process in simulation.processes.values() if process.host == "host-1"]
    simulation.do(simulation.fleet.host_stopping("host-1", simulation.now, ends_all=False))
    assert all(simulation.fleet.state.members[name].is_ready for name in there)
    simulation.run(2)
    assert not simulation.fleet.state.members.keys() & set(there)
    assert [simulation.fleet.state.num_open(name) for name in "ab"] == [2, 2]
    assert not any(isinstance(event, ReplicaLost) for event in simulation.events)
    assert simulation.killed == []


def test_a_gateway_of_a_host_that_is_being_stopped_is_replaced_before_it_ends() -> None:
    simulation = settled()
    (gateway,) = simulation.gateways()
    host = simulation.fleet.state.members[gateway].host
    simulation.do(simulation.fleet.host_stopping(host, simulation.now, ends_all=False))
    simulation.run(1)
    assert simulation.gateways() == [gateway, "gateway-2"]
    assert "PipelineUnready" not in simulation.kinds()
    simulation.stop_host(host)
    simulation.run_until_settled(5)
    assert simulation.gateways() == ["gateway-2"]


def test_whatever_a_stopped_host_did_not_tell_the_end_of_ends_with_it() -> None:
    simulation = settled()
    simulation.do(simulation.fleet.host_stopping("host-1", simulation.now, ends_all=False))
    for process in [each for each in simulation.processes.values() if each.host == "host-1"]:
        simulation._end(process)
    simulation.do(simulation.fleet.host_lost("host-1", simulation.now))
    simulation.run_until_settled(5)
    assert all(member.host == "host-0" for member in simulation.fleet.state.members.values())


@pytest.mark.parametrize("host_first", [True, False])
def test_members_that_are_told_to_leave_are_not_waited_for_when_they_end_with_their_host(host_first: bool) -> None:
    simulation = SimulatedFleet(chain("a", "b"), hosts=1, gateways=0)
    simulation.run(2)
    fleet = simulation.fleet
    fleet.stop(simulation.now)
    assert {member.state for member in fleet.state.members.values()} == {MemberState.LEAVING}
    if host_first:
        fleet.host_lost("host-0", simulation.now)
    for member in list(fleet.state.members):
        fleet.lost(member, "PeerDiedError", simulation.now, died=True)
    if not host_first:
        assert fleet.state.members
        fleet.host_lost("host-0", simulation.now)
    assert not fleet.state.members


class Controller:
    """Whose replicas come up, or do not."""

    def __init__(self, error: Exception | None, *, waits: bool) -> None:
        self.error, self.waits = error, waits
        self.num_cancelled = 0

    async def wait_complete(self, timeout_s: float) -> None:
        try:
            if self.waits:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.error is not None:
            raise self.error


class HostHandle:
    def __init__(self, returncode: int | None) -> None:
        self.pid, self.returncode = 7, returncode

    async def wait_ended(self) -> None:
        if self.returncode is None:
            await asyncio.Event().wait()


async def test_replicas_are_not_waited_for_once_their_host_process_has_ended() -> None:
    controller = Controller(None, waits=True)
    with pytest.raises(DeploymentError, match="the host process 7 ended with -9 before all replicas were up"):
        await _wait_complete(controller, HostHandle(-9), 60.0)  # type: ignore[arg-type]
    assert controller.num_cancelled == 1
    await _wait_complete(Controller(None, waits=False), HostHandle(None), 60.0)  # type: ignore[arg-type]
    controller = Controller(DeploymentError("it does not load"), waits=False)
    for host in (HostHandle(None), None):
        with pytest.raises(DeploymentError, match="it does not load"):
            await _wait_complete(controller, host, 60.0)  # type: ignore[arg-type]


def test_nothing_is_placed_on_a_host_that_is_leaving() -> None:
    leaving = HostInfo(name="a", address="10.0.0.1", capacity=8, leaving=True)
    staying = HostInfo(name="b", address="10.0.0.2", capacity=1)
    assert place("s", (), [leaving, staying], []) is staying
    assert place("s", ("a",), [leaving, staying], []) is None


def test_a_host_says_that_it_is_being_stopped() -> None:
    told = []
    host = Host(HELLO, ControlLink(HOST_ORDERS, HOST_EVENTS))
    host.take(Stopping())
    host.on_stopping = lambda: told.append(host.name)
    host.take(Stopping())
    assert told == ["h"]


def test_who_cannot_be_looked_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", is_full)
    assert end_orphans(1, [os.getsid(0)], timeout_s=0.0) == []


def test_a_host_says_where_its_process_ids_mean_something() -> None:
    assert process_space() == process_space() != ""
    assert (
        Host(HELLO, ControlLink(HOST_ORDERS, HOST_EVENTS)).process_space == ""
    )  # it cannot tell: nothing of it is killed
