"""The scenario in which nothing is asked: what a deployment costs by being there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..proc import cpu_s, private_bytes, rss_bytes
from .system import Deployer, Shape

__all__ = ["idle"]

SETTLE_S = 3.0
BARE = "import torch, sys; torch.set_num_threads(1); print(flush=True); sys.stdin.read()"


async def idle(deploy: Deployer, options: Mapping[str, Any]) -> dict[str, float]:
    """Two trivial stages: ``cpu`` is the share of a core of all processes, that of the user too.

    ``private_bytes``: the memory that a process shares with no other, of the one that has most. ``bare_torch_bytes``:
    the same of a process that has only imported torch (where the interpreter has it).
    """
    async with deploy(Shape(graph="trivial")) as system:
        await system.infer(system.sample(0)[0], request_id=None, timeout_s=60)
        await asyncio.sleep(SETTLE_S)
        own, others = os.getpid(), system.processes()
        replicas = [pid for stage in ("add", "mul") for pid in system.pids(stage)]
        before = cpu_s([own, *others])
        await asyncio.sleep(options["seconds"])
        used_s = cpu_s([own, *others]) - before
        return {
            "cpu": 100 * used_s / options["seconds"],
            "beside": len(others) - len(replicas),
            "rss_bytes": rss_bytes(others),
            "private_bytes": max(map(private_bytes, others)),
            "bare_torch_bytes": await asyncio.to_thread(_bare_torch_bytes),
        }


def _bare_torch_bytes() -> int:
    with subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        found = private_bytes(bare.pid)
        bare.kill()
    return found
