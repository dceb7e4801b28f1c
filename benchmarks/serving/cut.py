"""The scenario of a network that is cut between two hosts, each with one of two replicas; and how it is staged."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from .faults import SHARE, loaded, until
from .figures import longest_gap_s
from .load import RIGHT
from .system import Deployer, Shape
from .traffic import capacity_of

__all__ = ["cut", "far_host"]

PORT = 29600
FAR = "far"
AFTER_S = 5.0


async def cut(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Lose all packets to and from the other host, at 70 % of what one replica can do.

    ``worst_s``: the longest answer of a request that was due then, or in the second before.
    ``silent_s``: the longest time without an answer. ``replaced_s``: until there are two replicas on this host.
    """
    outcomes: dict[str, float] = {}
    far = options["far"]
    shape = Shape(
        graph="rhombus", replicas=2, service_s=options["service_s"], far=far, address=options["address"], port=PORT
    )
    async with deploy(shape) as system:
        per_s = await capacity_of(system)
        gone = system.pids_at("left", far)
        assert len(gone) == 1, f"of two replicas, {len(gone)} are on the other host"
        async with loaded(system, SHARE * per_s / 2, outcomes) as load:
            began = time.perf_counter()
            await asyncio.to_thread(_drop, far)
            replaced_s = await until(partial(system.is_whole, "left", 2, gone))
            await asyncio.sleep(max(0.0, began + AFTER_S - time.perf_counter()))
            ended = time.perf_counter()
            moments = [each.ended_at for each in load.answers if each.outcome == RIGHT]
            await asyncio.to_thread(_heal)
        return {
            "worst_s": max(load.between(began - 1.0, ended), default=float("inf")),
            "silent_s": longest_gap_s(moments, began, ended),
            "replaced_s": replaced_s,
            **outcomes,
        }


def far_host(controller: str, address: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that has another host take part, and the environment that both ends need."""
    environment = {**os.environ, "MULTIWORLD_TOKEN": secrets.token_hex(16)}
    program = [sys.executable, "-m", "multiworld.serving.hosts", f"{controller}:{PORT}"]
    return [*program, "--name", FAR, "--address", address], environment


def _drop(address: str) -> None:
    for chain, end in (("INPUT", "-s"), ("OUTPUT", "-d")):
        subprocess.run(["iptables", "-w", "-A", chain, end, address, "-j", "DROP"], check=True)


def _heal() -> None:
    for chain in ("INPUT", "OUTPUT"):
        subprocess.run(["iptables", "-w", "-F", chain], check=True)
