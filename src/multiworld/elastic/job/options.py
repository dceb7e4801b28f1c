"""What a user asks the launcher for, checked on construction. Pure: values, no process, socket or clock."""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...observe.sites import is_loopback
from ...process.spawn.entrypoint import Entrypoint
from ...wire.endpoints.token import check_token
from ...world.liveness import DEFAULT_LEASE_S, check_lease

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs

ANY_PORT_HERE = "localhost:0"
DEFAULT_PAGE = ("127.0.0.1", 0)
DEFAULT_SHUTDOWN_S = 30
"""For workers to end in, before they are killed; torchrun has the same."""
EMBEDDED = ("c10d", "embedded")
MORE_RESTARTS = "--max-restarts N allows N"


class RestartPolicy(enum.Enum):
    """What is started again when a worker fails."""

    WORKER = "worker"  # that worker
    WORLD = "world"  # and the workers that share a world with it
    ALL = "all"  # every worker of the job: torchrun's way
    AUTO = "auto"  # WORKER for programs that use multiworld, ALL for others


@dataclass(frozen=True, kw_only=True)
class RestartBudget:
    """How often one worker (under ``all``: the job) may be started again: ``max_restarts`` times within ``per_s``."""

    max_restarts: int = 0
    per_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must be >= 0, got {self.max_restarts}")
        if self.per_s is not None and not self.per_s > 0:
            raise ValueError(f"the time of a restart budget must be positive, got {self.per_s:g} s")

    def __str__(self) -> str:
        return f"{self.max_restarts}" if self.per_s is None else f"{self.max_restarts}/{self.per_s:g}s"


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Where the output of workers goes, as torchrun's options of the same names say.

    ``redirects`` and ``tee``: ``"0"`` to ``"3"`` for all local ranks, or ``"0:1,1:3"`` for some: 1 is stdout, 2 stderr.
    """

    log_dir: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    """An entry point of the group ``torchrun.logs_specs``."""
    specs: LogsSpecs | None = None
    """Those themselves, in place of all above but the filters."""
    prefix_template: str | None = None
    """``${role_name}``, ``${rank}``, ``${local_rank}`` and ``${generation}`` are replaced; default: see ``logs``."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """One launch on one host. Agents of one job must agree on all but what names this host."""

    entrypoint: Entrypoint
    run_id: str = "none"
    role: str = "default"
    min_nodes: int = 1
    max_nodes: int = 1
    spare_nodes: int = 0
    num_workers: int = 1
    """Workers on this host, torchrun's nproc_per_node."""
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_config: Mapping[str, str] = field(default_factory=dict)
    node_rank: int | None = None
    """Only with the static rendezvous."""
    local_addr: str | None = None
    host_name: str | None = None
    """What people call this host; None: by its own name."""
    restart: RestartPolicy = RestartPolicy.AUTO
    budget: RestartBudget | None = None
    """None: not given, so none for plain programs and three in ten minutes for those that use multiworld."""
    default_budget: RestartBudget | None = None
    """Of this command, in place of these."""
    monitor_interval_s: float = 0.1
    start_method: str = "spawn"
    warm: bool = True
    """Fork Python workers from a process that has imported torch, instead of starting interpreters."""
    preload: tuple[str, ...] = ()
    spares: int = 0
    logs: LogOptions = field(default_factory=LogOptions)
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    shutdown_s: float = DEFAULT_SHUTDOWN_S
    event_log_handler: str = "null"
    numa_binding: str | None = None
    virtual_local_rank: bool = False
    omp_num_threads: int | None = None
    """``OMP_NUM_THREADS`` for workers whose environment does not set it; None: leave it unset."""
    lease_s: float = DEFAULT_LEASE_S
    cut_off_s: float | None = None
    """How long to wait, without workers, for most of the other hosts; None: as long as for hosts at first."""
    page: tuple[str, int] | None = DEFAULT_PAGE
    """Where the coordinator serves its page (a numeric address; port 0: a free one), or None for nowhere."""
    progress_timeout_s: float | None = None
    """A worker that has called ``multiworld.elastic.progress`` once is hung if it does not for this long."""
    uninterruptible_s: float | None = None
    """How long a worker may be in uninterruptible sleep before the job is given up, or None for ever."""
    only_rank_0_reads: bool = False
    """Whether the launcher's standard input is rank 0's alone, as under mpiexec; else all workers here inherit it."""
    is_announced: bool = False
    """Whether to say at the start which job this is, and where to look at it."""
    more_restarts: str = MORE_RESTARTS
    """How the user of this command has more restarts; said when none is left."""
    token: str | None = None
    """None: a random one if all agents are on this host, else ``MULTIWORLD_TOKEN``."""

    @property
    def is_alone(self) -> bool:
        """Whether no other host can take part: nobody else knows where the job meets."""
        return self.is_for_one_host and self.meeting_place.endswith(":0")

    @property
    def meeting_place(self) -> str:
        """The endpoint; where torchrun's backend c10d has one without being told, any port of this host, for one host.

        As nobody else comes, it needs no number that others know, by which jobs of one host would meet each other.
        """
        needs_none = self.rdzv_backend in EMBEDDED and self.is_for_one_host
        if needs_none and self.rdzv_config.get("store_type", "").lower() == "file":  # the endpoint is a path
            return ANY_PORT_HERE
        return self.rdzv_endpoint or (ANY_PORT_HERE if needs_none else "")

    @property
    def is_for_one_host(self) -> bool:
        return self.max_nodes == 1 and not self.spare_nodes

    def __post_init__(self) -> None:
        if not 0 < self.min_nodes <= self.max_nodes:
            raise ValueError(f"--nnodes {self.min_nodes}:{self.max_nodes} is impossible: expected 0 < MIN <= MAX")
        if self.num_workers < 1:
            raise ValueError(f"--nproc-per-node {self.num_workers} is impossible: expected at least 1")
        if self.spare_nodes < 0 or self.spares < 0:
            raise ValueError(f"a number of spares is negative: {min(self.spare_nodes, self.spares)}")
        if self.token is not None:
            check_token(self.token, "token=")
        if self.page is not None and not is_loopback(self.page[0]) and not self.token:
            raise ValueError(
                f"--page {self.page[0]}:{self.page[1]} can be read by other hosts: set MULTIWORLD_TOKEN, which readers "
                "then have to show, or serve the page at 127.0.0.1"
            )
        if self.node_rank is not None and not 0 <= self.node_rank < self.max_nodes:
            raise ValueError(f"--node-rank {self.node_rank} is impossible with {self.max_nodes} nodes")
        check_lease(self.lease_s, "--lease-s")
