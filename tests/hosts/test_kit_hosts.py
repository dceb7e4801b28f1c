"""Simulated hosts: they reach one another, cables and one-way cuts and losses do what they say, and all is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from multiworld.testing import HostError, Network, WorkerGroup
from multiworld.testing.hosts import NAMESPACES
from tests.hosts import kit_programs

pytestmark = [pytest.mark.alone, pytest.mark.cold, pytest.mark.usefixtures("no_leaks")]


def namespaces() -> set[str]:
    """Return those of this process: another test run may have its own."""
    return {path.name for path in NAMESPACES.glob(f"mw{os.getpid()}n*")}


def test_hosts_have_addresses_of_their_own_and_are_removed_at_the_end() -> None:
    before = namespaces()
    with Network(3) as network:
        assert len(namespaces() - before) == 4
        for host in network.hosts:
            assert f"inet {host.address}/24" in host.run("ip", "-4", "address", "show", "dev", "eth0")
    assert namespaces() == before


def test_hosts_are_removed_when_the_block_fails() -> None:
    before = namespaces()
    with pytest.raises(ZeroDivisionError), Network(2):
        _ = 1 / 0
    assert namespaces() == before


def test_a_program_on_a_host_runs_there_and_is_ended_with_the_network() -> None:
    with Network(1) as network:
        (host,) = network.hosts
        program = host.popen("sleep", "1000", stdout=subprocess.DEVNULL)
        with pytest.raises(HostError, match="exit status 1"):
            host.run("false")
    assert program.returncode == -signal.SIGKILL


def test_what_a_killed_program_left_is_removed_by_the_next_network() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    leftover = f"mw{ended.pid}n0h0"
    subprocess.run(["ip", "netns", "add", leftover], check=True)
    with Network(1):
        assert leftover not in namespaces()


def test_datagrams_pass_until_the_cable_is_pulled_and_after_it_is_back() -> None:
    with Network(2) as network, WorkerGroup() as workers:
        a, b = network.hosts
        receiver = workers.start(kit_programs.count_datagrams, b.address, netns=b.netns)
        receiver.await_event("listening")
        workers.start(kit_programs.send_datagrams, b.address, netns=a.netns)
        receiver.await_event("counted", sequence=20)
        a.cut()
        assert "NO-CARRIER" in a.run("ip", "link", "show", "dev", "eth0")
        receiver.await_event("idle")
        restored_at = a.restore()
        assert receiver.await_event("resumed").at > restored_at


def test_a_one_way_cut_leaves_the_other_way() -> None:
    with Network(2) as network, WorkerGroup() as workers:
        a, b = network.hosts
        servers = [workers.start(kit_programs.count_datagrams, host.address, netns=host.netns) for host in (a, b)]
        for server in servers:
            server.await_event("listening")
        for source, target in ((a, b), (b, a)):
            workers.start(kit_programs.send_datagrams, target.address, netns=source.netns)
        for server in servers:
            server.await_event("counted", sequence=20)
        a.drop(to=b)
        servers[1].await_event("idle")
        assert not servers[0].events("idle")
        network.heal()
        servers[1].await_event("resumed")


def test_lost_packets_are_about_as_many_as_asked() -> None:
    with Network(2) as network, WorkerGroup() as workers:
        a, b = network.hosts
        b.lose(30)
        receiver = workers.start(kit_programs.count_datagrams, b.address, netns=b.netns)
        receiver.await_event("listening")
        workers.start(kit_programs.send_datagrams, b.address, netns=a.netns)
        counted = receiver.await_event("lost share", timeout_s=30)
        assert 0.15 < counted["share"] < 0.45


def test_worker_and_host_share_the_network_and_the_clock() -> None:
    with Network(1) as network, WorkerGroup() as workers:
        (host,) = network.hosts
        worker = workers.start(kit_programs.namespace, netns=host.netns)
        seen = worker.await_event("namespace")
        assert seen["inode"] == (NAMESPACES / host.netns).stat().st_ino
        assert seen["inode"] != Path("/proc/self/ns/net").stat().st_ino
        assert worker.started_at < seen.at < time.monotonic()


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="num_hosts is 0"):
        Network(0)
    with Network(1) as network, pytest.raises(ValueError, match="percent"):
        network.lose(0)
