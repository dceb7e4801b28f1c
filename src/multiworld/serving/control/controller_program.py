"""The process of a controller of its own: a host process starts it, and starts it again when it ends too early."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from ...wire.endpoints.token import weakness_is_told
from ...wire.messages import from_json
from ...world.manager import WorldManager
from .controller import Controller
from .requests import answer
from .spec import DeploymentSpec, SpecRecord

ENDED_BY_A_SIGNAL: Final = 143  # as a shell shows SIGTERM


def main(arguments: object) -> None:
    """Run until a command asks to stop, or SIGTERM or SIGINT comes.

    ``arguments``: what ``DeploymentSpec.to_json`` returned, with fixed ports in ``store`` and ``address``, and
    perhaps with ``grace_s``.
    """
    record = from_json(SpecRecord, arguments)
    weakness_is_told(record.token)  # to the one that chose it
    if not asyncio.run(_run(DeploymentSpec.of(record), record.grace_s)):
        raise SystemExit(ENDED_BY_A_SIGNAL)  # its host starts it again, unless that ends too


async def _run(spec: DeploymentSpec, grace_s: float) -> bool:
    """A signal ends the controller alone: whoever sends it to all members of a host needs no help with the others.

    Return whether the deployment has ended.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with WorldManager(job=spec.job, token=spec.token, lease_s=spec.lease_s, host=spec.address[0]) as manager:
        controller = Controller(spec, manager=manager, answer=answer)
        await controller.start()
        asked, told = asyncio.ensure_future(controller.stop_asked.wait()), asyncio.ensure_future(ended.wait())
        await asyncio.wait({asked, told}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if controller.stop_asked.is_set():
            stopping = asyncio.ensure_future(controller.stop(grace_s))
            await asyncio.wait({stopping, told}, return_when=asyncio.FIRST_COMPLETED)  # our own host ends us too
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        told.cancel()
        await controller.aclose()
        return controller.stop_asked.is_set()
