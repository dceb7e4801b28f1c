"""A member that plays its part in checks, besides all that members do at a test's word."""

from __future__ import annotations

import asyncio
import faulthandler
import traceback
from typing import Any

import torch

import multiworld as mw

from ..member_program import MemberProgram, be
from ..worker import report
from .catalogue import ConformanceError
from .checks import CHECKS
from .stage import Role, Stage

STUCK_S = 3.0  # a member whose event loop is blocked shows where, after its time


async def run(**options: Any) -> None:
    """Be a member until told to ``quit``; ``options`` go to ``WorldManager``."""
    torch.set_num_threads(1)  # the members share the machine: threads that spin would hold up each other
    await be(ConformanceMember, **options)


class ConformanceMember(MemberProgram):
    """The commands ``perform``, ``proceed`` and ``dismiss``."""

    def __init__(self, manager: mw.WorldManager) -> None:
        super().__init__(manager)
        self._meetings: dict[str, asyncio.Future[list[Any]]] = {}

    async def perform(self, **fields: Any) -> None:
        """Play a part; report ``ended`` with what went wrong, if anything did."""
        role = Role(**fields)

        async def exchange(value: Any) -> list[Any]:
            meeting: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._meetings[role.label] = meeting
            report("meeting", label=role.label, value=value)
            return await meeting

        stage = Stage(self._manager, role, exchange)
        faulthandler.dump_traceback_later(role.timeout_s + STUCK_S)
        failure = await _failure(stage)
        report("ended", label=role.label, failure=failure)
        if failure is not None:
            stage.abort()
        faulthandler.cancel_dump_traceback_later()

    async def proceed(self, label: str, values: list[Any]) -> None:
        """All members have met, and gave these values."""
        self._meetings.pop(label).set_result(values)

    async def dismiss(self, label: str) -> None:
        """Another member has failed, so they never meet. That is its failure, and none of this one."""
        self._meetings.pop(label).set_exception(ConformanceError(""))


async def _failure(stage: Stage) -> str | None:
    part = asyncio.ensure_future(_play(stage))
    try:
        done, _ = await asyncio.wait([part], timeout=stage.role.timeout_s)
        if not done:
            return f"hangs after {stage.role.timeout_s:g} s in: {stage.pending.describe()}"
    finally:
        part.cancel()
    error = part.exception()
    if error is None or isinstance(error, ConformanceError):
        return None if error is None else str(error)
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"raised {type(error).__name__}: {error}\n{trace}"


async def _play(stage: Stage) -> None:
    part = CHECKS[stage.role.check].part
    assert part is not None, stage.role.check
    await part(stage)
    await stage.leave()
