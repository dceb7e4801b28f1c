"""What each host of a hostfile is told, so that the agents make one job."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import Any

from multiworld.elastic.hosts.far_order import FAR_END, FarOrder
from multiworld.elastic.hosts.hostfile import parse_hostfile
from multiworld.elastic.hosts.hostfile_job import HostfileJob
from multiworld.elastic.launch.arguments import options_from
from multiworld.elastic.launch.parser import run_parser
from multiworld.wire.messages import from_json, to_json

JOB = HostfileJob(
    hosts=parse_hostfile("me@node1 slots=2 devices=2,3\nnode2 port=2222\n[fd00::1]\n", "hosts"),
    tag="gpt2",
    options=("--restart=worker", "-m"),
    program=("package.train", "--epochs", "a b"),
    nnodes="1:3",
    port=20001,
    directory="/data",
    python="/opt/my python/bin/python",
    variables={"MULTIWORLD_TOKEN": "very secret", "A": "1"},
    rdzv_conf="join_timeout=60",
)


def orders() -> list[FarOrder]:
    return [from_json(FarOrder, json.loads(json.dumps(to_json(JOB.order(index))))) for index in range(3)]


def test_every_host_gets_its_part_of_the_same_job() -> None:
    parsed: list[Any] = [run_parser().parse_args(list(order.arguments[1:])) for order in orders()]
    assert [order.arguments[0] for order in orders()] == ["train"] * 3
    assert [each.nproc_per_node for each in parsed] == ["2", "1", "1"]
    assert [each.host_name for each in parsed] == ["node1", "node2", "fd00::1"]
    for at, each in enumerate(parsed):
        assert (each.nnodes, each.rdzv_backend, each.rdzv_endpoint, each.rdzv_id, each.restart.value) == (
            "1:3",
            "c10d",
            "node1:20001",
            "gpt2",
            "worker",
        )
        assert each.rdzv_conf == f"last_call_timeout=30,join_timeout=60,is_host={int(at == 0)}"
        assert (each.module, each.training_script, each.training_script_args) == (
            True,
            "package.train",
            ["--epochs", "a b"],
        )
        assert options_from(each, {}, may_run_apart=False).max_nodes == 3


def test_devices_are_what_the_workers_of_that_host_see() -> None:
    assert [order.variables.get("CUDA_VISIBLE_DEVICES") for order in orders()] == ["2,3", None, None]
    assert [order.variables["A"] for order in orders()] == ["1"] * 3


def test_ssh_asks_nobody_sees_a_host_that_is_gone_and_goes_to_the_port_of_the_line() -> None:
    first, second = JOB.command(0), JOB.command(1)
    assert first[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert "ServerAliveInterval=5" in first
    assert "-p" not in first
    assert second[second.index("-p") + 1] == "2222"
    assert first[-2:] == ["me@node1", f"'/opt/my python/bin/python' -m {FAR_END}"]
    assert shlex.split(first[-1]) == ["/opt/my python/bin/python", "-m", FAR_END]


def test_what_the_users_own_ssh_says_comes_first_and_what_is_no_ssh_gets_no_option_of_it() -> None:
    own = replace(JOB, ssh=("/usr/bin/ssh", "-o", "ConnectTimeout=1")).command(0)
    assert own[:3] == ["/usr/bin/ssh", "-o", "ConnectTimeout=1"]  # of several, ssh takes the first
    assert "BatchMode=yes" in own
    assert replace(JOB, ssh=("srun", "--nodelist")).command(0)[:3] == ["srun", "--nodelist", "me@node1"]


def test_this_host_needs_no_ssh() -> None:
    assert replace(JOB, here=frozenset([1])).command(1) == [sys.executable, "-m", FAR_END]


def test_the_token_is_on_no_command_line_and_in_no_repr() -> None:
    assert JOB.order(0).variables["MULTIWORLD_TOKEN"] == "very secret"
    shown = repr(JOB) + repr(JOB.order(0)) + " ".join(JOB.command(0)) + " ".join(JOB.order(0).arguments)
    assert "secret" not in shown


def test_a_host_that_stands_there_twice_is_called_by_its_port_too() -> None:
    job = replace(JOB, hosts=parse_hostfile("box port=1\nbox port=2\nbox\nnode\n", "hosts"))
    assert job.labels == ("box:1", "box:2", "box:ssh", "node")
