"""Executes a stage's work: batches what waits, calls it on the event loop or on a thread, and splits the results."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias

import torch

from ...channel.base import Payload
from ...model.user_code import contained, place_of_error
from ..errors import CanaryFailedError, what_happened
from ..flow.packets import Item
from ..flow.payloads import Packed, map_tensors
from ..flow.turn import Turn
from ..graph import Batch
from .batching import BatchQueue
from .black_box import BlackBox
from .call_thread import CallThread
from .ownership import is_nobodys_else
from .results import checked_result, small_copy
from .rows import concatenate, shape_of, split

logger = logging.getLogger(__name__)

Result: TypeAlias = Payload | Packed | Exception

Results: TypeAlias = Sequence[Result]
"""One for each job of a batch."""

Outcome: TypeAlias = tuple[Results | Exception, float]
"""The results, or what was raised, and how long it took."""

INLINE_S: Final = 0.001  # work that is shorter than this takes longer to hand to a thread than to do
AHEAD_S: Final = 0.05
LONE_INLINE_S: Final = 0.01  # so does longer work, while nothing else waits that could come and go meanwhile
SMOOTHING: Final = 0.2
TURN_S: Final = 0.002
MAX_MESSAGE: Final = 4096  # characters of what user code raises
MAX_CONCURRENT: Final = 64  # calls of a coroutine function


class Job:
    """One request at this stage. ``inputs``: its items, in the order of the work's arguments."""

    __slots__ = ("alone", "has_begun", "id", "inputs", "is_off")

    def __init__(self, id_: bytes, inputs: Sequence[Item], *, alone: bool) -> None:
        self.id, self.inputs, self.alone = id_, inputs, alone
        self.has_begun = False
        """Whether its coroutine has run at all: cancelled before, it would end without having given anything back."""
        self.is_off = False
        """Nobody wants its result."""


class Executor:
    """``on_done(job, result)`` is called on the event loop, once per job that was not dropped."""

    def __init__(
        self,
        work: Callable[..., Any],
        *,
        batch: Batch | None,
        idempotent: bool = True,
        device: str = "cpu",
        before_alone: Callable[[Job], Any],
        after_alone: Callable[[], None] = lambda: None,
        on_done: Callable[[Job, Result], None],
        turn: Turn | None = None,
        box: BlackBox | None = None,
    ) -> None:
        """``idempotent``: whether what is left undone by a batch that failed may be executed again, one by one.

        ``before_alone``: a coroutine function that is awaited before a suspected job is executed.

        ``after_alone`` is called when that is over. ``turn``: at the end of which ``go_on`` is called. ``box``: where
        what is being executed is written down.
        """
        self.work = work
        self._idempotent = idempotent
        self._batch, self._device = batch, torch.device(device)
        self._on_cpu = self._device.type == "cpu"
        self._before_alone, self._after_alone, self._on_done = before_alone, after_alone, on_done
        self._is_async = is_async(work)
        self._many: Callable[[list[Payload]], Any] | None = None if self._is_async else getattr(work, "many", None)
        self._queue: BatchQueue[Job] = BatchQueue(batch)
        self._jobs: dict[bytes, Job] = {}
        self._loop = asyncio.get_running_loop()
        self._caller: CallThread[list[Job], Outcome] = CallThread(self._call, self._was_called)
        self._turns: dict[bytes, asyncio.Future[Outcome]] = {}
        """Of calls on the thread that a task waits for."""
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._delivery = turn or Turn()
        self._box = box
        self._is_due = False
        self._calls: dict[bytes, tuple[asyncio.Task[None], Job]] = {}
        """Of coroutines that execute one job."""
        self._began: dict[bytes, tuple[float, Job]] = {}  # of what is being executed, the oldest first
        self._executing = 0
        self._alone = False
        self._inference = torch.inference_mode()  # made once, as that takes longer than entering it
        self._quiet = asyncio.Event()
        self._closed = False
        self.call_s: float | None = None
        self.service_s = 0.0
        """How long one request takes lately, the batch's time shared out."""
        self.num_arrived = self.num_done = self.num_failed = self.num_calls = 0
        self.num_alone = 0
        """Of those that were executed without others, because they were suspected of killing who executes them."""
        self.busy_s = 0.0
        """How much of this replica's time calls took: of several that are made at once, each has its share."""
        self.last_call = (0.0, 0)
        """How long the call took whose results are given to ``on_done``, and of how many requests."""

    @property
    def batch(self) -> Batch | None:
        return self._batch

    @property
    def concurrency(self) -> int:
        """How many calls may be under way at once."""
        return MAX_CONCURRENT if self._is_async else 1

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_executing(self) -> int:
        return self._executing

    def submit(self, job: Job) -> None:
        """Execute it in its turn."""
        self.num_arrived += 1
        self._jobs[job.id] = job
        rows: int = 1
        kind: Hashable = None
        if not self._takes_many(job):  # without batches a shape is looked at in vain; should they begin, it stays alone
            rows, kind = (1, job.id) if self._batch is None else shape_of(job.inputs)
        self._queue.put(job, rows, kind, now=time.monotonic(), alone=job.alone)
        self._go_on_soon()

    def drop(self, id_: bytes) -> bool:
        """Forget a job that waits, or cancel the coroutine that executes it; False for one that is on a thread."""
        call = self._calls.get(id_)
        if call is not None:
            task, executed = call
            executed.is_off = True
            if executed.has_begun:
                task.cancel()
            return True
        job = self._jobs.get(id_)
        if job is None or not self._queue.drop(job):
            return False
        del self._jobs[id_]
        return True

    def clear(self, id_: bytes) -> None:
        """A job is suspected no more. Whether it waits is not known to who says so."""
        job = self._jobs.get(id_)
        if job is not None and job.alone:
            job.alone = False
            self._queue.accompany(job)
            self._go_on_soon()

    def is_executing(self, id_: bytes) -> bool:
        return id_ in self._began

    def executing_s(self, now: float) -> float:
        """Return how long the oldest execution under way has taken."""
        return now - next(iter(self._began.values()))[0] if self._began else 0.0

    def go_on(self) -> None:
        """Execute now what would be executed in the next turn of the loop."""
        if self._turn is not None:
            self._turn.cancel()
            self._go_on()
        elif self._is_due:
            self._go_on()

    def tune(self, batch: Batch) -> None:
        """Batch otherwise from now on."""
        self._batch = batch
        self._queue.tune(batch)
        self._go_on_soon()

    def close(self) -> None:
        self._closed = True
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        for task in self._running:
            task.cancel()
        self._caller.close()

    # ---- turns

    def _go_on_soon(self) -> None:
        if self._delivery.is_on:
            self._is_due = True
        else:
            self._go_on_next()

    def _go_on_next(self) -> None:
        """In the next turn of the loop."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._execute_what_is_due()
        finally:  # whoever is told of a result may raise: the others do not wait for ever because of that
            self._plan_turn()

    def _execute_what_is_due(self) -> None:
        began = now = time.monotonic()
        with self._inference:  # here, as entering it takes as long as a small work
            while self._has_room() and now - began < TURN_S:
                jobs = self._queue.take(now=now)
                if not jobs:
                    break
                self._execute(jobs)
                now = time.monotonic()
            self._delivery.flush()  # not only when the mode has been left, which takes as long as sending

    def _plan_turn(self) -> None:
        if self._has_room():
            due = self._queue.due()
            delay_s = math.inf if due is None else due - time.monotonic()
            if delay_s <= 0:
                self._go_on_next()
            elif due is not None:
                self._timer = self._loop.call_later(delay_s, self._go_on)
        if len(self._queue) and not self._executing and self._timer is None:
            self._go_on_next()

    def _is_quick(self) -> bool:
        """Whether the next call is better made here than on a thread."""
        if self._is_async or self.call_s is None or self._executing:
            return False
        return self.call_s < (LONE_INLINE_S if not len(self._queue) else INLINE_S)

    def _has_room(self) -> bool:
        return not self._alone and self._executing < self.concurrency + self._is_ahead()

    def _is_ahead(self) -> bool:
        """Whether the thread is given one call more, so that it need not wait for this loop between two."""
        return not self._is_async and self._batch is None and self.call_s is not None and self.call_s < AHEAD_S

    def _execute(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._jobs.pop(job.id, None)
        if not jobs[0].alone and self._is_quick():
            self._finish(jobs, *self._call_here(jobs))
            return
        self._executing += 1
        self._note_begin(jobs)
        if not (self._is_async or jobs[0].alone):
            self._caller.submit(jobs)
            return
        self._alone = jobs[0].alone
        task = self._loop.create_task(self._execute_beside(jobs))
        if self._is_async and len(jobs) == 1:
            self._calls[jobs[0].id] = task, jobs[0]
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute_beside(self, jobs: list[Job]) -> None:
        first = jobs[0]
        alone, id_ = first.alone, first.id
        first.has_begun = True
        outcome: Outcome | None = None
        try:
            while alone and self._executing > 1:  # calls of a coroutine function that began before
                self._quiet.clear()
                await self._quiet.wait()
            if alone:
                self._note_begin(jobs)  # only now
                await self._before_alone(first)
                self._note_begin(jobs)
            if alone and not first.is_off:
                self.num_alone += 1
            if first.is_off:
                pass  # given up before it began
            elif not self._is_async:
                turn = self._turns[id_] = self._loop.create_future()
                self._caller.submit(jobs)
                outcome = await turn
            else:
                outcome = await self._call_async(jobs)
        finally:
            call = self._calls.get(id_)
            if call is not None and call[1] is first:  # else the request has come again meanwhile
                del self._calls[id_]
            self._turns.pop(id_, None)
            self._alone = self._alone and not alone
            if alone:
                self._after_alone()
            self._is_over(jobs)
        if outcome is not None and not first.is_off:
            self._finish(jobs, outcome[0], outcome[1])

    def _call_here(self, jobs: list[Job]) -> Outcome:
        box = self._box
        if box is None:
            return self._call(jobs)
        for job in jobs:
            box.begin(job.id)
        outcome = self._call(jobs)
        for job in jobs:
            box.end(job.id)
        return outcome

    def _note_begin(self, jobs: list[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            self._began[job.id] = now, job
            if self._box is not None:
                self._box.begin(job.id)

    def _was_called(self, jobs: list[Job], outcome: Outcome) -> None:
        """The thread made a call."""
        turn = self._turns.get(jobs[0].id)
        if turn is None:
            self._is_over(jobs)
            self._finish(jobs, *outcome)
        elif not turn.done():
            turn.set_result(outcome)

    def _is_over(self, jobs: list[Job]) -> None:
        """There is room for the next call."""
        self._executing -= 1
        for job in jobs:
            began = self._began.get(job.id)
            if began is not None and began[1] is job:
                del self._began[job.id]
                if self._box is not None:
                    self._box.end(job.id)
        if self._began and not self._is_async:  # what the thread was given ahead begins only now
            now = time.monotonic()
            for id_, (_, waiting) in list(self._began.items()):
                self._began[id_] = now, waiting
        self._quiet.set()
        if not self._closed:
            self._go_on_soon()

    def _finish(self, jobs: list[Job], result: Results | Exception, took_s: float) -> None:
        if not self._is_async:
            self.busy_s += took_s
        self.num_calls += 1
        self.last_call = (took_s, len(jobs))
        self.call_s = took_s if self.call_s is None else self.call_s + SMOOTHING * (took_s - self.call_s)
        self.service_s += SMOOTHING * (took_s / len(jobs) - self.service_s) if self.service_s else took_s / len(jobs)
        if isinstance(result, Exception) and len(jobs) > 1 and self._idempotent:
            self._execute_singly(jobs)
            return
        for index, job in enumerate(jobs):
            one = result if isinstance(result, Exception) else result[index]
            if isinstance(one, Exception):
                self.num_failed += 1
            else:
                self.num_done += 1
            self._on_done(job, one)

    def _execute_singly(self, jobs: list[Job]) -> None:
        """A batch failed: whose fault it was shows when each is executed by itself."""
        for job in jobs:
            self._jobs[job.id] = job
            self._queue.put(job, 1, ("single", job.id), now=0.0, urgent=True)
        self._go_on_soon()

    # ---- calls

    def _call(self, jobs: list[Job]) -> Outcome:
        """In inference mode."""
        began = time.perf_counter()
        try:
            if self._takes_many(jobs[0]):
                return self._call_many(jobs), time.perf_counter() - began
            arguments, rows = self._arguments(jobs)
            result = self.work(*arguments)
            small = small_copy(result)
            if small is not None and len(jobs) == 1:
                return [small], time.perf_counter() - began
            if small is not None:
                payload: Payload = small.tensor
            else:
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()  # else it would be warned of that nobody awaited it
                    raise TypeError("the work returned an awaitable; declare it with 'async def'")
                is_ours = is_nobodys_else(result)  # before it is anybody's argument
                payload = checked_result(result, is_ours=is_ours)
            return split(payload, rows, len(jobs)), time.perf_counter() - began
        except BaseException as error:  # the user's code may raise anything, and concerns only these requests
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return contained(error), time.perf_counter() - began

    async def _call_async(self, jobs: list[Job]) -> Outcome:
        began = time.perf_counter()
        steps: _Steps | None = None
        try:
            arguments, rows = self._arguments(jobs)
            steps = _Steps(self.work(*arguments))
            result = await steps  # not in inference mode, which other tasks would get too
            is_ours = is_nobodys_else(result)  # as above
            payload = checked_result(result, is_ours=is_ours)
            return split(payload, rows, len(jobs)), time.perf_counter() - began
        except asyncio.CancelledError as error:
            if self._closed or jobs[0].is_off:
                raise
            return contained(error), time.perf_counter() - began
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # as above
            return contained(error), time.perf_counter() - began
        finally:
            took_s = time.perf_counter() - began
            held_s = took_s if steps is None or jobs[0].alone else steps.held_s
            self.busy_s += max(held_s, took_s / MAX_CONCURRENT)

    def _takes_many(self, job: Job) -> bool:
        """Work with a method ``many`` gets a batch as it is, and answers each request of it, or fails it alone."""
        return self._many is not None and len(job.inputs) == 1

    def _call_many(self, jobs: list[Job]) -> Results:
        assert self._many is not None
        payloads = [self._to_device(job.inputs[0].payload) for job in jobs]
        if len(jobs) > 1 and self._idempotent and self._on_cpu:
            # Should it fail, each is executed by itself, and the work may have written into what it was given.
            payloads = [map_tensors(payload, torch.clone) for payload in payloads]
        returned = self._many(payloads)
        results = list(returned) if isinstance(returned, list) else []  # it is the user's, who may change it meanwhile
        if len(results) != len(jobs):
            raise TypeError(f"many() must return a list with one result for each of its {len(jobs)} requests")
        return [_checked_one(result) for result in results]

    def _arguments(self, jobs: list[Job]) -> tuple[list[Payload], list[int]]:
        if len(jobs) == 1:
            return [self._to_device(item.payload) for item in jobs[0].inputs], []
        rows = [shape_of(job.inputs)[0] for job in jobs]
        columns = zip(*(job.inputs for job in jobs), strict=True)
        return [self._to_device(concatenate([item.payload for item in column])) for column in columns], rows

    def _to_device(self, payload: Payload) -> Payload:
        if self._on_cpu:
            return payload
        return map_tensors(payload, lambda tensor: tensor.to(self._device))


class _Steps:
    """A coroutine that is awaited, and for how long it has held the event loop, as one that computes does."""

    __slots__ = ("_steps", "held_s")

    def __init__(self, work: Awaitable[Any]) -> None:
        self._steps: Any = work.__await__()
        self.held_s = 0.0

    def __await__(self) -> _Steps:
        return self

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self._steps)
        finally:
            self.held_s += time.perf_counter() - began

    def send(self, value: Any) -> Any:
        return next(self) if value is None else self._steps.send(value)

    def throw(self, error: Any, value: Any = None, _: Any = None) -> Any:
        """Older callers give the class of the error first."""
        began = time.perf_counter()
        try:
            return self._steps.throw(error if value is None else value)
        finally:
            self.held_s += time.perf_counter() - began

    def close(self) -> None:
        self._steps.close()


def _checked_one(result: Any) -> Payload | Exception:
    """Return one of several results; what is wrong with it concerns its request alone."""
    try:
        return result if isinstance(result, Exception) else checked_result(result, is_ours=False)
    except Exception as error:
        return error


def is_async(work: Callable[..., Any]) -> bool:
    """Return whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(getattr(work, "__call__", None))  # noqa: B004


def describe_error(error: BaseException) -> str:
    """Return class, message and place, in one line of bounded length."""
    place = "" if isinstance(error, CanaryFailedError) else place_of_error(error)  # that is raised by us, and says why
    where = f" ({place})" if place else ""
    try:
        text = what_happened(error)
    except Exception:  # its __str__ is the user's, too
        text = "(its message cannot be read)"
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}… ({len(text)} characters)"
    return f"{type(error).__name__}: {text}{where}"
