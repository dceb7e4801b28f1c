"""The sides of a comparison: ours, torch.distributed.rpc, and the peers that have interpreters of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..side import Side

__all__ = [
    "INSTALL",
    "MONARCH_ACTOR",
    "MONARCH_ENGINE",
    "OURS",
    "OURS_SHM",
    "OURS_TCP",
    "RAY_ACTOR",
    "RAY_REF",
    "RPC_REF",
    "RPC_SHM",
    "RPC_TCP",
    "Missing",
    "Peer",
    "find_peers",
]

QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LOOK_S = 120.0
INSTALL = """peers, in an environment of their own:
  python3 -m venv PEERS; PEERS/bin/pip install torch==2.13.0 numpy ray==2.60.0 torchmonarch==0.7.0
  export RAY_PYTHON=PEERS/bin/python MONARCH_PYTHON=PEERS/bin/python"""


@dataclass(frozen=True)
class Peer:
    """One way to use a peer. ``system``: the module that does; ``package``: what it imports."""

    name: str
    package: str
    system: str
    variant: str


@dataclass(frozen=True)
class Missing:
    """A peer that is not here, and why."""

    name: str
    reason: str


RPC_SHM = Peer("rpc", "torch", "rpc_workers", "shm")
RPC_TCP = Peer("rpc over TCP", "torch", "rpc_workers", "tcp")
RPC_REF = Peer("rpc, RRefs", "torch", "rpc_workers", "rref")
RAY_ACTOR = Peer("Ray", "ray", "ray_actors", "actor")
RAY_REF = Peer("Ray, ObjectRefs", "ray", "ray_actors", "ref")
MONARCH_ENGINE = Peer("Monarch's tensor engine", "monarch", "monarch_engine", "engine")
MONARCH_ACTOR = Peer("Monarch's actors", "monarch", "monarch_engine", "actor")


def _side(name: str, interpreter: str, system: str, variant: str) -> Side:
    command = (interpreter, "-m", f"{__package__}.measure", system, variant)
    return Side(name=name, command=command, environment=QUIET)


OURS = _side("ours", sys.executable, "ours", "")
OURS_TCP = _side("ours over TCP", sys.executable, "ours", "tcp")
OURS_SHM = _side("ours over shm", sys.executable, "ours", "shm")


def find_peers(wanted: Sequence[Peer], interpreters: Mapping[str, str | None]) -> list[Side | Missing]:
    """Return each as a side, or as missing. ``interpreters``: of each package."""
    reasons = {package: _reason(package, interpreters.get(package)) for package in {peer.package for peer in wanted}}
    found: list[Side | Missing] = []
    for peer in wanted:
        if reason := reasons[peer.package]:
            found.append(Missing(peer.name, reason))
        else:
            found.append(_side(peer.name, str(interpreters[peer.package]), peer.system, peer.variant))
    return found


def _reason(package: str, interpreter: str | None) -> str:
    """Return why it cannot be measured; empty if it can."""
    if not interpreter:
        return f"missing: no interpreter with {package} was given, see --help"
    try:
        command = (interpreter, "-W", "ignore", "-c", f"import {package}")
        looked = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"missing: {interpreter} does not run: {error}"
    last = looked.stderr.strip().rpartition("\n")[2]
    return f"missing: {interpreter} cannot import {package}: {last}" if looked.returncode else ""
