"""Say what a parsed command line asks for, with the defaults that torchrun gives to what was left out."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import sys
import uuid
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from torch.distributed import run as torchrun

from ...process.spawn.entrypoint import Entrypoint, EntrypointKind
from ...wire.endpoints.bracketed import bracketed
from ...wire.endpoints.token import TOKEN_VARIABLE
from ..agent.environment import check_visible_devices
from ..job.options import ANY_PORT_HERE, DEFAULT_SHUTDOWN_S, JobOptions, LogOptions
from ..rendezvous.endpoint import STATIC_PORT
from ..schedulers.slurm import with_slurm_defaults
from .program_needs import modules_needed

logger = logging.getLogger(__name__)

START_METHODS = ("spawn", "fork", "forkserver")
STANDALONE = "standalone"  # TorchElastic's name for a rendezvous of one host
STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
UNINTERRUPTIBLE_VARIABLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
HERE = "127.0.0.1"  # torchrun's default of --master-addr
LOGS_SPECS = "torchrun.logs_specs"


def options_from(
    namespace: argparse.Namespace, environ: Mapping[str, str] = os.environ, *, may_run_apart: bool = True
) -> JobOptions:
    """Return what a parsed command line asks for. Raises ValueError, with one sentence, for what makes no sense.

    ``may_run_apart``: several hosts without a place to meet get a warning, as torchrun takes them; else they are
    refused.
    """
    namespace = with_slurm_defaults(namespace, environ)
    min_nodes, max_nodes, spare_nodes = _nodes(namespace.nnodes)
    if max_nodes > 1 and (reason := _why_nobody_comes(namespace)):
        if not may_run_apart:
            raise ValueError(reason)
        logger.warning("%s", reason)
    num_workers = _num_workers(namespace.nproc_per_node)
    virtual_local_rank = getattr(namespace, "virtual_local_rank", False)  # this and others: not in torch 2.6
    if virtual_local_rank:
        check_visible_devices(num_workers, environ)
    if namespace.start_method not in START_METHODS:  # argparse checks no default, so none from PET_START_METHOD
        raise ValueError(f"--start-method {namespace.start_method!r}: expected one of {', '.join(START_METHODS)}")
    entrypoint = _entrypoint(namespace, environ)
    return JobOptions(
        entrypoint=entrypoint,
        role=namespace.role,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        spare_nodes=spare_nodes,
        num_workers=num_workers,
        **_rendezvous(namespace, max_nodes, spare_nodes),
        local_addr=namespace.local_addr,
        host_name=namespace.host_name or None,
        restart=namespace.restart,
        budget=namespace.max_restarts,
        monitor_interval_s=namespace.monitor_interval,
        start_method=namespace.start_method,
        warm=namespace.warm,
        preload=namespace.preload or (modules_needed(entrypoint) if namespace.warm else ()),
        spares=namespace.spares,
        logs=_logs(namespace, environ),
        signals=signals_of(getattr(namespace, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")),
        shutdown_s=_shutdown_s(getattr(namespace, "shutdown_timeout", None), environ),
        event_log_handler=namespace.event_log_handler,
        numa_binding=getattr(namespace, "numa_binding", None),
        virtual_local_rank=virtual_local_rank,
        omp_num_threads=1 if num_workers > 1 and "OMP_NUM_THREADS" not in environ else None,
        lease_s=namespace.lease_s,
        cut_off_s=namespace.cut_off_timeout,
        progress_timeout_s=namespace.progress_timeout,
        uninterruptible_s=uninterruptible_s(environ),
        page=namespace.page,
        token=environ.get(TOKEN_VARIABLE) or None,
    )


def _nodes(text: str) -> tuple[int, int, int]:
    """Return the smallest and the largest number of hosts, and how many spare ones wait besides."""
    matched = re.fullmatch(r"(\d+)(?::(\d+))?(?:\+(\d+))?", text.strip())
    if matched is None:
        raise ValueError(
            f"--nnodes {text!r}: expected a number of hosts (2), a range (1:8), or either with spare hosts (2+1, 1:8+1)"
        )
    least, most, spare = matched.groups()
    return int(least), int(most or least), int(spare or 0)


def _num_workers(text: str) -> int:
    try:
        return int(torchrun.determine_local_world_size(text))
    except ValueError as error:
        raise ValueError(
            f"--nproc-per-node {text!r}: expected a number, auto, or a device that is here (cpu, gpu, xpu): {error}"
        ) from error


def _rendezvous(namespace: argparse.Namespace, max_nodes: int, spare_nodes: int) -> dict[str, Any]:
    config = _rendezvous_config(namespace.rdzv_conf)
    endpoint_given = namespace.rdzv_endpoint or namespace.master_port is not None
    if namespace.rdzv_backend == STANDALONE and (max_nodes > 1 or spare_nodes):
        raise ValueError(f"--rdzv-backend {STANDALONE} is for one host, but --nnodes is {namespace.nnodes}")
    is_alone = namespace.rdzv_backend == "static" and not endpoint_given and max_nodes == 1 and not spare_nodes
    if namespace.standalone or namespace.rdzv_backend == STANDALONE or is_alone:
        is_named = is_alone and namespace.rdzv_id not in ("", "none")  # which is torchrun's default
        run_id = namespace.rdzv_id if is_named else str(uuid.uuid4())
        return {"run_id": run_id, "rdzv_backend": "c10d", "rdzv_endpoint": ANY_PORT_HERE, "rdzv_config": config}
    place = {"run_id": namespace.rdzv_id, "rdzv_backend": namespace.rdzv_backend, "rdzv_config": config}
    if namespace.rdzv_backend != "static":
        if namespace.node_rank:
            logger.warning(
                "--node-rank is only for --rdzv-backend static: it is ignored with %s", place["rdzv_backend"]
            )
        return {**place, "rdzv_endpoint": namespace.rdzv_endpoint}
    if spare_nodes:
        raise ValueError(
            f"--nnodes {namespace.nnodes} has spare hosts, but --rdzv-backend static gives each host a fixed rank: "
            "choose another one and its --rdzv-endpoint"
        )
    port = STATIC_PORT if namespace.master_port is None else namespace.master_port
    host = bracketed(namespace.master_addr)
    return {**place, "rdzv_endpoint": namespace.rdzv_endpoint or f"{host}:{port}", "node_rank": namespace.node_rank}


def _why_nobody_comes(namespace: argparse.Namespace) -> str | None:
    """Return why other hosts cannot come, if nothing says where they meet; None: they may, or this host goes to one."""
    is_told = namespace.rdzv_backend != "static" or namespace.standalone or namespace.rdzv_endpoint
    if is_told or namespace.master_addr != HERE or namespace.node_rank:
        return None
    return (
        f"--nnodes {namespace.nnodes}, but no other host can come: without a rendezvous hosts meet at {HERE}, which is "
        "each host itself. Give all hosts the same --rdzv-backend c10d --rdzv-endpoint HOST:PORT --rdzv-id NAME, with "
        "the address of one of them, or the same --master-addr HOST and each its own --node-rank"
    )


def _rendezvous_config(text: str) -> dict[str, str]:
    config = {}
    for setting in text.strip().split(",") if text.strip() else ():
        key, _, value = (part.strip() for part in setting.partition("="))
        if not key or not value:
            raise ValueError(f"--rdzv-conf {text!r}: expected KEY=VALUE,KEY=VALUE,..., but found {setting!r}")
        config[key] = value
    return config


def _entrypoint(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Entrypoint:
    use_env = getattr(namespace, "use_env", True)  # only the old launcher's parser has it
    if namespace.no_python and not use_env:
        raise ValueError("--no-python needs --use-env here: an executable is not given --local-rank=N")
    kind = EntrypointKind.SCRIPT
    if not namespace.run_path:
        if namespace.no_python and namespace.module:
            raise ValueError("--no-python and --module exclude each other: a module is started by Python")
        if namespace.no_python:
            kind = EntrypointKind.COMMAND
        elif namespace.module:
            kind = EntrypointKind.MODULE
    _check_target(kind, namespace.training_script)
    python = None if namespace.run_path or namespace.no_python else environ.get("PYTHON_EXEC")
    return Entrypoint(
        kind=kind,
        target=namespace.training_script,
        arguments=(*(() if use_env else ("--local-rank=${local_rank}",)), *namespace.training_script_args),
        python=None if python == sys.executable else python,
    )


def _check_target(kind: EntrypointKind, target: str) -> None:
    """Raise ValueError, once on each host, for what every worker would fail to start, again at every restart."""
    if kind is EntrypointKind.SCRIPT and (reason := _why_not_there(target)):
        raise ValueError(reason)
    if kind is EntrypointKind.COMMAND and shutil.which(target) is None:
        if os.path.isfile(target):
            raise ValueError(
                f"{target} is not an executable: chmod +x it, or leave out --no-python for a Python script"
            )
        raise ValueError(f"no such command: {target} (--no-python starts an executable)")


def _why_not_there(script: str) -> str | None:
    try:
        os.stat(script)
    except (FileNotFoundError, NotADirectoryError):
        return f"no such script: {script}"
    except OSError as error:  # in a folder that this user may not enter, say
        return f"the script {script} cannot be read: {error.strerror}"
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        return f"the folder {script} has no __main__.py: give a Python program"
    return None


def _logs(namespace: argparse.Namespace, environ: Mapping[str, str]) -> LogOptions:
    for option, text in (("--redirects", namespace.redirects), ("--tee", namespace.tee)):
        if STREAMS.fullmatch(text) is None:
            raise ValueError(
                f"{option} {text!r}: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such a number for each "
                "local rank (0:1,1:3)"
            )
    return LogOptions(
        log_dir=namespace.log_dir,
        redirects=namespace.redirects,
        tee=namespace.tee,
        local_ranks_filter=_local_ranks(getattr(namespace, "local_ranks_filter", "")),
        duplicate_stdout_filters=tuple(getattr(namespace, "duplicate_stdout_filters", ())),
        duplicate_stderr_filters=tuple(getattr(namespace, "duplicate_stderr_filters", ())),
        logs_specs=_logs_specs(namespace.logs_specs),
        prefix_template=namespace.log_line_prefix_template or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
    )


def _local_ranks(text: str) -> frozenset[int] | None:
    try:
        return frozenset(int(rank) for rank in text.split(",")) if text else None
    except ValueError as error:
        raise ValueError(f"--local-ranks-filter {text!r}: expected local ranks, such as 0,2") from error


def _logs_specs(name: str | None) -> str | None:
    if name is not None and not metadata.entry_points(group=LOGS_SPECS, name=name):
        there = ", ".join(sorted(metadata.entry_points(group=LOGS_SPECS).names)) or "none"
        raise ValueError(
            f"--logs-specs {name!r}: no installed package has an entry point {LOGS_SPECS} of that name: {there}"
        )
    return name


def signals_of(text: str) -> tuple[signal.Signals, ...]:
    """Return the signals that a list such as ``SIGTERM,SIGINT`` names. Raises ValueError."""
    chosen = [name for name in (part.strip() for part in text.split(",")) if name]
    for name in chosen:
        if name not in signal.Signals.__members__:
            raise ValueError(f"--signals-to-handle: there is no signal {name!r} here; expected names such as SIGUSR1")
        if name in ("SIGKILL", "SIGSTOP"):
            raise ValueError(f"--signals-to-handle: no process can handle {name}")
    return tuple(dict.fromkeys(signal.Signals[name] for name in chosen))


def uninterruptible_s(environ: Mapping[str, str]) -> float | None:
    """Return how long a worker may sleep in the kernel, as PyTorch's variable says it; None: for ever."""
    text = environ.get(UNINTERRUPTIBLE_VARIABLE, "")
    try:
        seconds = float(text or 0)
    except ValueError as error:
        raise ValueError(f"{UNINTERRUPTIBLE_VARIABLE} {text!r}: expected a number of seconds") from error
    return seconds if seconds > 0 else None


def _shutdown_s(given: int | None, environ: Mapping[str, str]) -> float:
    name, text = "--shutdown-timeout", str(given)
    if given is None:
        name, text = (
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(DEFAULT_SHUTDOWN_S)),
        )
    try:
        seconds = int(text)
    except ValueError:
        seconds = -1
    if seconds < 0:
        raise ValueError(f"{name} {text!r}: expected a whole number of seconds >= 0")
    return float(seconds)
