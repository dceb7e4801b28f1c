"""The main job's worker processes: a failure is told with its stderr, and none is left behind, stopped or not."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from multiworld.demo.crew import Crew, Worker, WorkerFailedError
from multiworld.demo.protocol import Notice, Role
from multiworld.testing.deadlines import scaled, wait_until

ROLE = Role(
    name="b1", number=0, store="tcp://127.0.0.1:1", backend="auto", token="t", lease_s=2.0, weights="/no/such/file"
)


def ignore(worker: Worker, notice: Notice) -> None:
    """Take no notice."""


async def test_a_worker_that_fails_is_told_with_its_stderr() -> None:
    async with contextlib.aclosing(Crew(ignore)) as crew:
        await crew.hire()
        worker = await asyncio.wait_for(crew.take_spare(), scaled(30))
        await crew.assign(worker, ROLE)
        with pytest.raises(WorkerFailedError, match=r"b1 .*ended with status 1(.|\n)*/no/such/file") as caught:
            await asyncio.wait_for(crew.failed, scaled(30))
        assert "FileNotFoundError" in caught.value.stderr


async def test_stopped_workers_and_spares_are_gone_after_closing() -> None:
    async with contextlib.aclosing(Crew(ignore)) as crew:
        await crew.hire()
        await crew.hire()
        stopped = await asyncio.wait_for(crew.take_spare(), scaled(30))
        spare = await asyncio.wait_for(crew.take_spare(), scaled(30))
        stopped.send_signal(signal.SIGSTOP)
    assert stopped.process.returncode == spare.process.returncode == -signal.SIGKILL


async def test_spares_that_were_not_needed_end_by_themselves() -> None:
    async with contextlib.aclosing(Crew(ignore)) as crew:
        spare = await crew.hire()
        await asyncio.wait_for(spare.ready.wait(), scaled(30))
        await crew.dismiss(timeout_s=scaled(30))
        assert spare.process.returncode == 0


async def test_spares_that_somebody_else_killed_or_stopped_are_not_taken() -> None:
    killed_by: list[str] = []

    def killed(worker: Worker, signal_name: str) -> bool:
        killed_by.append(signal_name)
        return True

    async with contextlib.aclosing(Crew(ignore, killed)) as crew:
        first, second = await crew.hire(), await crew.hire()
        for spare in (first, second):
            await asyncio.wait_for(spare.ready.wait(), scaled(30))
        first.process.send_signal(signal.SIGKILL)
        second.process.send_signal(signal.SIGSTOP)
        await asyncio.wait_for(first.process.wait(), scaled(30))
        assert wait_until(lambda: second.is_stopped, 10)
        taken = await asyncio.wait_for(crew.take_spare(), scaled(30))
        assert taken.number == 2
        assert taken.can_play
        taken.send_signal(signal.SIGKILL)
        await crew.dismiss(timeout_s=scaled(30))
        assert second.process.returncode == -signal.SIGKILL
    assert killed_by == ["SIGKILL"]
