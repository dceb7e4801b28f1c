"""Who plays which role of the rhombus, and who takes over from a replica that is lost, whoever did that to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from .crew import Crew, Worker
from .pipeline import REPLICAS
from .protocol import Notice, Role
from .record import Fault, Record

__all__ = ["Cast", "Stage"]


class Stage(Protocol):
    """What the cast needs of the main job."""

    def note(self, text: str, *, alarming: bool = False) -> None:
        """Tell those who watch."""

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so; ``StepTimeoutError`` if that takes too long."""


class Cast:
    """The workers that play. A replica that was lost, to a planned fault or to any other, is replaced by a spare."""

    def __init__(self, crew: Crew, record: Record, stage: Stage, role: Callable[[str, int], Role]) -> None:
        """``role`` returns the order for the role of that name, played by the worker of that number."""
        self.playing: dict[str, Worker] = {}
        self._crew, self._record, self._stage, self._role = crew, record, stage, role
        self._unplanned: asyncio.Queue[Fault] = asyncio.Queue()
        self._irreplaceable: Fault | None = None

    async def play(self, name: str) -> Worker:
        """Give the role to a spare."""
        worker = await self._crew.take_spare()
        self.playing[name] = worker
        await self._crew.assign(worker, self._role(name, worker.number))
        return worker

    def has_answered(self, replica: str) -> bool:
        """Whether an answer has come that whoever plays it now had a part in."""
        return self.playing[replica].number in self._record.first_answer

    @property
    def why_over(self) -> str:
        """Why the pipeline cannot go on, if somebody else has ended what it has only one of."""
        fault = self._irreplaceable
        if fault is None:
            return ""
        return (
            f"{fault.kind}: not by this demo. The pipeline has only one {fault.replica}, so this ends it; "
            f"it would go on without {' or '.join(REPLICAS)}."
        )

    # ---- faults

    async def replace(self, fault: Fault) -> None:
        """Once its neighbours know of the loss, let another worker play the replica, and wait until it has answered."""
        await self._stage.until(lambda: fault.detection_s is not None, f"detection of {fault.kind}")
        replacement = await self.play(fault.replica)
        fault.replacement = replacement.number
        self._stage.note(f"worker {replacement.label} takes over")
        await self._stage.until(lambda: self.has_answered(fault.replica), f"first answer after {fault.kind}")
        fault.full_strength_at = self._record.first_answer[self.playing[fault.replica].number]
        self._stage.note(f"full strength again {fault.recovery_s:.3f} s after {fault.kind}")

    async def replace_unplanned(self) -> None:
        """Replace whichever replicas are lost without a plan, for ever."""
        waiting = asyncio.ensure_future(self._unplanned.get())
        replacing: set[asyncio.Future[None]] = set()
        try:
            while True:
                tasks: set[asyncio.Future[Any]] = {waiting, *replacing}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for ended in [task for task in replacing if task.done()]:
                    replacing.discard(ended)
                    ended.result()
                if waiting.done():
                    await self._crew.hire()  # a spare more: those that are there may be meant for planned faults
                    replacing.add(asyncio.ensure_future(self.replace(waiting.result())))
                    waiting = asyncio.ensure_future(self._unplanned.get())
        finally:
            waiting.cancel()
            for replacement in replacing:
                replacement.cancel()
            await asyncio.gather(waiting, *replacing, return_exceptions=True)

    def killed(self, worker: Worker, signal_name: str) -> bool:
        """A worker was killed by somebody else. Whether the pipeline can do without it: a replica is replaced."""
        if not self._crew.closing:
            self._stage.note(f"worker {worker.label} was killed by {signal_name}, not by this demo", alarming=True)
            if worker.role:
                self._lose(worker, signal_name, at=time.monotonic())
        return worker.role in ("", *REPLICAS)

    def broke(self, process: str, notice: Notice) -> None:
        """A member tells of a broken world that no known fault explains: its other member was lost, to another."""
        if self._irreplaceable is not None:  # all the others end because of it
            self._irreplaceable.generations[notice.world] = notice.generation
            return
        role = next(name for name in notice.world.split("-") if name != process)
        worker = self.playing.get(role)
        if worker is None or notice.error in ("PeerLeftError", "StaleGenerationError"):
            return
        earlier = self._record.last_fault_of(role)
        if earlier is not None and self._record.worlds_of(worker.number).get(notice.world) != notice.generation:
            # It was of one before this, who was lost before it could tell that it had joined.
            earlier.generations[notice.world] = notice.generation
            return
        if self._record.fault_in(worker.number) is None:
            self._stage.note(f"worker {worker.label} was lost, not by this demo: {notice.error}", alarming=True)
        self._lose(worker, notice.error, at=notice.at).generations[notice.world] = notice.generation

    def _lose(self, worker: Worker, how: str, *, at: float) -> Fault:
        """Note the fault that took a worker, once, and have a replica replaced."""
        fault = self._record.fault_in(worker.number)
        if fault is None:
            worker.let_go = True
            worlds = self._record.worlds_of(worker.number)
            fault = self._record.suffer(f"loss of {worker.label}, {how}", worker.role, worker.number, worlds, at=at)
            if worker.role in REPLICAS:
                self._unplanned.put_nowait(fault)
            else:
                self._irreplaceable = fault
        return fault
