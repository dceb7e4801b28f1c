"""Say where a job's hosts meet, from the variables that ``srun`` gives to each task. Pure: no ``scontrol``, no DNS."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...world.launcher.launched import WORKER_VARIABLE

FIRST_PORT, NUM_PORTS = 20000, 10000  # below Linux's ports for outgoing connections
PER_STEP, PER_RESTART = 1009, 101
NO_NNODES, NO_RUN_ID, NO_MASTER = "1:1", "none", "127.0.0.1"  # what torchrun's parser says when nothing was given
MEETING = ("static", "c10d", "embedded")  # the others have an endpoint of their own, such as etcd's
PART = re.compile(r"([^,\[\]\s]+)|\[([^\[\]]*)\]|(,)")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, kw_only=True)
class SlurmStep:
    """The step that ``srun`` has started, as one of its tasks sees it. ``restarts``: of the job, after a requeue."""

    job_id: int
    step_id: int
    restarts: int
    hosts: tuple[str, ...]
    tasks_per_host: tuple[int, ...]
    host_index: int
    task: int

    @property
    def run_id(self) -> str:
        """Differs from that of every other step, and from the same step's before the job was queued again."""
        return f"slurm-{self.job_id}.{self.step_id}" + (f"-r{self.restarts}" if self.restarts else "")

    @property
    def endpoint(self) -> str:
        """The first host, and a port by which jobs, steps and restarts with near numbers do not meet each other."""
        numbers = self.job_id + PER_STEP * self.step_id + PER_RESTART * self.restarts
        return f"{self.hosts[0]}:{FIRST_PORT + numbers % NUM_PORTS}"

    @property
    def has_one_task_per_host(self) -> bool:
        return set(self.tasks_per_host) == {1}


def slurm_step(environ: Mapping[str, str]) -> SlurmStep | None:
    """Return the step of several tasks to which this process belongs, if it does.

    None also in a batch script, and in a worker of a launcher: what that one starts is no part of the step. Raises
    ValueError for variables that contradict each other.
    """
    if WORKER_VARIABLE in environ or "TORCHELASTIC_RUN_ID" in environ or "SLURM_STEP_ID" not in environ:
        return None
    if _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") < 2:
        return None
    hosts = expand_hosts(_text(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    num_hosts = _number(environ, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    per_host = _counts(_text(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if not len(hosts) == num_hosts == len(per_host):
        raise ValueError(
            f"Slurm's variables contradict each other: {num_hosts} hosts, {len(hosts)} in the node list, tasks for "
            f"{len(per_host)}. Give --nnodes, --rdzv-backend c10d, --rdzv-endpoint and --rdzv-id yourself"
        )
    return SlurmStep(
        job_id=_number(environ, "SLURM_JOB_ID", "SLURM_JOBID"),
        step_id=_number(environ, "SLURM_STEP_ID"),
        restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
        hosts=hosts,
        tasks_per_host=per_host,
        host_index=_number(environ, "SLURM_NODEID"),
        task=_number(environ, "SLURM_PROCID"),
    )


def with_slurm_defaults(namespace: argparse.Namespace, environ: Mapping[str, str]) -> argparse.Namespace:
    """Return the parsed command line with what it left open filled in from the Slurm step, if there is one.

    Raises ValueError if there are several tasks on a host and ``--nnodes`` does not say that this is meant.
    """
    if namespace.standalone or namespace.nnodes == "1":
        return namespace  # each task is a job of its own
    is_master_given = namespace.master_port is not None or namespace.master_addr != NO_MASTER
    is_place_given = bool(namespace.rdzv_endpoint) or is_master_given
    is_number_given = namespace.nnodes != NO_NNODES and namespace.rdzv_id != NO_RUN_ID
    if is_place_given and is_number_given and namespace.rdzv_backend != "static":
        return namespace  # nothing is open, whatever the variables say
    step = slurm_step(environ)
    if step is None:
        return namespace
    filled = argparse.Namespace(**vars(namespace))
    if namespace.nnodes == NO_NNODES:
        if not step.has_one_task_per_host:
            raise ValueError(
                f"srun has started {sum(step.tasks_per_host)} tasks on {len(step.hosts)} hosts, but one launcher per "
                "host is wanted, which starts the workers there: srun --ntasks-per-node=1 (or give --nnodes yourself)"
            )
        filled.nnodes = str(len(step.hosts))
    if namespace.rdzv_id == NO_RUN_ID:
        filled.rdzv_id = step.run_id
    if namespace.rdzv_backend not in MEETING:
        return filled
    if not is_place_given:
        filled.rdzv_endpoint = step.endpoint
    if namespace.rdzv_backend == "static":
        if filled.nnodes.isdecimal() or is_master_given:
            filled.node_rank = namespace.node_rank or (step.host_index if step.has_one_task_per_host else step.task)
        else:
            filled.rdzv_backend = "c10d"  # hosts come and go, or wait as spares: they have no fixed ranks
    return filled


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``node[01-03,7],gpu5`` in its order; several brackets in a name multiply.

    Raises ValueError for what is no host list.
    """
    hosts: list[str] = []
    choices: list[list[str]] = []
    end = 0
    for part in PART.finditer(text):
        if part.start() != end:
            break
        end = part.end()
        name, numbers, comma = part.groups()
        if comma is None:
            choices.append([name] if name is not None else _numbers(numbers, text))
            continue
        hosts += _products(choices, text)
        choices = []
    if end != len(text):
        raise ValueError(f"{text!r} is no list of hosts such as node[01-03,7],gpu5: what is {text[end:]!r}?")
    return (*hosts, *_products(choices, text))


def _products(choices: list[list[str]], text: str) -> list[str]:
    if not choices:
        raise ValueError(f"{text!r} is no list of hosts such as node[01-03,7],gpu5: a name is empty")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(text: str, whole: str) -> list[str]:
    """Return the numbers of one bracket, as wide as the first one of their range is written."""
    numbers = []
    for part in text.split(","):
        matched = RANGE.fullmatch(part)
        first, last = matched.groups() if matched is not None else ("1", "0")
        last = first if last is None else last
        if int(last) < int(first):
            raise ValueError(f"{whole!r} is no list of hosts such as node[01-03,7],gpu5: what is {part!r}?")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as ``2(x3),1``."""
    counts: list[int] = []
    for part in text.split(","):
        matched = REPEATED.fullmatch(part)
        if matched is None:
            raise ValueError(f"Slurm's variables say {text!r} for the tasks of each host: expected such as 2(x3),1")
        count, times = matched.groups()
        counts += [int(count)] * int(times or 1)
    return tuple(counts)


def _text(environ: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that is set: a step's own before its job's."""
    found = next((environ[name] for name in names if environ.get(name)), None)
    if found is None:
        raise ValueError(f"this is a task of a Slurm step, but {' and '.join(names)} are not set")
    return found


def _number(environ: Mapping[str, str], *names: str) -> int:
    text = _text(environ, *names)
    if not text.isdecimal():
        raise ValueError(f"{names[0]}={text}: expected a number, as Slurm sets it")
    return int(text)
