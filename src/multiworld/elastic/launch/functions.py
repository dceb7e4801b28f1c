"""Launch a function or a command from a program or a notebook, as ``torch.distributed.launcher`` does."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic import metrics
from torch.distributed.elastic.metrics.api import MetricsConfig
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher import api as torch_launcher

from ...process.spawn.entrypoint import Entrypoint, EntrypointKind
from ...wire.endpoints.token import TOKEN_VARIABLE
from ..agent.environment import check_visible_devices
from ..job.options import DEFAULT_SHUTDOWN_S, JobOptions, LogOptions, RestartBudget
from .arguments import signals_of, uninterruptible_s
from .function_call import ResultError, load_results, name_of, pickled_call

__all__ = ["LaunchConfig", "ResultError", "elastic_launch", "launch_agent"]

PROGRAM = "multiworld.elastic.function_program"


@dataclass
class LaunchConfig(torch_launcher.LaunchConfig):
    """PyTorch's ``LaunchConfig``: the same fields, some with other defaults.

    ``rdzv_backend`` is ``c10d``, which needs no endpoint on one host. ``logs_specs``: None for no files but those of
    errors, which are removed if all went well.
    """

    rdzv_backend: str = "c10d"

    def __post_init__(self) -> None:
        given = self.logs_specs
        if given is None:
            self.logs_specs = DefaultLogsSpecs(log_dir=os.devnull)  # else a folder is made that nobody removes
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.logs_specs = given


class elastic_launch:  # noqa: N801 - PyTorch's name for it
    """Runs a function, or a command, in all workers of a job: ``elastic_launch(config, function)(*arguments)``.

    The call returns ``{rank: what the function returned}`` for the workers of this host; for a command, None for each.
    Raises what ``multiworld.run.main`` raises: ``ChildFailedError`` for workers that failed, ValueError for what cannot
    be followed or sent to workers. Raises ``ResultError`` for a worker that ended well and has returned nothing.
    ``config`` is a ``LaunchConfig``, ours or PyTorch's.
    """

    def __init__(self, config: torch_launcher.LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, args)


def launch_agent(
    config: torch_launcher.LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]
) -> dict[int, Any]:
    """Do what ``elastic_launch`` does."""
    from .launcher import launch  # what makes no sense is told without it

    metrics.initialize_metrics(MetricsConfig(config.metrics_cfg))
    if isinstance(entrypoint, str):
        command = Entrypoint(kind=EntrypointKind.COMMAND, target=entrypoint, arguments=tuple(map(str, args)))
        return dict.fromkeys(launch(_options(config, command)).values())
    call = pickled_call(entrypoint, args)
    with tempfile.TemporaryDirectory(prefix="multiworld_call_") as name:
        folder = Path(name)
        (folder / "call").write_bytes(call)
        program = Entrypoint(
            kind=EntrypointKind.MODULE,
            target=PROGRAM,
            arguments=(str(folder / "call"), name),
            named=name_of(entrypoint),
        )
        return load_results(folder, launch(_options(config, program)), function=name_of(entrypoint))


def _options(config: torch_launcher.LaunchConfig, entrypoint: Entrypoint) -> JobOptions:
    given = {name: str(value) for name, value in config.rdzv_configs.items() if value is not None}
    node_rank = given.pop("rank", None)
    virtual_local_rank = getattr(config, "virtual_local_rank", False)  # this and others: not in torch 2.6
    if virtual_local_rank:
        check_visible_devices(config.nproc_per_node, os.environ)
    numa = getattr(config, "numa_options", None)
    shutdown_s = getattr(config, "shutdown_timeout", None)
    return JobOptions(
        entrypoint=entrypoint,
        run_id=config.run_id or str(uuid.uuid4()),
        role=config.role,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        num_workers=config.nproc_per_node,
        rdzv_backend=config.rdzv_backend,
        rdzv_endpoint=config.rdzv_endpoint,
        rdzv_config=given,
        node_rank=_node_rank(config.rdzv_backend, node_rank),
        local_addr=config.local_addr,
        budget=RestartBudget(max_restarts=config.max_restarts),
        more_restarts="max_restarts=N in LaunchConfig allows N",
        monitor_interval_s=config.monitor_interval,
        start_method=config.start_method,
        logs=LogOptions(
            specs=config.logs_specs,
            duplicate_stdout_filters=tuple(getattr(config, "duplicate_stdout_filters", None) or ()),
            duplicate_stderr_filters=tuple(getattr(config, "duplicate_stderr_filters", None) or ()),
            prefix_template=config.log_line_prefix_template,
        ),
        signals=signals_of(getattr(config, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")),
        shutdown_s=float(DEFAULT_SHUTDOWN_S if shutdown_s is None else shutdown_s),
        event_log_handler=config.event_log_handler,
        numa_binding=None if numa is None else numa.affinity_mode.value,
        virtual_local_rank=virtual_local_rank,
        uninterruptible_s=uninterruptible_s(os.environ),
        token=os.environ.get(TOKEN_VARIABLE) or None,
    )


def _node_rank(backend: str, given: str | None) -> int | None:
    if backend != "static":
        return None
    if given is None or not given.isdecimal():
        raise ValueError("rdzv_backend='static' needs the rank of this host: rdzv_configs={'rank': 0}")
    return int(given)
