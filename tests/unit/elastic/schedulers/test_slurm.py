"""What ``multiworld run`` makes of the variables of a Slurm step, and what it leaves to the user."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from multiworld.elastic.job.options import JobOptions
from multiworld.elastic.launch.arguments import options_from
from multiworld.elastic.launch.parser import run_parser
from multiworld.elastic.schedulers.slurm import expand_hosts, slurm_step

STEP = {  # of a batch job's first srun, in its second task, as Slurm 22.05 sets them
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "node[01-04]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[02-04]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_GPUS_ON_NODE": "8",
}


@pytest.fixture(autouse=True)
def no_defaults_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NNODES", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_BACKEND", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(f"PET_{name}", raising=False)


def options(*line: str, environ: Mapping[str, str] = STEP) -> JobOptions:
    return options_from(run_parser().parse_args([*line, __file__]), environ)


def meeting(found: JobOptions) -> tuple[int, int, str, str, str, int | None]:
    return (
        found.min_nodes,
        found.max_nodes,
        found.rdzv_backend,
        found.rdzv_endpoint,
        found.run_id,
        found.node_rank,
    )


def test_a_step_with_a_task_on_each_host_needs_no_option() -> None:
    assert meeting(options()) == (3, 3, "static", "node02:23456", "slurm-123456.0", 1)


def test_all_tasks_of_a_step_find_the_same_place_and_each_its_own_rank() -> None:
    found = [options(environ={**STEP, "SLURM_NODEID": str(task), "SLURM_PROCID": str(task)}) for task in range(3)]
    assert len({(each.rdzv_endpoint, each.run_id, each.max_nodes) for each in found}) == 1
    assert [each.node_rank for each in found] == [0, 1, 2]


@pytest.mark.parametrize(
    "other",
    [{"SLURM_RESTART_COUNT": "1"}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "123457"}],
    ids=["requeued", "another step", "another job"],
)
def test_a_job_that_was_queued_again_meets_neither_its_old_self_nor_its_neighbours(other: dict[str, str]) -> None:
    old, new = options(), options(environ={**STEP, **other})
    assert old.run_id != new.run_id
    assert old.rdzv_endpoint != new.rdzv_endpoint


def test_ports_stay_below_those_of_outgoing_connections() -> None:
    ports = {
        int(options(environ={**STEP, "SLURM_JOB_ID": str(job)}).rdzv_endpoint.rpartition(":")[2])
        for job in (1, 9_999, 10_000, 4_000_000_000)
    }
    assert all(20000 <= port < 30000 for port in ports)


def test_what_the_user_says_wins() -> None:
    assert meeting(options("--nnodes=2")) == (2, 2, "static", "node02:23456", "slurm-123456.0", 1)
    assert meeting(options("--rdzv-id=mine")) == (3, 3, "static", "node02:23456", "mine", 1)
    assert meeting(options("--node-rank=2"))[-1] == 2
    assert meeting(options("--rdzv-backend=c10d", "--rdzv-endpoint=head:1")) == (
        *(3, 3, "c10d", "head:1"),
        *("slurm-123456.0", None),
    )
    assert meeting(options("--master-addr=head", "--master-port=2"))[3:] == ("head:2", "slurm-123456.0", 1)
    assert meeting(options("--rdzv-endpoint=head:1")) == (3, 3, "static", "head:1", "slurm-123456.0", 1)
    assert meeting(options("--rdzv-endpoint=head:1", "--nnodes=2:3"))[2:4] == ("c10d", "head:1")


def test_where_nothing_is_left_open_the_variables_do_not_matter() -> None:
    line = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head:1", "--rdzv-id=mine")
    assert meeting(options(*line, environ={**STEP, "SLURM_STEP_NUM_NODES": "2"}))[2:5] == ("c10d", "head:1", "mine")


def test_variables_of_the_user_win_like_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2:3")
    monkeypatch.setenv("PET_RDZV_ID", "mine")
    assert meeting(options()) == (2, 3, "c10d", "node02:23456", "mine", None)


def test_hosts_that_come_and_go_or_wait_as_spares_get_no_fixed_ranks() -> None:
    assert meeting(options("--nnodes=1:3")) == (1, 3, "c10d", "node02:23456", "slurm-123456.0", None)
    assert meeting(options("--nnodes=2+1"))[2:] == ("c10d", "node02:23456", "slurm-123456.0", None)


def test_etcd_keeps_its_own_endpoint() -> None:
    found = options("--rdzv-backend=etcd", "--rdzv-endpoint=keeper:2379")
    assert meeting(found) == (3, 3, "etcd", "keeper:2379", "slurm-123456.0", None)


@pytest.mark.parametrize("line", [("--standalone",), ("--nnodes=1",)])
def test_each_task_may_be_a_job_of_its_own(line: tuple[str, ...]) -> None:
    found = options(*line)
    assert (found.max_nodes, found.rdzv_endpoint) == (1, "localhost:0")
    assert "slurm" not in found.run_id


@pytest.mark.parametrize(
    "environ",
    [
        {name: value for name, value in STEP.items() if "STEP" not in name},  # a batch script, or a shell of salloc's
        {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"},
        {**STEP, "TORCHELASTIC_RUN_ID": "outer"},
        {**STEP, "MULTIWORLD_WORKER": "3"},
        {},
    ],
    ids=["batch script", "one task", "worker of torchrun", "worker of ours", "no Slurm"],
)
def test_outside_a_step_of_several_tasks_nothing_changes(environ: dict[str, str]) -> None:
    assert slurm_step(environ) is None
    assert options(environ=environ).rdzv_endpoint == "localhost:0"


def test_several_tasks_on_a_host_are_refused_unless_the_user_counts_them() -> None:
    crowded = {
        **STEP,
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_TASKS_PER_NODE": "3,2,1",
        "SLURM_PROCID": "4",
    }
    with pytest.raises(ValueError, match=r"6 tasks on 3 hosts.*--ntasks-per-node=1"):
        options(environ=crowded)
    assert meeting(options("--nnodes=6", environ=crowded)) == (6, 6, "static", "node02:23456", "slurm-123456.0", 4)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SLURM_STEP_NUM_NODES", "2", "contradict"),
        ("SLURM_STEP_NODELIST", "node[3-1]", "no list of hosts"),
        ("SLURM_STEP_TASKS_PER_NODE", "1x3", "expected such as"),
        ("SLURM_JOB_ID", "", "SLURM_JOB_ID and SLURM_JOBID are not set"),
        ("SLURM_NODEID", "one", "SLURM_NODEID=one"),
    ],
)
def test_variables_that_make_no_sense_are_named(name: str, value: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        options(environ={**STEP, name: value})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu5", ["gpu5"]),
        ("node[01-03,7],gpu5", ["node01", "node02", "node03", "node7", "gpu5"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("rack[1-2]n[0-1].x", ["rack1n0.x", "rack1n1.x", "rack2n0.x", "rack2n1.x"]),
        ("127.0.0.[1-2]", ["127.0.0.1", "127.0.0.2"]),
    ],
)
def test_host_lists_are_expanded_in_order(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


@pytest.mark.parametrize("text", ["", "a,,b", "a,", "n[1-", "n]1", "n[]", "n[a-b]", "n[3-1]", "n[1,]", "a b"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no list of hosts"):
        expand_hosts(text)
