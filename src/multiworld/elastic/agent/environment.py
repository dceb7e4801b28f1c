"""Build the environment and the arguments of one worker: torchrun's contract, and our own variables. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping

from ...process.spawn.entrypoint import Entrypoint
from ...world.launcher.launched import MOST_VARIABLE, Launch
from ..job.assignment import Assignment
from ..job.options import JobOptions


def worker_variables(
    options: JobOptions,
    assignment: Assignment,
    *,
    agent: str,
    worker_id: str,
    error_file: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the complete environment of a worker: what it inherits from its agent, and its place in the job.

    ``agent`` is the address at which the worker reaches its agent. Raises ValueError if ``--virtual-local-rank`` has no
    device for this worker.
    """
    budget = options.budget
    launch = Launch(
        agent=agent, worker=worker_id, job=options.run_id, generation=assignment.generation, token=options.token or ""
    )
    variables = {
        **inherited,
        "RANK": str(assignment.rank),
        "GROUP_RANK": str(assignment.node_rank),
        "ROLE_RANK": str(assignment.role_rank),
        "ROLE_NAME": options.role,
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.num_nodes),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "MASTER_ADDR": assignment.master_addr,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(budget.max_restarts if budget is not None else 0),
        "TORCHELASTIC_RUN_ID": options.run_id,
        # MASTER_ADDR:MASTER_PORT is a store that an agent serves anew for each generation: no worker may serve it
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(each.name for each in options.signals),
        **launch.to_environment(),
        MOST_VARIABLE: str(max(assignment.world_size, options.max_nodes * options.num_workers)),
        **_device_variables(options, assignment.local_rank, inherited),
    }
    variables.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if options.omp_num_threads is not None:
        variables.setdefault("OMP_NUM_THREADS", str(options.omp_num_threads))
    return variables


def local_arguments(entrypoint: Entrypoint, local_rank: int) -> tuple[str, ...]:
    """Return what a worker gets after the name of its program: with its local rank for ``${local_rank}``."""
    # a template and not str.replace: torchrun takes $local_rank for it too, and $$ for a dollar sign
    return tuple(
        string.Template(argument).safe_substitute(local_rank=str(local_rank)) for argument in entrypoint.arguments
    )


def check_visible_devices(num_workers: int, inherited: Mapping[str, str]) -> None:
    """Raise ValueError if ``--virtual-local-rank`` would leave one of ``num_workers`` without a device."""
    devices = _visible_devices(inherited)
    if devices is not None and num_workers > len(devices):
        raise ValueError(
            f"--virtual-local-rank needs a device for each of {num_workers} workers, but CUDA_VISIBLE_DEVICES="
            f"{inherited['CUDA_VISIBLE_DEVICES']} names {len(devices)}: lower --nproc-per-node, or name more devices"
        )


def device_indices(inherited: Mapping[str, str], num_devices: int, num_workers: int) -> tuple[str, ...]:
    """Return what numbers a host's workers know their devices by: one for each worker where there is no device."""
    listed = [device for device in _visible_devices(inherited) or () if device]
    return tuple(listed or map(str, range(num_devices or num_workers)))


def _device_variables(options: JobOptions, local_rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    if not options.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    check_visible_devices(local_rank + 1, inherited)
    devices = _visible_devices(inherited)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank) if devices is None else devices[local_rank]}


def _visible_devices(inherited: Mapping[str, str]) -> list[str] | None:
    """Return the devices that workers may be given, None if all."""
    listed = inherited.get("CUDA_VISIBLE_DEVICES")
    return None if listed is None else [device.strip() for device in listed.split(",")]
