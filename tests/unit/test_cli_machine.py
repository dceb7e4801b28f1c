"""What the machine is said to grant, on any Linux that runs the tests."""

from __future__ import annotations

import os
import resource

from multiworld.cli import machine


def test_loopback_is_listed_with_its_address() -> None:
    loopback = {each.name: each for each in machine.interfaces()}["lo"]
    assert loopback.up
    assert "127.0.0.1" in loopback.addresses


def test_limits_are_those_of_this_process() -> None:
    limits = machine.limits()
    assert limits.cores == len(os.sched_getaffinity(0))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.open_files_soft == (None if soft == resource.RLIM_INFINITY else soft)
    assert limits.proc_stat


def test_looking_leaves_no_descriptor_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    machine.limits()
    machine.interfaces()
    assert set(os.listdir("/proc/self/fd")) == before
