"""The process of one replica: it comes up, does what the controller says, and ends when told to."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from typing import Any

import torch

from ..model.user_main import prepare_main
from ..world.manager import WorldManager
from .blueprint import Blueprint
from .member.control_line import ControlLine
from .member.files import MemberFiles
from .member.member import ReplicaMember, place_of

__all__ = ["main"]

LAST_WORDS_S = 1.0
SWITCH_S = 0.0005  # who computes beside the event loop gets the interpreter back soon
PR_SET_TIMERSLACK = 29
SLACK_NS = 1000


def main(arguments: dict[str, Any]) -> None:
    """Run until told to leave, or SIGTERM.

    ``arguments``: member, stage, folder, job, token, store, lease_s, host (the numeric address of this machine), and
    controller (where that listens), whom the files are asked of where the folder is not.
    """
    sys.setswitchinterval(SWITCH_S)
    _wake_on_time()
    torch.set_grad_enabled(False)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    files = MemberFiles(arguments)
    blueprint = files.blueprint()
    prepare_main(blueprint.main, elsewhere=files.is_elsewhere)
    asyncio.run(_run(arguments, blueprint, files))


def _wake_on_time() -> None:
    """Have timers of this process end when they are due: by default Linux lets each wait 50 µs longer, for others."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)


async def _run(arguments: dict[str, Any], blueprint: Blueprint, files: MemberFiles) -> None:
    manager = WorldManager(
        job=arguments["job"], token=arguments["token"], lease_s=arguments["lease_s"], host=arguments.get("host")
    )
    async with manager:
        policy = str(blueprint.options.get("policy", "shortest-queue"))
        backend = str(blueprint.options.get("backend", "auto"))
        place = place_of(arguments["member"], blueprint.graph, arguments["store"], policy, backend)
        member = ReplicaMember(manager, place, host=arguments.get("host", ""), files=files)
        line = ControlLine(manager, place.member, place.store, hello=member.hello, on_order=member.obey)
        member.line = line
        running = asyncio.ensure_future(line.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.left.set)
        try:
            await member.left.wait()
            await line.flush(LAST_WORDS_S)
        finally:
            running.cancel()
            member.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await running
