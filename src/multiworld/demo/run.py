"""The main job: train, deploy, serve under load, injure the replicas, and check every single answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from ..errors import MultiworldError
from ..serving import Deployment, ServingError
from ..serving.control.fleet.actions import FleetEvent, ReplicaLost, ReplicaReady
from ..testing.tasks import together
from .answers import Checker
from .display import Display, ReplicaRow, Status
from .faults import MIN_CALM_S, PlannedFault, plan_faults
from .ledger import RequestLedger
from .options import Options
from .record import Record, tell
from .report import Report, summarize
from .stages import NUM_REPLICAS, make_pipeline, question
from .trained import Trained, train_model

REFRESH_S = 0.25
STEP_LIMIT_S = 30.0
"""How long one step may take (a detection, a replacement's first answer) before the run is given up."""


class MainJobError(Exception):
    """The run cannot go on; the message says why."""


async def run(options: Options, display: Display) -> Report:
    """Run the main job and return what happened, also when it failed on the way. Sets torch to one thread."""
    job = _Job(options, display)
    error = ""
    try:
        await job.perform()
    except (MainJobError, MultiworldError) as failure:
        error = str(failure) if isinstance(failure, MainJobError) else f"{type(failure).__name__}: {failure}"
    report = summarize(options, job.plan, job.record, job.ledger, job.checker, job.load, job.requests, error=error)
    display.finish(report)
    return report


class _Job:
    def __init__(self, options: Options, display: Display) -> None:
        self.options, self._display = options, display
        self.plan = plan_faults(seconds=options.seconds, seed=options.seed) if options.inject_faults else ()
        self.record = Record(NUM_REPLICAS)
        self.ledger = RequestLedger()
        self.checker: Checker | None = None
        self.load: tuple[float, float] | None = None  # begin and end, monotonic
        self.requests: Mapping[str, int] = {}
        """What the deployment counted."""
        self._served: Deployment | None = None
        self._began = time.monotonic()
        self._changed = asyncio.Event()

    async def perform(self) -> None:
        await _run_beside(self._train_and_serve(), self._show())

    async def _train_and_serve(self) -> None:
        options = self.options
        self._note(f"training the model (seed {options.seed})")
        trained = await train_model(seed=options.seed, micro_batch_size=options.micro_batch_size)
        self._note(f"trained in {trained.took_s:.1f} s: {trained.accuracy:.1%} of {trained.num_images} held-out images")
        self.checker = Checker(trained.logits, trained.labels)
        self._note(f"starting {sum(NUM_REPLICAS.values())} replicas")
        async with make_pipeline(trained.model, options).deploy(ready_s=STEP_LIMIT_S) as served:
            self._served = served
            for event in served.events:
                self._happened(event)
            served.on_event(self._happened)
            try:
                await self._serve(served, trained)
            finally:
                self.record.closing()
                self.requests = served.status()["requests"]
        self.record.worlds.clear()
        self._note("all processes have ended")

    async def _serve(self, served: Deployment, trained: Trained) -> None:
        asking = [self._ask(served, trained) for _ in range(self.options.window)]
        await _run_beside(together(*asking), self._conduct(served), self._watch_for_crash())
        self._note("load ended, everything answered; taking the pipeline down")

    async def _ask(self, served: Deployment, trained: Trained) -> None:
        """Be one of those who ask, one request after the other, until the load ends."""
        while not self.record.has_load_ended:
            request = self.ledger.open()
            images = trained.batches[request % len(trained.batches)]
            try:
                answer = await served.infer(question(images))
            except ServingError as error:
                raise MainJobError(f"request {request} was not answered: {type(error).__name__}: {error}") from error
            self._answered(request, len(images), answer)

    def _answered(self, request: int, num_images: int, answer: Any) -> None:
        checker = self.checker
        assert checker is not None
        self.ledger.answer(request)
        checker.check(request, answer["values"])
        for fault in self.record.answered(answer["route"].tolist(), num_images, at=time.monotonic()):
            self._note(f"full strength again {fault.recovery_s:.3f} s after {fault.name}")
        self._changed.set()

    async def _conduct(self, served: Deployment) -> None:
        """Begin to measure at full strength, inject each fault in its time, and end the load."""
        await self._until(lambda: self.record.is_whole, "first answers through all replicas")
        begin = time.monotonic()
        replicas = ", ".join(sorted(view.label for view in self.record.replicas.values()))
        self._note(f"full load on {len(self.record.worlds)} worlds: {replicas}")
        for planned in self.plan:
            await self._calm(begin + planned.at_s, f"full strength before {planned.name()}")
            await self._injure(planned)
        await self._calm(begin + self.options.seconds, "full strength at the end")
        self.load = (begin, time.monotonic())
        self.record.load_ended()

    async def _calm(self, at: float, what: str) -> None:
        """Wait until a moment, or longer: until nothing has been lost for a while, by our faults or by others."""
        await asyncio.sleep(max(at - time.monotonic(), MIN_CALM_S))
        while not self.record.is_whole:
            await self._until(lambda: self.record.is_whole, what)
            await asyncio.sleep(MIN_CALM_S)

    async def _injure(self, planned: PlannedFault) -> None:
        candidates = sorted(view.member for view in self.record.replicas.values() if view.stage == planned.stage)
        victim = self.record.replicas[planned.pick(candidates)]
        if not victim.pid:  # 0 would be this process and all beside it
            raise MainJobError(f"nobody knows which process {victim.member} is")
        name = planned.name(victim.member)
        fault = self.record.inject(name, victim.member, freezes=planned.freezes, at=time.monotonic())
        with contextlib.suppress(ProcessLookupError):  # somebody else has just done it
            os.kill(victim.pid, signal.SIGSTOP if planned.freezes else signal.SIGKILL)
        self._note(f"{name} (pid {victim.pid})", alarming=True)
        await self._until(lambda: fault.detection_s is not None, f"detection of {name}")
        await self._until(lambda: fault.full_strength_at is not None, f"full strength after {name}")
        if planned.freezes:
            await self._until(lambda: bool(fault.fenced_by), f"the end of who was given up after {name}")

    def _happened(self, event: FleetEvent) -> None:
        now = time.monotonic()
        if isinstance(event, ReplicaReady):
            self.record.ready(event, self._pid_of(event.member))
        self.record.happened(event, at=now)
        text = "" if self.record.has_load_ended else tell(event, self.record, at=now)
        if text:
            fault = self.record.fault_in(event.member) if isinstance(event, ReplicaLost) else None
            self._note(text, alarming=fault is not None and not fault.planned)
        self._changed.set()

    def _pid_of(self, member: str) -> int:
        assert self._served is not None
        return next((replica["pid"] for replica in self._served.replicas if replica["id"] == member), 0)

    async def _watch_for_crash(self) -> None:
        while not self.record.crash:
            self._changed.clear()
            await self._changed.wait()
        raise MainJobError(self.record.crash)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_LIMIT_S
        while not condition():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise MainJobError(f"{what}: not within {STEP_LIMIT_S:g} s") from None

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
                    num_in_flight=self.ledger.num_open,
                    worlds=self.record.worlds,
                    replicas=self._replicas(),
                )
            )

    def _replicas(self) -> list[ReplicaRow]:
        if self._served is None:
            return []
        rows = []
        for replica in self._served.replicas:
            member = replica["id"]
            view, fault = self.record.replicas.get(member), self.record.fault_in(member)
            state = replica["state"] if fault is None else "frozen" if fault.freezes else "killed"
            num_images = 0 if view is None else view.num_images
            rows.append(ReplicaRow(name=member, pid=replica["pid"], state=state, num_images=num_images))
        return rows

    def _note(self, text: str, *, alarming: bool = False) -> None:
        self._display.note(time.monotonic() - self._began, text, alarming=alarming)


async def _run_beside(main: Coroutine[Any, Any, object], *background: Awaitable[None]) -> None:
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
