"""The main job: train, start the processes, serve under load, injure them, and check every single answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import multiworld as mw

from .answers import Checker
from .cast import Cast
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
        error = job.why_over or f"{type(failure).__name__}: {failure}"
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
        self._cast: Cast | None = None
        self._changed = asyncio.Event()
        self._load_ended = False

    async def perform(self) -> None:
        with tempfile.TemporaryDirectory(prefix="multiworld-demo-") as folder:
            token = secrets.token_hex(16)
            async with (
                contextlib.aclosing(Crew(self._on_notice, self._on_killed)) as crew,
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

    @property
    def why_over(self) -> str:
        """Why it had to end early, if somebody else made it so."""
        return "" if self._cast is None else self._cast.why_over

    async def _serve(self, crew: Crew, manager: mw.WorldManager, token: str, weights: Path) -> None:
        num_workers = len(PLAYERS) + len(self.plan)  # a warm spare for each fault
        self.note(f"starting {num_workers} processes; training the model (seed {self.options.seed})")
        for _ in range(num_workers):
            await crew.hire()
        trained = await train_model(seed=self.options.seed, micro_batch_size=self.options.micro_batch_size)
        self.note(f"trained in {trained.took_s:.1f} s: {trained.accuracy:.1%} of {trained.num_images} held-out images")
        torch.save(trained.weights, weights)
        self.checker = Checker(trained.logits, trained.labels)

        store = manager.serve_store("tcp://127.0.0.1:0")
        rhombus = Rhombus(store=store, backend=self.options.backend)
        self._cast = cast = Cast(crew, self.record, self, partial(self._role, store, token, str(weights)))
        for name in PLAYERS:
            await cast.play(name)
        front = await Front.join(manager, rhombus, self.ledger)
        await _run_beside(self._answer(front, trained), self._conduct(cast), cast.replace_unplanned())

        self.note("load ended, everything answered; taking the pipeline down")
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

    def _role(self, store: str, token: str, weights: str, name: str, number: int) -> Role:
        return Role(
            name=name,
            number=number,
            store=store,
            backend=self.options.backend,
            token=token,
            lease_s=self.options.lease_s,
            weights=weights,
        )

    async def _conduct(self, cast: Cast) -> None:
        """Begin to measure at full strength, inject each fault in its time, and end the load."""
        await self.until(lambda: all(map(cast.has_answered, REPLICAS)), "first answers of both replicas")
        begin = time.monotonic()
        players = ", ".join(worker.label for worker in cast.playing.values())
        self.note(f"full load on {len(self.record.worlds)} worlds: {players}")
        for planned in self.plan:
            await self._calm(begin + planned.at_s, f"full strength before {planned.name}")
            await self._injure(planned, cast)
        await self._calm(begin + self.options.seconds, "full strength at the end")
        self.load = (begin, time.monotonic())
        self._load_ended = True

    async def _calm(self, at: float, what: str) -> None:
        """Wait until a moment, or longer: until nothing has been lost for a while, whoever did it."""
        await _sleep_until(max(at, time.monotonic() + MIN_CALM_S))
        while not self.record.is_whole:
            await self.until(lambda: self.record.is_whole, what)
            await asyncio.sleep(MIN_CALM_S)

    async def _injure(self, planned: PlannedFault, cast: Cast) -> None:
        victim = cast.playing[planned.replica]
        worlds = (edge("a", planned.replica), edge(planned.replica, "c"))
        fault = self.record.inject(planned.name, planned.replica, victim.number, worlds, at=time.monotonic())
        victim.send_signal(signal.SIGKILL if planned.kind == "kill" else signal.SIGSTOP)
        self.note(f"{planned.name}: worker {victim.label}", alarming=True)
        await cast.replace(fault)
        if planned.kind == "freeze":
            victim.send_signal(signal.SIGCONT)  # it must find out by an error that the others went on without it
            await self.until(
                lambda: bool(fault.fenced_by), f"an error in the worker that was woken after {planned.name}"
            )
            self.note(f"worker {victim.label} was woken and fenced off: {fault.fenced_by}")
            victim.send_signal(signal.SIGKILL)

    async def _watch_own_worlds(self, events: AsyncIterator[mw.Event]) -> None:
        async for event in events:
            self._happened("front", notice_of(event))

    def _on_notice(self, worker: Worker, notice: Notice) -> None:
        self._happened(worker.role, notice, worker.number)

    def _on_killed(self, worker: Worker, signal_name: str) -> bool:
        return self._cast is None or self._cast.killed(worker, signal_name)  # before that, all are spares

    def _happened(self, process: str, notice: Notice, worker: int | None = None) -> None:
        where = f"world {notice.world} (generation {notice.generation})"
        if notice.kind == "WorldFormed":
            view = self.record.worlds.get(notice.world)
            if view is not None and view.generation < notice.generation:
                self.note(f"{where} formed again")
            self.record.formed(notice.world, notice.generation, worker)
        elif notice.kind == "WorldBroken":
            broken = Broken(process, notice.world, notice.generation, notice.error, notice.text)
            is_explained = self.record.reason_of(broken, at=notice.at) or self.record.is_leaving(broken, at=notice.at)
            if self._cast is not None and not is_explained:
                self._cast.broke(process, notice)
            fault = self.record.broke(broken, at=notice.at)
            if fault is not None:
                self.note(f"{process}: {where} broke after {notice.at - fault.at:.3f} s: {notice.error}")
            elif broken in self.record.broken_without_reason:
                self.note(f"{process}: {where} broke WITHOUT REASON: {notice.text}", alarming=True)
        elif notice.kind == "WorldLeft":
            self.record.left(notice.world, notice.generation)
        self._changed.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
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
            playing = {} if self._cast is None else self._cast.playing
            self._display.update(
                Status(
                    elapsed_s=time.monotonic() - self._began,
                    throughput=rates,
                    num_answered=num_images,
                    num_in_flight=len(self.ledger.unanswered),
                    worlds=self.record.worlds,
                    workers={name: worker.label for name, worker in playing.items()},
                )
            )

    def note(self, text: str, *, alarming: bool = False) -> None:
        self._display.note(time.monotonic() - self._began, text, alarming=alarming)


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
