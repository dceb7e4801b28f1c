"""Which host of ``multiworld exec`` gets how many ranks, what it is told, and what is refused at once."""

from __future__ import annotations

import faulthandler
import getpass
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from multiworld.cli.exec import PREFIX_VARIABLE
from multiworld.cli.main import main
from multiworld.elastic.hosts.own_host import is_this_host
from multiworld.elastic.hosts.shares import HostShare, RemoteJob, allot, shares_of_file
from multiworld.elastic.job.options import JobOptions, RestartBudget, RestartPolicy
from multiworld.elastic.launch.parser import run_parser
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.wire.messages import to_json

JOB = RemoteJob(
    shares=allot("me@a,[::1]:3"),
    program=("python", "prog.py", "-n", "a b"),
    run_id="exec-1",
    port=20001,
    directory="/data",
    python="/opt/my python/bin/python",
    ssh=("ssh", "-oBatchMode=yes"),
    variables={"MULTIWORLD_TOKEN": "very secret"},
)


def shares(hosts: str, num_ranks: int | None = None) -> list[tuple[str, int]]:
    return [(each.name, each.num_ranks) for each in allot(hosts, num_ranks)]


def test_hosts_without_a_number_get_one_rank_each_or_share_what_the_others_leave() -> None:
    assert shares("a,b:4,c") == [("a", 1), ("b", 4), ("c", 1)]
    assert shares("a,b:4,c", 9) == [("a", 3), ("b", 4), ("c", 2)]
    assert shares("b:4", 4) == [("b", 4)]
    assert shares("me@a:2, 10.0.0.1 ,[::1]:3,me@::1", 7) == [("me@a", 2), ("10.0.0.1", 1), ("::1", 3), ("me@::1", 1)]


@pytest.mark.parametrize(("hosts", "num_ranks"), [("a:2", 3), ("a:2,b:2", 3), ("a,b,c", 2), ("a,b:4", 4), ("a", 0)])
def test_numbers_that_do_not_fit_are_refused(hosts: str, num_ranks: int) -> None:
    with pytest.raises(ValueError, match=f"does not fit -n {num_ranks}"):
        allot(hosts, num_ranks)


@pytest.mark.parametrize("hosts", ["", "a,,b", "a:0", "a:x", ":4", "a:-1", "-oProxyCommand=x", "me@"])
def test_what_is_no_host_is_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="no host with a number of ranks"):
        allot(hosts)


def test_an_endpoint_names_the_host_and_not_the_user() -> None:
    assert [HostShare(name=name, num_ranks=1).address for name in ("me@a", "::1", "me@::1")] == ["a", "[::1]", "[::1]"]


def test_every_host_is_told_its_part_of_the_same_job() -> None:
    orders: list[dict[str, Any]] = [json.loads(json.dumps(to_json(JOB.order(index)))) for index in range(2)]
    parsed = [run_parser().parse_args(order["arguments"]) for order in orders]
    assert [(each.node_rank, each.nproc_per_node) for each in parsed] == [(0, "1"), (1, "3")]
    for each in parsed:
        assert (each.nnodes, each.rdzv_backend, each.rdzv_endpoint, each.rdzv_id) == (
            "2",
            "static",
            "a:20001",
            "exec-1",
        )
        assert (each.no_python, each.max_restarts.max_restarts, each.restart.value) == (True, 0, "all")
        assert (each.training_script, *each.training_script_args) == JOB.program
    assert [order["directory"] for order in orders] == ["/data", "/data"]


def test_the_token_is_on_no_command_line_and_in_no_repr() -> None:
    command = JOB.command(0)
    assert command == ["ssh", "-oBatchMode=yes", "me@a", "'/opt/my python/bin/python'", "-m", command[-1]]
    assert JOB.order(0).variables == {"MULTIWORLD_TOKEN": "very secret"}
    assert "secret" not in repr(JOB) + " ".join(command)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["python"], "how many ranks?"),
        (["-n", "0", "python"], "expected at least 1"),
        (["-n", "2"], "no program"),
        (["--hosts", "a"], "no program"),
        (["-n", "2", "nosuch.py"], "nosuch.py is no command here (multiworld exec ... python nosuch.py?)"),
        (["--hosts", "a:2", "-n", "3", "x"], "does not fit"),
        (["--hosts", "a", "--ssh", "", "x"], "--ssh: expected a command"),
        (["--hosts", "a", "--ssh", "/nosuch/ssh", "x"], "/nosuch/ssh cannot be started"),
        (["-n", "1", "-x", "NOT_SET_ANYWHERE", "python"], "-x NOT_SET_ANYWHERE"),
        (["-n", "1", "-x", "=1", "python"], "-x =1"),
        (["-n", "2", "a", ":", "-n", "1", "b"], "':' stands between several programs for mpiexec"),
        (["--hosts", "a", "x", "y", ":"], "':' stands between several programs"),
        (["--hosts", "localhost,a", "x"], "localhost: the other hosts cannot reach this one by that name"),
        (["-n", "1", "--wdir", "/no/such", "true"], "--wdir /no/such: No such file or directory"),
        (["--hostfile", "/no/such", "true"], "--hostfile /no/such: No such file or directory"),
        (["--hostfile", "x", "--hosts", "a", "true"], "--hosts and --hostfile exclude each other"),
    ],
)
def test_a_line_that_makes_no_sense_is_answered_in_one_line(
    line: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exec", *line]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert told in said.err


def test_without_hosts_the_ranks_start_here_once_and_their_lines_have_no_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[JobOptions] = []
    fake = ModuleType("multiworld.elastic.launch.launcher")
    fake.__dict__["launch"] = lambda options, in_place: launched.append(options)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(faulthandler, "enable", lambda **_: None)
    for name in ("A", PREFIX_VARIABLE):
        monkeypatch.setenv(name, "to be taken back")
        monkeypatch.delenv(name)
    assert main(["exec", "-n", "3", "-x", "A=1", "sh", "-c", "true", "-n", "4"]) == 0
    (options,) = launched
    assert (options.num_workers, options.max_nodes, options.rdzv_endpoint) == (3, 1, "localhost:0")
    assert options.entrypoint == Entrypoint(
        kind=EntrypointKind.COMMAND, target="sh", arguments=("-c", "true", "-n", "4")
    )
    assert (options.restart, options.budget) == (RestartPolicy.ALL, RestartBudget(max_restarts=0))
    assert os.environ["A"] == "1"
    assert os.environ[PREFIX_VARIABLE] == ""
    assert options.logs.prefix_template == ""
    assert options.only_rank_0_reads


def test_hosts_that_are_all_this_one_are_one_host_and_the_ranks_start_there_in_the_directory_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched: list[tuple[JobOptions, str]] = []
    fake = ModuleType("multiworld.elastic.launch.launcher")
    fake.__dict__["launch"] = lambda options, in_place: launched.append((options, os.getcwd()))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(faulthandler, "enable", lambda **_: None)
    monkeypatch.setenv(PREFIX_VARIABLE, "")
    monkeypatch.chdir("/")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    here = f"127.0.0.1:2,{socket.gethostname()},{getpass.getuser()}@localhost"
    assert main(["exec", "-H", here, "-wdir", str(tmp_path), "--", "sh", "-c", ":"]) == 0
    assert main(["exec", "-hostfile", "hosts", "true"]) == 0
    assert [(options.num_workers, options.max_nodes, cwd) for options, cwd in launched] == [
        (4, 1, str(tmp_path)),
        (2, 1, str(tmp_path)),
    ]
    assert launched[0][0].entrypoint.arguments == ("-c", ":")


def test_other_hosts_and_other_users_are_not_this_host() -> None:
    for name in ("192.0.2.7", "far.invalid", "somebody-else@localhost", "localhost.invalid"):
        assert not is_this_host(name)
    assert is_this_host("::1") or not socket.has_ipv6


def test_this_host_needs_no_ssh() -> None:
    job = replace(JOB, here=frozenset([1]))
    assert job.command(0)[0] == "ssh"
    assert job.command(1) == [sys.executable, "-m", "multiworld.elastic.remote_agent"]


OPEN_MPI = """\
# the machines
node1 slots=4 max_slots=8   # the first

node2 slots = 2
me@node3
"""
MPICH = "node1:4\nnode2:2 binding=user:0,1\nme@node3\n"


@pytest.mark.parametrize("text", [OPEN_MPI, MPICH])
def test_a_file_of_hosts_is_read_as_mpiexec_reads_it(text: str) -> None:
    def of_file(num_ranks: int | None = None) -> list[tuple[str, int]]:
        return [(each.name, each.num_ranks) for each in shares_of_file(text, "hosts", num_ranks)]

    assert of_file() == [("node1", 4), ("node2", 2), ("me@node3", 1)]
    assert of_file(5) == [("node1", 4), ("node2", 1)]
    with pytest.raises(ValueError, match="-n 8 does not fit --hostfile hosts, whose hosts have 7 slots"):
        of_file(8)


def test_hosts_of_a_file_without_numbers_share_the_ranks_and_one_that_stands_there_twice_has_two() -> None:
    assert [each.num_ranks for each in shares_of_file("a\n[::1]\n", "hosts", 5)] == [3, 2]
    assert shares_of_file("a\nb\na\n", "hosts") == allot("a:2,b:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "--hostfile hosts names no host"),
        ("a\nb slots=none\n", "--hostfile hosts, line 2: slots=none: expected a number of ranks"),
        ("a slots=0\n", "--hostfile hosts, line 1: slots=0"),
        ("a\n-oProxyCommand=x\n", "--hostfile hosts, line 2: '-oProxyCommand=x' is no host"),
    ],
)
def test_a_file_of_hosts_that_means_nothing_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shares_of_file(text, "hosts")
