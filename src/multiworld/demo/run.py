"""The main job: train, start the processes, serve under load, injure them, and check every single answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import torch

import multiworld as mw

from .answers import Checker
from .crew import Crew, Worker, WorkerFailedError
from .display import Display, Status
from .faults import MIN_CALM_S, PlannedFault, plan_faults
from .front import Front
from .ledger import RequestLedger
from .options import Options
from .pipeline import REPLICAS, Rhombus, edge
from .protocol import Notice, Role
from .record import Broken, Record
from .report import Report
from .summary import summarize
from .trained import Trained, train_model
from .worker import notice_of

__all__ = ["StepTimeoutError", "run"]

PLAYERS = ("a", *REPLICAS, "c")
REFRESH_S = 0.25
STEP_LIMIT_S = 30.0
"""How long one step may take (a detection, a replacement's first answer) before the run is given up."""


class StepTimeoutError(Exception):
    """A step of the main job did not happen in time; the message names it."""


async def run(options: Options, display: Display) -> Report:
    """Run the main job and return what happened, also when it failed on the way. Sets torch to one thread."""
    job = _Job(options, display)
    error = ""
    try:
        await job.perform()
    except (WorkerFailedError, StepTimeoutError, mw.MultiworldError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    report = summarize(options, job.plan, job.record, job.ledger, job.checker, job.load, error=error)
    display.finish(report)
    return report


class _Job:
    def __init__(self, options: Options, display: Display) -> None:
        self.options, self._display = options, display
        self.plan = plan_faults(seconds=options.seconds, seed=options.seed) if options.inject_faults else ()
        self.record = Record()
        self.ledger = RequestLedger(window=options.window, deadline_s=options.replay_after_s)
        self.checker: Checker | None = None
        self.load: tuple[float, float] | None = None  # begin and end, monotonic
        self._began = time.monotonic()
        self._playing: dict[str, Worker] = {}
        self._changed = asyncio.Event()
        self._load_ended = False

    async def perform(self) -> None:
        with tempfile.TemporaryDirectory(prefix="multiworld-demo-") as folder:
            token = secrets.token_hex(16)
            async with (
                contextlib.aclosing(Crew(self._on_notice)) as crew,
                mw.WorldManager(job="demo", token=token, lease_s=self.options.lease_s) as manager,
            ):
                try:
                    await _run_beside(
                        self._serve(crew, manager, token, Path(folder) / "weights.pt"),
                        self._watch_own_worlds(manager.events()),
                        self._show(),
                        crew.failed,
                    )
                finally:
                    self.record.closing(at=time.monotonic())

    async def _serve(self, crew: Crew, manager: mw.WorldManager, token: str, weights: Path) -> None:
        num_workers = len(PLAYERS) + len(self.plan)  # a warm spare for each fault
        self._note(f"starting {num_workers} processes; training the model (seed {self.options.seed})")
        for _ in range(num_workers):
            await crew.hire()
        trained = await train_model(seed=self.options.seed, micro_batch_size=self.options.micro_batch_size)
        self._note(f"trained in {trained.took_s:.1f} s: {trained.accuracy:.1%} of {trained.num_images} held-out images")
        torch.save(trained.weights, weights)
        self.checker = Checker(trained.logits, trained.labels)

        store = manager.serve_store("tcp://127.0.0.1:0")
        rhombus = Rhombus(store=store, backend=self.options.backend)
        order = _Order(crew, store, self.options, token, str(weights))
        self._playing = {name: await order.play(name) for name in PLAYERS}
        front = await Front.join(manager, rhombus, self.ledger)
        await _run_beside(self._answer(front, trained), self._conduct(order))

        self._note("load ended, everything answered; taking the pipeline down")
        self.record.closing(at=time.monotonic())
        crew.closing = True
        await front.leave()
        await crew.dismiss(timeout_s=STEP_LIMIT_S)

    async def _answer(self, front: Front, trained: Trained) -> None:
        checker = self.checker
        assert checker is not None
        async with contextlib.aclosing(front.serve(self._requests(trained.batches))) as answers:
            async for answer in answers:
                checker.check(answer.request, answer.logits)
                num_images, now = checker.images_in(answer.request), time.monotonic()
                self.record.answered(answer.request, answer.worker, num_images, replayed=answer.replayed, at=now)
                self._changed.set()

    def _requests(self, batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        while not self._load_ended:
            for batch in batches:
                if self._load_ended:
                    return
                yield batch

    async def _conduct(self, order: _Order) -> None:
        """Begin to measure at full strength, inject each fault in its time, and end the load."""
        await self._until(lambda: all(self._has_answered(name) for name in REPLICAS), "first answers of both replicas")
        begin = time.monotonic()
        self._note(f"full load on {len(self.record.worlds)} worlds")
        for planned in self.plan:
            await _sleep_until(max(begin + planned.at_s, time.monotonic() + MIN_CALM_S))
            await self._injure(planned, order)
        await _sleep_until(max(begin + self.options.seconds, time.monotonic() + MIN_CALM_S))
        self.load = (begin, time.monotonic())
        self._load_ended = True

    async def _injure(self, planned: PlannedFault, order: _Order) -> None:
        victim = self._playing[planned.replica]
        worlds = (edge("a", planned.replica), edge(planned.replica, "c"))
        fault = self.record.inject(planned.name, planned.replica, victim.number, worlds, at=time.monotonic())
        victim.send_signal(signal.SIGKILL if planned.kind == "kill" else signal.SIGSTOP)
        self._note(f"{planned.name}: worker {victim.label}", alarming=True)
        await self._until(lambda: fault.detection_s is not None, f"detection of {planned.name}")
        self._playing[planned.replica] = replacement = await order.play(planned.replica)
        fault.replacement = replacement.number
        self._note(f"worker {replacement.label} takes over")
        await self._until(lambda: self._has_answered(planned.replica), f"first answer after {planned.name}")
        fault.full_strength_at = self.record.first_answer[replacement.number]
        self._note(f"full strength again {fault.recovery_s:.3f} s after {planned.name}")
        if planned.kind == "freeze":
            victim.send_signal(signal.SIGCONT)  # it must find out by an error that the others went on without it
            await self._until(
                lambda: bool(fault.fenced_by), f"an error in the worker that was woken after {planned.name}"
            )
            self._note(f"worker {victim.label} was woken and fenced off: {fault.fenced_by}")
            victim.send_signal(signal.SIGKILL)

    def _has_answered(self, replica: str) -> bool:
        return self._playing[replica].number in self.record.first_answer

    async def _watch_own_worlds(self, events: AsyncIterator[mw.Event]) -> None:
        async for event in events:
            self._happened("front", notice_of(event))

    def _on_notice(self, worker: Worker, notice: Notice) -> None:
        self._happened(worker.role, notice)

    def _happened(self, process: str, notice: Notice) -> None:
        where = f"world {notice.world} (generation {notice.generation})"
        if notice.kind == "WorldFormed":
            view = self.record.worlds.get(notice.world)
            if view is not None and view.generation < notice.generation:
                self._note(f"{where} formed again")
            self.record.formed(notice.world, notice.generation)
        elif notice.kind == "WorldBroken":
            broken = Broken(process, notice.world, notice.generation, notice.error, notice.text)
            fault = self.record.broke(broken, at=notice.at)
            if fault is not None:
                self._note(f"{process}: {where} broke after {notice.at - fault.at:.3f} s: {notice.error}")
            elif broken in self.record.broken_without_reason:
                self._note(f"{process}: {where} broke WITHOUT REASON: {notice.text}", alarming=True)
        elif notice.kind == "WorldLeft":
            self.record.left(notice.world, notice.generation)
        self._changed.set()

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_LIMIT_S
        while not condition():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise StepTimeoutError(f"{what}: not within {STEP_LIMIT_S:g} s") from None

    async def _show(self) -> None:
        """Tell the display how things stand, several times a second."""
        rates: list[float] = []
        seen = 0
        while True:
            await asyncio.sleep(REFRESH_S)
            num_images = self.checker.num_images if self.checker is not None else 0
            rates.append((num_images - seen) / REFRESH_S)
            seen = num_images
            self._display.update(
                Status(
                    elapsed_s=time.monotonic() - self._began,
                    throughput=rates,
                    num_answered=num_images,
                    num_in_flight=len(self.ledger.unanswered),
                    worlds=self.record.worlds,
                    workers={name: worker.label for name, worker in self._playing.items()},
                )
            )

    def _note(self, text: str, *, alarming: bool = False) -> None:
        self._display.note(time.monotonic() - self._began, text, alarming=alarming)


class _Order:
    """Gives roles to spare workers."""

    def __init__(self, crew: Crew, store: str, options: Options, token: str, weights: str) -> None:
        self._crew, self._store, self._options, self._token, self._weights = crew, store, options, token, weights

    async def play(self, name: str) -> Worker:
        """Return the worker that has just been given the role."""
        worker = await self._crew.take_spare()
        role = Role(
            name=name,
            number=worker.number,
            store=self._store,
            backend=self._options.backend,
            token=self._token,
            lease_s=self._options.lease_s,
            weights=self._weights,
        )
        await self._crew.assign(worker, role)
        return worker


async def _sleep_until(at: float) -> None:
    await asyncio.sleep(at - time.monotonic())


async def _run_beside(main: Coroutine[Any, Any, None], *background: Awaitable[None]) -> None:
    """Run until ``main`` ends; what fails first ends everything, and the rest is cancelled."""
    main_task = asyncio.ensure_future(main)
    tasks = [main_task, *map(asyncio.ensure_future, background)]
    pending = set(tasks)
    try:
        while not main_task.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
