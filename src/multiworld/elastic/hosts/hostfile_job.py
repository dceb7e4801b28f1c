"""Decide what each host of a hostfile is told, so that their agents make one job. Pure."""

from __future__ import annotations

import os.path
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .far_order import END_S, FAR_END, SILENT_S, FarOrder
from .hostfile import HostLine

SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""Nobody can answer a question; a host that is gone is seen. What the user's own command says comes first: it holds."""
READY = "multiworld far end: the agent of {host} was started"
FIRST_MEETING_S = 30
"""How long the first hosts wait for those that are slower to start: all were reached, or the job has ended."""


@dataclass(frozen=True, kw_only=True)
class HostfileJob:
    """One job with an agent on each host. ``variables`` are set on each; nothing else of this environment is.

    ``options`` and ``program``: of the launcher. The hosts meet at the first one, at ``port``.
    """

    hosts: tuple[HostLine, ...]
    tag: str
    options: tuple[str, ...]
    program: tuple[str, ...]
    nnodes: str
    port: int
    directory: str
    python: str
    ssh: tuple[str, ...] = ("ssh",)
    here: frozenset[int] = frozenset()
    """Which of the hosts are this one, and need no ssh."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # the token is among them
    rdzv_conf: str = ""
    end_s: float = END_S

    @property
    def labels(self) -> tuple[str, ...]:
        """What people call the hosts: with the port where a host stands there twice."""
        times = Counter(each.host for each in self.hosts)
        return tuple(
            each.host if times[each.host] == 1 else f"{each.address}:{each.port or 'ssh'}" for each in self.hosts
        )

    def command(self, index: int) -> list[str]:
        """Return what starts the far end on that host. It holds no secret: everybody there can see it."""
        if index in self.here:
            return [sys.executable, "-m", FAR_END]
        host = self.hosts[index]
        is_ssh = os.path.basename(self.ssh[0]) == "ssh"
        return [
            *self.ssh,
            *(word for option in SSH_OPTIONS if is_ssh for word in ("-o", option)),
            *(() if host.port is None else ("-p", str(host.port))),
            host.name,
            f"{shlex.quote(self.python)} -m {FAR_END}",
        ]

    def ready(self, index: int) -> str:
        """Return the line by which the far end says that it has begun."""
        return READY.format(host=self.labels[index])

    def order(self, index: int) -> FarOrder:
        """Return what the far end is told over its standard input."""
        devices = self.hosts[index].devices
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {}
        return FarOrder(
            host=self.labels[index],
            directory=self.directory,
            variables={**self.variables, **visible},
            arguments=("train", *self._launch(index)),
            module="multiworld",
            command="multiworld train",
            ready=self.ready(index),
            silent_s=SILENT_S,
            leaves=self.tag,
            end_s=self.end_s,
        )

    def _launch(self, index: int) -> tuple[str, ...]:
        settings = (f"last_call_timeout={FIRST_MEETING_S}", self.rdzv_conf, f"is_host={int(index == 0)}")
        return (
            *self.options,
            f"--nnodes={self.nnodes}",
            f"--nproc-per-node={self.hosts[index].slots}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.hosts[0].address}:{self.port}",
            f"--rdzv-id={self.tag}",
            f"--rdzv-conf={','.join(each for each in settings if each)}",
            f"--host-name={self.labels[index]}",
            *self.program,
        )
