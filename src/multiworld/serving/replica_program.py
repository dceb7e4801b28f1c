"""The process of one replica: it comes up, does what the controller says, and ends when told to."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from ..model.user_main import prepare_main
from ..wire.endpoints.token import weakness_is_told
from ..wire.messages import Json
from ..world.manager import WorldManager
from .blueprint import Blueprint
from .member.arguments import MemberArguments
from .member.control_line import ControlLine
from .member.files import MemberFiles
from .member.member import ReplicaMember, place_of

LAST_WORDS_S = 1.0
SWITCH_S = 0.0005  # who computes beside the event loop gets the interpreter back soon
PR_SET_TIMERSLACK = 29
SLACK_NS = 1000


def main(arguments: Mapping[str, Json]) -> None:
    """Run until told to leave, or SIGTERM.

    ``arguments``: of ``MemberArguments``. Raises MessageError for others.
    """
    given = MemberArguments.of(arguments)
    sys.setswitchinterval(SWITCH_S)
    _wake_on_time()
    torch.set_grad_enabled(False)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    weakness_is_told(given.token)  # to the one that chose it
    files = MemberFiles(Path(given.folder), given.controller, given.token)
    blueprint = files.blueprint()
    prepare_main(blueprint.main, elsewhere=files.is_elsewhere)
    asyncio.run(_run(given, blueprint, files))


def _wake_on_time() -> None:
    """Have timers of this process end when they are due: by default Linux lets each wait 50 µs longer, for others."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS), 0, 0, 0)


async def _run(given: MemberArguments, blueprint: Blueprint, files: MemberFiles) -> None:
    manager = WorldManager(job=given.job, token=given.token, lease_s=given.lease_s, host=given.host)
    async with manager:
        options = blueprint.options
        policy, backend = options.get("policy", "shortest-queue"), options.get("backend", "auto")
        place = place_of(given.member, blueprint.graph, given.store, policy, backend)
        member = ReplicaMember(manager, place, host=given.host or "", files=files)
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
