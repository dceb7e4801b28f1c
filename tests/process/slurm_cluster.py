"""A Slurm of two nodes on this machine, for one test: on loopback, without munge, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from multiworld.testing import wait_until

NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo")
NODES = ("127.0.0.1", "127.0.0.2")
"""Names of nodes that are addresses at once: no name service knows this cluster."""


def why_no_slurm() -> str | None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)}): apt-get install slurmctld slurmd slurm-client"
    return None if os.geteuid() == 0 else "Slurm's daemons are started as root here"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start it, and give the environment in which ``srun`` finds it."""
    config = folder / "slurm.conf"
    config.write_text(_config(folder, _free_ports(3)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_"))}
    environment["SLURM_CONF"] = str(config)
    with ExitStack() as stack:
        for command in (
            ["slurmctld", "-D", "-c"],
            *(["slurmd", "-D", "-N", node] for node in NODES),
        ):
            log = stack.enter_context(open(folder / f"{'-'.join(command)}.out", "wb"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(_end, daemon)
        _await_idle_nodes(environment)
        yield environment


def _config(folder: Path, ports: list[int]) -> str:
    return f"""\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
{_node(NODES[0], ports[1])}
{_node(NODES[1], ports[2])}
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP
"""


def _node(name: str, port: int) -> str:
    return f"NodeName={name} NodeHostname=localhost NodeAddr={name} Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"


def _await_idle_nodes(environment: dict[str, str]) -> None:
    command = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
    told = ""

    def are_idle() -> bool:
        nonlocal told
        asked = subprocess.run(command, env=environment, capture_output=True, text=True)
        told = asked.stdout.strip() or asked.stderr.strip()
        return told == str(len(NODES))

    if not wait_until(are_idle, 10.0, poll_s=0.05):
        raise RuntimeError(f"the nodes of Slurm do not come up: {told or 'none is idle'}")


def _free_ports(num_ports: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
