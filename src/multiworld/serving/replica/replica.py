"""One replica of a stage: takes requests in, executes each, passes the result on, and releases what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...model.errors import PayloadMismatchError
from ...world.manager import WorldManager
from ..errors import (
    BadRequestError,
    RequestLostError,
    SequenceTooLongError,
    ServingError,
    StageFailedError,
    StateLostError,
)
from ..flow.context import EMPTY, RequestContext
from ..flow.edge import Edge
from ..flow.error_answer import ErrorAnswer
from ..flow.node import Node, NodeOwner, Place
from ..flow.packets import Item, Kind
from ..flow.payloads import Packed
from ..graph import GATEWAY, INPUT, Batch
from ..ingress.versions import FIRST, merged_weights, with_version
from ..member.reports import ReplicaCounts
from ..tracing.hops import Executed, merged
from .black_box import carried
from .canary import CanaryKeeper
from .executor import Executor, Job, Result, describe_error
from .failure_log import FailureLog
from .finished import Finished

logger = logging.getLogger(__name__)

QUEUE_S: Final = 0.05  # how much work each sender may have waiting here
BLOCKED_S: Final = 0.05  # a result that the next stage has had no room for so long
MIN_WINDOW: Final = 8
MAX_WINDOW: Final = 256
MERGING_WINDOW: Final = 1 << 16  # see InFlight
TOLD_S: Final = 0.001
"""What takes longer is told when it is done: a sender that chooses would count it for as long again."""
GO_AHEAD_S: Final = 1.0
ASK_S: Final = 0.3  # a part whose other parts come later than that may have come too late itself
DOUBT_S: Final = 2.0  # for the answer of who may have executed a request before, or so many times as a call takes
DOUBT_CALLS: Final = 4.0
GRANT_EVERY_S: Final = 0.1
MAX_NOTED: Final = 512  # characters of an error in a trace


class _Open:
    """A request that this replica has accepted, until its result has been accepted."""

    __slots__ = (
        "arrived_at", "ask_at", "attempt", "inputs", "is_doubt", "is_off", "result_for", "senders", "size_bytes",
        "taken",
    )  # fmt: skip

    def __init__(self, attempt: int, now: float) -> None:
        self.attempt, self.arrived_at, self.ask_at = attempt, now, now + ASK_S
        self.inputs: dict[str, Item] = {}
        self.senders: list[Edge] = []
        self.taken = False
        self.is_off = False
        self.is_doubt = False
        """Whether what it was passed on as is that nobody knows whether it was executed."""
        self.size_bytes = 0
        self.result_for: set[str] = set()
        """The stages that have not accepted the result yet."""


class Replica(NodeOwner):
    """Use it on one event loop. ``node`` is its place in the graph."""

    def __init__(
        self,
        manager: WorldManager,
        place: Place,
        work: Callable[..., Any],
        on_edge_lost: Callable[[Edge, Exception], None] = lambda *_: None,
    ) -> None:
        self._on_edge_lost = on_edge_lost
        self.stage = place.graph.stages[place.stage]
        self.member = place.member
        self.version = FIRST
        """Of its weights."""
        self.node = Node(self, manager, place)
        self.executor = Executor(
            work,
            batch=self.stage.batch or None,
            idempotent=self.stage.idempotent,
            device=self.stage.device,
            before_alone=self._ask_to_go_ahead,
            after_alone=self._say_over,
            on_done=self._done,
            turn=self.node.turn,
            box=carried(),
        )
        self.failures = FailureLog(logger)
        self.canary = CanaryKeeper(self.stage, work)
        self._sources = place.graph.inputs(place.stage)
        self._targets = place.graph.downstream(place.stage)
        self._open: dict[bytes, _Open] = {}
        self._finished = Finished()
        self._doubtful: dict[bytes, tuple[float, Item]] = {}
        """Errors that are passed on when nothing better has come by then."""
        self._deaf: set[Edge] = set()
        """Senders that did not say in time that a request may be executed."""
        self._relayed: set[bytes] = set()
        self._relayed_up: set[bytes] = set()
        """Cancellations and questions of the last moment: they come from several sides, and go on once."""
        self._asked: bytes | None = None
        self._suspect: Job | None = None
        """What is about to be executed alone, once all senders have heard that."""
        self._awaited: set[Edge] = set()
        self._may_go = asyncio.Event()
        self._changed = asyncio.Event()
        self._merges = place.graph.merges(place.stage)
        if self._merges:
            self.node.grant(MERGING_WINDOW)
        self._stirred = asyncio.Event()
        self._is_resting = False
        self._tending = asyncio.get_running_loop().create_task(self._tend())

    @property
    def is_idle(self) -> bool:
        """Whether no request is in its hands."""
        return not self._open and self.node.is_empty

    async def wait_idle(self) -> None:
        """Wait until no request is in its hands, and no sender may send one."""
        while not self.is_idle or self.node.is_fed:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.02)

    async def aclose(self) -> None:
        """Leave all edges; what is in hand is given up."""
        self._tending.cancel()
        self.executor.close()
        await self.node.aclose()

    def tune(self, batch: Batch) -> None:
        """Batch otherwise from now on."""
        self.executor.tune(batch)
        self._stir()

    def statistics(self) -> ReplicaCounts:
        """Return counts since the start, depths now, and seconds."""
        executor = self.executor
        return ReplicaCounts(
            queue=executor.num_waiting,
            executing=executor.num_executing,
            executing_s=executor.executing_s(time.monotonic()),
            in_flight=len(self._open),
            arrived=executor.num_arrived,
            done=executor.num_done,
            failed=executor.num_failed,
            alone=executor.num_alone,
            calls=executor.num_calls,
            busy_s=executor.busy_s,
            service_s=executor.service_s,
            held_bytes=sum(in_flight.held_bytes for in_flight in self.node.in_flight.values()),
            window=self.node.window,
        )

    def whereabouts(self, ids: Iterable[bytes]) -> dict[bytes, tuple[str, bool]]:
        """Return at which stage those of these are that this replica knows of, and whether that is sure.

        Not sure is what a stage that joins inputs has been sent: it may wait there for a part that is elsewhere.
        """
        known: dict[bytes, tuple[str, bool]] = {}
        for id_ in ids:
            request = self._open.get(id_)
            if request is None or not request.taken:
                continue
            stage = next(iter(request.result_for), self.stage.name)
            if stage != GATEWAY:
                known[id_] = stage, stage == self.stage.name or not self.node.place.graph.merges(stage)
        return known

    # ---- requests in

    def arrived(self, edge: Edge, items: list[Item]) -> None:
        now = time.monotonic()
        try:
            for item in items:
                self._accept(edge, item, now)
        finally:  # one that cannot be taken in keeps none from its turn
            self.executor.go_on()
            self._stir()  # what was executed at once has left already

    def _accept(self, edge: Edge, item: Item, now: float) -> None:
        if self._finished.covers(item.id, item.attempt):
            edge.mention(Kind.RELEASED, item.id)
            return
        request = self._open.get(item.id)
        is_original = not item.replayed and item.kind != Kind.ERROR
        if request is not None and request.is_doubt and is_original:  # it has come, from where it had waited
            self._release(item.id)
            request = None
        if request is None:
            request = self._open[item.id] = _Open(item.attempt, now)
        if item.attempt > request.attempt and request.taken and request.result_for not in (set(), set(self._targets)):
            request.taken = False  # some branches have had it, where it may have been lost: all get it again
            request.result_for = set()
        request.attempt = max(request.attempt, item.attempt)
        request.senders.append(edge)
        request.size_bytes += item.size_bytes
        edge.mention(Kind.ACCEPTED, item.id, size_bytes=item.size_bytes)
        if request.taken and is_original and item.id in self._doubtful:
            del self._doubtful[item.id]
            request.taken = False
            request.inputs.pop(_input_from(item.source), None)
        if not request.taken:
            self._add_input(request, item)
        elif _is_final(item) and self._calls_off(request, item.id):
            self._pass_on(request, item)  # another sender has seen it kill once more, and had nobody to tell until now

    def _calls_off(self, request: _Open, id_: bytes) -> bool:
        """Whether it was to be executed alone, and has not been begun: now it will not be."""
        if self._suspect is None or self._suspect.id != id_:
            is_marked = any(part.deaths for part in request.inputs.values())
            return is_marked and not self.executor.is_executing(id_) and self.executor.drop(id_)
        return self._lets_go(id_)

    def _lets_go(self, id_: bytes) -> bool:
        """Whether it is what waits to be executed alone until all senders know that: then it will not be."""
        if self._suspect is None or self._suspect.id != id_:
            return False
        self._suspect.is_off = True
        self._suspect = None
        return True

    def _add_input(self, request: _Open, item: Item) -> None:
        if item.kind == Kind.ERROR:
            request.taken = True
            self._pass_on(request, item)
            return
        request.inputs.setdefault(_input_from(item.source), item)
        if len(request.inputs) < len(self._sources):
            return
        request.taken = True
        inputs = [request.inputs[source] for source in self._sources]
        if not self.stage.idempotent and all(part.replayed for part in inputs):
            own = {stage for stage, in_flight in self.node.in_flight.items() if item.id in in_flight}
            if own:  # this replica has executed it, and keeps its result for those
                request.result_for = own
                request.inputs.clear()
                return
            # One part that was sent once, hither, would show that no other replica can have had them all.
            lost = RequestLostError(self.stage.name, "an earlier one")
            error = item.successor().carry_error(ErrorAnswer.of(lost, doubtful=True))
            if self._targets == (GATEWAY,):  # which waits for another answer itself
                request.is_doubt = True
                self._pass_on(request, error)
            else:  # the next stage would take the error for the request, and the true result for a second one
                patience_s = max(DOUBT_S, DOUBT_CALLS * (self.executor.call_s or 0.0))
                self._doubtful[item.id] = time.monotonic() + patience_s, error
            return
        if self.canary.due:
            self.canary.take(item.id, inputs)
        self.executor.submit(Job(item.id, inputs, alone=any(part.deaths for part in inputs)))

    async def _ask_to_go_ahead(self, job: Job) -> None:
        """Say which request is about to be executed: if this kills the process, all senders know whose doing it was."""
        self._may_go.clear()
        self._asked, self._suspect = job.id, job
        edges = [edge for edge in self.node.edges.values() if not edge.is_upstream]
        self._awaited = set(edges) - self._deaf
        for edge in edges:
            edge.say(Kind.STARTED, [job.id])
        if self._awaited:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._may_go.wait(), GO_AHEAD_S)
        self._suspect = None
        self._deaf |= self._awaited

    def _say_over(self) -> None:
        self._suspect = None
        for edge in self.node.edges.values():
            if not edge.is_upstream:
                edge.say(Kind.STARTED)

    def go_ahead(self, edge: Edge, ids: Iterable[bytes]) -> None:
        self._deaf.discard(edge)
        if self._asked in list(ids):
            self._heard_from(edge)

    def _heard_from(self, edge: Edge) -> None:
        self._awaited.discard(edge)
        if not self._awaited:
            self._may_go.set()

    def cancelled(self, ids: Iterable[bytes]) -> None:
        news = [id_ for id_ in ids if id_ not in self._relayed]
        self._relayed.update(news)
        for id_ in news:
            self._finished.cancel(id_)
            if self.executor.drop(id_) or self._lets_go(id_) or not self.executor.is_executing(id_):
                self._release(id_)
            elif id_ in self._open:  # a thread cannot be stopped: until it is done, this replica has no room for more
                self._open[id_].is_off = True
        self.node.cancel(news)
        self._stir()

    def asked(self, ids: Iterable[bytes]) -> None:
        news = [id_ for id_ in ids if id_ not in self._relayed_up]
        self._relayed_up.update(news)
        self.node.ask(news)
        self._stir()

    def dropped(self, ids: Iterable[bytes]) -> None:
        for id_ in ids:
            if self.executor.drop(id_) or self._lets_go(id_):
                self._release(id_)

    def cleared(self, edge: Edge, ids: Iterable[bytes]) -> None:
        source = _input_from(edge.stage)
        for id_ in ids:
            request = self._open.get(id_)
            part = None if request is None else request.inputs.get(source)
            if request is None or part is None or sum(sender.stage == edge.stage for sender in request.senders) > 1:
                continue  # another sender may have marked its copy for another death
            part.deaths = 0
            if request.taken and not any(other.deaths for other in request.inputs.values()):
                self.executor.clear(id_)
        self.executor.go_on()

    def recalled(self, edge: Edge, ids: Iterable[bytes]) -> list[bytes]:
        returned = []
        for id_ in ids:
            request = self._open.get(id_)
            if request is not None and not request.taken and edge in request.senders:
                returned.append(id_)
                request.senders = [sender for sender in request.senders if sender is not edge]
                request.inputs.pop(_input_from(edge.stage), None)
                if not request.senders:
                    del self._open[id_]
        return returned

    # ---- results out

    def _done(self, job: Job, result: Result) -> None:
        request = self._open.get(job.id)
        if job.id == self.canary.taken:
            self.canary.keep(result.tensor if isinstance(result, Packed) else result)
        if request is None:  # given up meanwhile
            return
        if request.is_off:
            self._release(job.id)
            return
        try:
            self._pass_result(job, request, result)
        except Exception as error:  # the user's result, or error, is another thing than it seemed
            logger.exception("what stage %s gave cannot be passed on", self.stage.name)
            failure = StageFailedError(self.stage.name, self.member, describe_error(error))
            self._pass_on(request, job.inputs[0].successor().carry_error(ErrorAnswer.of(failure)))

    def _pass_result(self, job: Job, request: _Open, result: Result) -> None:
        if isinstance(result, PayloadMismatchError):
            result = BadRequestError("", result.reason)
        if self.executor.service_s >= TOLD_S:
            for edge in request.senders:
                if edge.is_prompt:
                    edge.say_soon(Kind.EXECUTED, job.id)
        first = job.inputs[0]
        is_noted = first.context is not EMPTY or (
            self._merges and any(part.context is not EMPTY for part in job.inputs)
        )
        if is_noted or self.version != FIRST:
            first.context = self._noted(job, request, result)
        if isinstance(result, ServingError):
            self._fail(request, first, result)
        elif isinstance(result, Exception):
            error = describe_error(result)
            self.failures.failed(self.stage.name, result, error)
            self._fail(request, first, StageFailedError(self.stage.name, self.member, error))
        elif first.deadline < time.monotonic():
            self._release(job.id)
        else:
            following = first.successor()
            following.replayed = all(part.replayed for part in job.inputs)
            following.attempt = request.attempt
            self._pass_on(request, following.carry(result))

    def _noted(self, job: Job, request: _Open, result: Result) -> RequestContext:
        """Return what goes on with the result: the weights that it came through, and its hops if it is traced."""
        contexts = [part.context for part in job.inputs]
        if len(contexts) == 1:
            weights = contexts[0].weights
        else:
            weights = merged_weights(self.node.place.graph, list(zip(self._sources, contexts, strict=True)))
        traced = [context.hops for context in contexts if context.hops is not None]
        hops = None
        if traced:
            took_s, batch = self.executor.last_call
            now = time.time()
            executed = Executed(
                by=self.member,
                stage=self.stage.name,
                arrived=now - (time.monotonic() - request.arrived_at),
                began=now - took_s,
                ended=now,
                batch=batch,
                version=self.version,
                error=describe_error(result)[:MAX_NOTED] if isinstance(result, Exception) else "",
            )
            hops = merged(traced).with_hop(executed)
        key = next((context.key for context in reversed(contexts) if context.key is not None), None)
        return RequestContext(key=key, weights=with_version(weights, self.stage.name, self.version), hops=hops)

    def _fail(self, request: _Open, item: Item, error: ServingError) -> None:
        if isinstance(error, BadRequestError) and not error.stage:
            kind = SequenceTooLongError if isinstance(error, SequenceTooLongError) else BadRequestError
            error = kind(self.stage.name, error.reason)
        elif isinstance(error, StateLostError):
            error = StateLostError(self.stage.name, error.sequence)
        try:
            failed = item.successor().carry_error(ErrorAnswer.of(error))
        except (TypeError, ValueError):  # the user's code raised one of ours, with something in it that is no JSON
            error = StageFailedError(self.stage.name, self.member, describe_error(error))
            failed = item.successor().carry_error(ErrorAnswer.of(error))
        self._pass_on(request, failed)

    def _pass_on(self, request: _Open, item: Item) -> None:
        request.inputs.clear()
        request.result_for = set(self._targets)
        for stage in self._targets:
            part = item if stage == self._targets[-1] else _copy(item)
            self.node.send(part, stage)

    def accepted(self, stage: str, ids: Iterable[bytes]) -> None:
        for id_ in ids:
            request = self._open.get(id_)
            if request is not None and request.result_for:
                request.result_for.discard(stage)
                if not request.result_for:
                    self._release(id_)
        if not self._open:
            self._changed.set()

    def refused(self, stage: str, item: Item, error: ServingError) -> None:
        failed = item.successor().carry_error(ErrorAnswer.of(error))
        if item.id not in self._open:  # released long ago: this is the copy that was kept for such a case
            self._open[item.id] = request = _Open(item.attempt, time.monotonic())
            request.taken = True
            request.result_for = {stage}
        self.node.send(failed, stage)

    def gateway_gone(self, gateway: str) -> None:
        """Nobody waits for its requests any more: parts of them wait in vain."""
        for id_, request in list(self._open.items()):
            if not request.taken and any(f"{GATEWAY}-{part.origin}" == gateway for part in request.inputs.values()):
                self._release(id_)

    def connection_lost(self, edge: Edge, error: Exception) -> None:
        self._deaf.discard(edge)
        self._heard_from(edge)
        for id_, request in list(self._open.items()):
            if edge in request.senders:
                request.senders = [sender for sender in request.senders if sender is not edge]
                if not request.taken and not request.senders and not (self._merges and edge.stage != GATEWAY):
                    del self._open[id_]  # whoever sent it sends it again, maybe elsewhere
        self._changed.set()
        self._on_edge_lost(edge, error)

    def _release(self, id_: bytes) -> None:
        request = self._open.pop(id_, None)
        if request is not None:
            if not request.is_doubt:  # else what is doubted may still come, and be executed
                self._finished.add(id_, request.attempt)
            for edge in request.senders:
                edge.mention(Kind.RELEASED, id_, size_bytes=request.size_bytes)
        if not self._open:
            self._changed.set()

    # ---- time

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(GRANT_EVERY_S)
            self._relayed.clear()
            self._relayed_up.clear()
            self.canary.tick(time.monotonic())
            self._end_doubts(time.monotonic())
            window = self.node.window
            if self._merges:
                self._ask_about_parts(time.monotonic())
            else:
                self._grant()
            if not self._open and self.node.window == window:  # else time changes something again
                self._stirred.clear()
                self._is_resting = True
                await self._stirred.wait()

    def _stir(self) -> None:
        """Something came that time may change something of."""
        if self._is_resting:
            self._is_resting = False
            self._stirred.set()

    def _end_doubts(self, now: float) -> None:
        for id_ in [id_ for id_, (at, _) in self._doubtful.items() if at <= now or id_ not in self._open]:
            _, error = self._doubtful.pop(id_)
            request = self._open.get(id_)
            if request is not None:
                self._pass_on(request, error)

    def _ask_about_parts(self, now: float) -> None:
        """A part of what was joined and answered elsewhere would wait for ever."""
        parts = [(id_, request) for id_, request in self._open.items() if not request.taken and now >= request.ask_at]
        for id_, request in parts:
            if any(part.deadline < now for part in request.inputs.values()):
                self._release(id_)
        late = [id_ for id_, _ in parts if id_ in self._open]
        for id_ in late:
            self._open[id_].ask_at = now + (now - self._open[id_].arrived_at)
        self.node.ask(late)

    def _grant(self) -> None:
        """Let each sender have as much here as ``QUEUE_S`` of work, and enough for two batches, or all calls."""
        service_s = self.executor.service_s
        if not service_s:
            return
        batch = self.executor.batch
        least = max(MIN_WINDOW, 2 * batch.max_size if batch is not None else 0)
        if self.executor.concurrency > 1:
            least = max(least, self.executor.concurrency)
        window = min(max(math.ceil(QUEUE_S / service_s), least), MAX_WINDOW)
        now = time.monotonic()
        if any(in_flight.waited_s(now) > BLOCKED_S for in_flight in self.node.in_flight.values()):
            window = max(self.node.window // 2, least)  # what the next stage has no room for must not pile up here
        else:
            window = min(window, max(2 * self.node.window, least))
        if abs(window - self.node.window) > 0.25 * self.node.window:
            self.node.grant(window)


def _is_final(item: Item) -> bool:
    return item.kind == Kind.ERROR and not item.error.doubtful


def _input_from(stage: str) -> str:
    """Return what the graph calls the input that comes from there."""
    return INPUT if stage == GATEWAY else stage


def _copy(item: Item) -> Item:
    """The same for another stage: each edge notes other things on it."""
    return item.successor(item.kind).copy_payload(item)
