"""The environment and the arguments of a worker, measured against what torchrun's agent gives to its workers."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.utils.api import macros

from multiworld.elastic.agent.environment import local_arguments, worker_variables
from multiworld.elastic.job.assignment import Assignment
from multiworld.elastic.job.options import JobOptions, RestartBudget
from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.world.launcher.launched import launched, most_processes

PLACE = Assignment(
    generation=9,
    restarts=2,
    rank=5,
    local_rank=1,
    node_rank=2,
    role_rank=4,
    world_size=12,
    local_world_size=2,
    num_nodes=6,
    role_world_size=11,
    master_addr="10.0.0.1",
    master_port=4242,
)
ENTRY = Entrypoint(
    kind=EntrypointKind.SCRIPT, target="prog.py", arguments=("--rank=${local_rank}", "$local_rank", "$$5")
)


def job(**changes: Any) -> JobOptions:
    settings: dict[str, Any] = {
        "entrypoint": ENTRY,
        "run_id": "job 7",
        "role": "trainer",
        "min_nodes": 6,
        "max_nodes": 6,
        "num_workers": 2,
        "budget": RestartBudget(max_restarts=3),
        **changes,
    }
    return JobOptions(**settings)


def variables(options: JobOptions, inherited: dict[str, str], place: Assignment = PLACE) -> dict[str, str]:
    return worker_variables(
        options, place, agent="agent-1", worker_id="5.2", error_file="/logs/error.json", inherited=inherited
    )


class _Rendezvous:
    use_agent_store = True

    def get_run_id(self) -> str:
        return "job 7"


def _torchrun_workers(
    inherited: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, virtual: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables and the arguments that torchrun's agent gives to the worker of ``PLACE``."""
    started: dict[str, Any] = {}

    class Context:
        def pids(self) -> dict[int, int]:
            return {}

    def start_processes(**given: Any) -> Context:
        started.update(given)
        return Context()

    monkeypatch.setattr(local_elastic_agent, "start_processes", start_processes)
    monkeypatch.setattr(os, "environ", dict(inherited))
    rendezvous: Any = _Rendezvous()
    spec = WorkerSpec(
        role="trainer",
        local_world_size=2,
        rdzv_handler=rendezvous,
        entrypoint="prog.py",
        args=ENTRY.arguments,
        max_restarts=3,
        virtual_local_rank=virtual,
    )
    agent = local_elastic_agent.LocalElasticAgent(spec, DefaultLogsSpecs(log_dir="/dev/null"))
    agent._remaining_restarts = spec.max_restarts - PLACE.restarts
    group: Any = WorkerGroup(spec)
    group.store, group.group_rank, group.group_world_size = object(), PLACE.node_rank, PLACE.num_nodes
    group.master_addr, group.master_port = PLACE.master_addr, PLACE.master_port
    for worker in group.workers:
        worker.global_rank, worker.world_size = PLACE.rank - 1 + worker.local_rank, PLACE.world_size
        worker.role_rank, worker.role_world_size = PLACE.role_rank - 1 + worker.local_rank, PLACE.role_world_size
    agent._start_workers(group)
    monkeypatch.undo()
    return started["envs"][PLACE.local_rank], started["args"][PLACE.local_rank]


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize(
    "inherited",
    [
        {"HOME": "/root"},
        {"CUDA_VISIBLE_DEVICES": "4, 6", "OMP_NUM_THREADS": "5", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        {"RANK": "77", "LOCAL_RANK": "7", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "of an outer launcher"},
    ],
)
def test_a_worker_finds_all_that_torchrun_gives_and_nothing_more_than_ours(
    inherited: dict[str, str], virtual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, arguments = _torchrun_workers(inherited, monkeypatch, virtual=virtual)
    ours = variables(job(virtual_local_rank=virtual), inherited)
    ours_only = {
        "TORCHELASTIC_ERROR_FILE": "/logs/error.json",  # torchrun adds these two elsewhere
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "MULTIWORLD_AGENT": "agent-1",
        "MULTIWORLD_WORKER": "5.2",
        "MULTIWORLD_JOB": "job 7",
        "MULTIWORLD_GENERATION": "9",
        "MULTIWORLD_MOST_PROCESSES": "12",
    }
    assert ours == {**inherited, **theirs, **ours_only}
    assert local_arguments(ENTRY, PLACE.local_rank) == arguments


def test_a_worker_of_ours_knows_who_launched_it() -> None:
    found = launched(variables(job(token="secret"), {"MULTIWORLD_TOKEN": "of an outer launcher"}))
    assert found is not None
    assert (found.agent, found.worker, found.generation, found.token) == ("agent-1", "5.2", 9, "secret")


def test_a_worker_knows_how_many_the_launcher_may_start() -> None:
    assert most_processes(variables(job(max_nodes=9), {})) == 18
    assert most_processes(variables(job(max_nodes=6, num_workers=1), {})) == 12  # other hosts have more than this one
    assert most_processes({}) == 0


def test_a_token_that_the_agent_has_is_kept_where_the_job_names_none() -> None:
    assert variables(job(), {"MULTIWORLD_TOKEN": "secret"})["MULTIWORLD_TOKEN"] == "secret"
    assert "MULTIWORLD_TOKEN" not in variables(job(), {})


@pytest.mark.parametrize(
    ("chosen", "inherited", "expected"), [(1, {}, "1"), (1, {"OMP_NUM_THREADS": "8"}, "8"), (None, {}, None)]
)
def test_the_number_of_threads_is_set_only_where_nobody_did(
    chosen: int | None, inherited: dict[str, str], expected: str | None
) -> None:
    assert variables(job(omp_num_threads=chosen), inherited).get("OMP_NUM_THREADS") == expected


def test_without_a_budget_programs_read_that_there_is_no_restart() -> None:
    assert variables(job(budget=None), {})["TORCHELASTIC_MAX_RESTARTS"] == "0"


def test_signals_are_named_as_the_user_did() -> None:
    found = variables(job(signals=(signal.SIGUSR1, signal.SIGTERM)), {})
    assert found["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGUSR1,SIGTERM"


def test_a_worker_without_a_device_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=4 names 1: lower --nproc-per-node"):
        variables(job(virtual_local_rank=True), {"CUDA_VISIBLE_DEVICES": "4"})


def test_the_inherited_variables_are_left_as_they_were() -> None:
    inherited = {"RANK": "1"}
    variables(job(), inherited)
    assert inherited == {"RANK": "1"}


def test_the_old_launcher_passes_the_local_rank_before_the_arguments() -> None:
    entry = Entrypoint(kind=EntrypointKind.SCRIPT, target="prog.py", arguments=("--local-rank=${local_rank}", "--x"))
    assert local_arguments(entry, 3) == (*macros.substitute([f"--local-rank={macros.local_rank}"], "3"), "--x")
