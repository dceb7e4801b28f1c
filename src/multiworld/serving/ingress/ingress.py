"""The entry and the exit of a pipeline in one process: takes requests in, keeps each until its answer, answers once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from ...channel.base import Payload
from ...errors import PeerLeftError
from ...world.manager import WorldManager
from ..errors import (
    BadRequestError,
    DeadlineExceededError,
    GatewayClosedError,
    OverloadedError,
    RequestIdReusedError,
    ServingError,
    StageUnavailableError,
)
from ..flow.context import EMPTY, RequestContext, Versions
from ..flow.edge import Edge
from ..flow.error_answer import ErrorAnswer
from ..flow.node import Node, NodeOwner, Place
from ..flow.packets import Item, Kind
from ..flow.payloads import digest_of, map_tensors
from ..graph import GATEWAY, INPUT
from ..member.failure import Failure
from ..member.reports import GatewayCounts
from ..replica.results import sendable
from ..tracing.hops import Hops, merged
from ..tracing.spans import Journey
from ..tracing.tracer import Tracer
from .admission import Admission
from .answers import Report
from .requests import Open, Requests
from .versions import merged_weights, versions_of
from .whereabouts import Whereabouts

logger = logging.getLogger(__name__)

LEAST_S: Final = 0.001  # of a limit that is nearly over
TEND_S: Final = 0.02
WINDOW: Final = 4096  # answers never wait for credit: the gateway has admitted their requests


class Ingress(NodeOwner):
    """Use it on one event loop. ``node`` is its place in the graph."""

    def __init__(
        self,
        manager: WorldManager,
        place: Place,
        *,
        admission: Admission | None = None,
        default_timeout_s: float | None = 60.0,
    ) -> None:
        self.member = place.member
        self.number = int(place.member.rsplit("-", 1)[1])
        self.node = Node(self, manager, place)
        self.node.grant(WINDOW)
        self._graph = place.graph
        self._first = place.graph.downstream(GATEWAY)
        self.requests = Requests(
            Admission() if admission is None else admission,
            may_lose_held=any(len(place.graph.downstream(stage)) > 1 for stage in self._first),
        )
        at_first = {stage: self.node.in_flight[stage] for stage in self._first}
        self.whereabouts = Whereabouts(self.requests, place.graph.order, at_first)
        self.default_timeout_s = default_timeout_s
        self._cancels_chosen = all(stage.idempotent for stage in place.graph.stages.values())
        """Whether what a client may come back for can be given up when it goes: it can be executed anew."""
        self._branches = any(len(place.graph.downstream(name)) > 1 for name in (INPUT, *place.graph.order))
        # Ids of its own begin with its name, so that its successor knows them, and go on otherwise than those of that.
        self._salt = hashlib.blake2b(place.member.encode(), digest_size=8).digest()
        self._ids = itertools.count(int.from_bytes(os.urandom(7), "little"))
        self._loop = asyncio.get_running_loop()
        self._busy = asyncio.Event()
        self._tending = self._loop.create_task(self._tend())
        self._closed = False
        self._lost_at = -math.inf
        self.num_errors = 0
        """How many requests got an error for an answer; those that a client gave up count as failed, too."""
        self.last_failure: Failure | None = None
        self.num_replayed = 0
        """How many answers came of requests that more than one replica of some stage was given."""
        self._doubtful: dict[bytes, tuple[float, ServingError]] = {}
        """Errors that are not the last word, and when they are."""
        self.on_edge_lost: Callable[[Edge, Exception], None] = lambda *_: None
        self.ask_where: Callable[[list[bytes]], None] = lambda _: None
        """Is to have ``whereabouts.told`` called with what the replicas know."""
        self.tracer: Tracer | None = None
        self.pipeline = "pipeline"
        """Its name, in traces."""
        self._first_versions = versions_of(place.graph, {})

    async def infer(
        self,
        payload: Payload,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        report: Report | None = None,
    ) -> Payload:
        """Send a request through the pipeline and return its answer: the payload of the last stage.

        With several output stages: a dict, whose names are those of the stages, or ``stage.name`` where a stage gives a
        dict. ``payload`` must not be changed until then. ``request_id``: asked again with the same, and the same
        payload, the same answer is given, once it is there, for a while. ``timeout_s``: default, that of the pipeline.
        ``key``: what the policy "sticky" goes by. ``report``: is filled in with what is told besides the answer.

        Raises a ServingError. Cancelled, the request is given up everywhere.
        """
        now = time.monotonic()
        if request_id is None:
            request = self._admit(payload, timeout_s, key, None, now, report)
            self._send(request)
            try:
                answer = await request.waiter
            except asyncio.CancelledError:
                self._give_up(request)
                raise
            attempts, versions = request.attempt, self._versions(request)
        else:
            answer, attempts, versions = await self._infer_once(request_id, payload, timeout_s, key, report, now)
        if report is not None:
            report.attempts, report.versions = attempts, versions
        return answer  # type: ignore[no-any-return]

    async def _infer_once(
        self, chosen: str, payload: Payload, timeout_s: float | None, key: str | None, report: Report | None, now: float
    ) -> tuple[Payload, int, Versions]:
        """Return the answer to what was asked with an id, now, before or at the same time, and what is told of it."""
        payload = _ready(payload)
        digest = digest_of(payload)
        kept = self.requests.kept(chosen, now=now)
        if kept is not None:
            answer, attempts, versions, whose = kept
            if whose != digest:
                raise RequestIdReusedError(chosen)
            return _copied(answer), attempts, versions
        limit_s = self._checked_timeout(timeout_s)
        request = self.requests.chosen(chosen)
        if request is not None:
            if request.digest != digest:
                raise RequestIdReusedError(chosen)
            request.num_waiters += 1
            request.is_shared = True
            until = math.inf if limit_s is None else now + limit_s
            answer = await self._wait_with_others(request, limit_s, is_first=not self._cancels_chosen)
            if answer is None:  # whoever asked first had less time
                left_s = None if limit_s is None else max(until - time.monotonic(), LEAST_S)
                return await self._infer_once(chosen, payload, left_s, key, report, time.monotonic())
        else:
            request = self._admit(payload, timeout_s, key, chosen, now, report)
            request.digest = digest
            request.waiter.add_done_callback(_look_at)
            self._send(request)
            answer = await self._wait_with_others(request, None, is_first=True)
        assert answer is not None
        return _copied(answer) if request.is_shared else answer, request.attempt, self._versions(request)

    def _versions(self, request: Open) -> Versions:
        """Return the versions of the weights that an answered request was executed with."""
        if not request.contexts:
            return self._first_versions
        parts = [(stage, request.contexts.get(stage, EMPTY)) for stage in self._graph.outputs]
        return versions_of(self._graph, merged_weights(self._graph, parts))

    async def _wait_with_others(self, request: Open, timeout_s: float | None, *, is_first: bool) -> Payload | None:
        """The same request may come again: each waits, and gives up, alone.

        None: the time of who came first is over, and not that of this one, who may ask again.
        """
        try:
            answer: Payload = await asyncio.wait_for(asyncio.shield(request.waiter), timeout_s)
        except asyncio.TimeoutError:
            late = DeadlineExceededError(timeout_s or 0.0, self.whereabouts.stage_of(request))
            late.__suppress_context__ = True  # as "from None" does, which a compiled module leaves out
            raise late from None
        except DeadlineExceededError:
            if is_first:
                raise
            return None
        finally:
            request.num_waiters -= 1
            if not request.num_waiters and not request.waiter.done() and self._cancels_chosen:
                self._give_up(request)
        return answer

    def _give_up(self, request: Open) -> None:
        if self.requests.failed(request.id) is not None:
            if request.trace is not None:
                self._finish_trace(request, None, "CancelledError")
            self.node.cancel([request.id])
            if not request.waiter.done():
                request.waiter.cancel()

    def _new_id(self) -> bytes:
        """Of one request of one gateway alone, whatever the client calls it: what comes late is told apart."""
        return self._salt + next(self._ids).to_bytes(8, "little")

    def _checked_timeout(self, timeout_s: float | None) -> float | None:
        timeout_s = self.default_timeout_s if timeout_s is None else timeout_s
        if timeout_s is not None and not timeout_s > 0:
            raise BadRequestError("", f"timeout_s must be more than 0 seconds, got {timeout_s!r}")
        return timeout_s

    def _admit(
        self,
        payload: Payload,
        timeout_s: float | None,
        key: str | None,
        chosen: str | None,
        now: float,
        report: Report | None = None,
    ) -> Open:
        if self._closed:
            raise GatewayClosedError(self.member)
        timeout_s = self._checked_timeout(timeout_s)
        id_ = self._new_id()
        deadline = math.inf if timeout_s is None else now + timeout_s
        item = Item(Kind.ITEM, id_, self.number, deadline).carry(_ready(payload))
        if key is not None:
            item.context = RequestContext(key=_checked_key(key))
        waited_s = max(self.node.in_flight[stage].waited_s(now) for stage in self._first)
        retry_after_s = self.requests.retry_after_s(item.size_bytes, now=now, waited_s=waited_s)
        if retry_after_s is not None:
            raise OverloadedError(len(self.requests), retry_after_s)
        request = Open(
            id_, item, self._loop.create_future(), opened_at=now, deadline=deadline, size_bytes=item.size_bytes
        )
        request.chosen = chosen
        if report is not None:
            request.label = report.request_id
        if self.tracer is not None:
            request.trace = self.tracer.begin("" if report is None else report.traceparent)
            if request.trace is not None:
                item.context = replace(item.context, hops=Hops())
        self.requests.open(request)
        return request

    def _send(self, request: Open) -> None:
        turn = self.node.turn
        turn.is_on = len(self.requests) == 1  # there is none that could go with it
        try:
            for index, stage in enumerate(self._first):
                item = request.item if index == 0 and request.attempt == 1 else _again(request)
                self.node.send(item, stage)
        finally:
            try:
                if turn.is_on:
                    turn.is_on = False
                    self.node.flush()
            finally:
                self._busy.set()  # those who tend the requests hear of it when it has left

    def _send_again(self, request: Open) -> None:
        try:
            self._send(request)
        except Exception:  # a defect of ours: the others' time must not stop for it
            logger.exception("a request could not be sent again")

    # ---- answers

    def arrived(self, edge: Edge, items: list[Item]) -> None:
        now = time.monotonic()
        for item in items:
            edge.mention(Kind.RELEASED, item.id, size_bytes=item.size_bytes)
            self.num_replayed += item.replayed
            request = self.requests.get(item.id)
            if request is not None and item.context is not EMPTY and edge.stage not in request.parts:
                request.contexts[edge.stage] = item.context
            if request is None:
                self.requests.num_repeated += 1
            elif item.kind == Kind.ERROR:
                self._failed(request, item.error)
            elif len(self._graph.outputs) == 1:
                self._answer(request, item.payload, item.size_bytes, now)
            else:
                request.parts.setdefault(edge.stage, item)
                if len(request.parts) == len(self._graph.outputs):
                    size_bytes = sum(part.size_bytes for part in request.parts.values())
                    self._answer(request, _joined(request.parts), size_bytes, now)

    def _answer(self, request: Open, answer: Payload, size_bytes: int, now: float) -> None:
        kept = None
        if request.chosen is not None:
            kept = _copied(answer), request.attempt, self._versions(request), request.digest
        if self.requests.answered(request.id, kept, size_bytes, now=now) is not None:
            if request.trace is not None:
                self._finish_trace(request, None)
            self._call_off(request)
            if not request.waiter.done():
                request.waiter.set_result(answer)

    def _failed(self, request: Open, answer: ErrorAnswer) -> None:
        error = answer.error()
        if not answer.doubtful:
            self._fail(request, error)
        elif request.id not in self._doubtful:
            self._doubtful[request.id] = (time.monotonic() + self.requests.latencies.patience_s, error)

    def _fail(self, request: Open, error: ServingError) -> None:
        if self.requests.failed(request.id) is not None:
            self._note_failure(error)
            if not request.waiter.done():
                request.waiter.set_exception(error)
            if request.trace is not None:
                self._finish_trace(request, error)
            if self._branches:
                self.node.cancel([request.id])  # the other branches go on with it
            else:
                self.node.take_back(request.id)
            self._call_off(request)

    def _note_failure(self, error: ServingError) -> None:
        """Keep what an operator is shown; the stage that it came from tells more about its own."""
        self.num_errors += 1
        kind = type(error).__name__
        before = self.last_failure
        count = before.count + 1 if before is not None and before.kind == kind else 1
        self.last_failure = Failure(kind=kind, error=str(error), count=count, at=time.time())

    def _finish_trace(self, request: Open, error: ServingError | None, kind: str = "") -> None:
        assert self.tracer is not None
        ended, took_s = time.time(), time.monotonic() - request.opened_at
        contexts = (request.item.context, *request.contexts.values())
        journey = Journey(
            pipeline=self.pipeline,
            gateway=self.member,
            request_id=request.chosen or request.label or request.id.hex(),
            opened=ended - took_s,
            ended=ended,
            attempts=request.attempt,
            hops=merged([context.hops for context in contexts if context.hops is not None]).read(),
            error=type(error).__name__ if error is not None else kind,
            error_text="" if error is None else str(error),
            where=str(getattr(error, "where", "")),
        )
        self.tracer.finish(request.trace, journey)

    def _call_off(self, request: Open) -> None:
        """It is over, but parts of it, or a second copy, may still be on their way."""
        if self._doubtful:
            self._doubtful.pop(request.id, None)
        if request.attempt > 1 or request.opened_at <= self._lost_at:
            self.node.cancel([request.id])

    # ---- what the node tells

    def asked(self, ids: Iterable[bytes]) -> None:
        """A replica waits for the other parts of these requests. Those that have been answered are called off, as are
        those of an earlier gateway of this name; of those that were under way when a replica was lost, the other part
        may have been lost with it.
        """
        now, late = time.monotonic(), []
        for id_ in ids:
            request = self.requests.get(id_)
            if request is None:
                if id_.startswith(self._salt):
                    late.append(id_)
            elif (
                request.sent_at <= min(self._lost_at, now - self.requests.latencies.patience_s)
                and not self._is_held(id_)
                and self.requests.retries.may_retry(request, now=now)
            ):
                self._send_again(request)
        self.node.cancel(late)

    def refused(self, stage: str, item: Item, error: ServingError) -> None:
        request = self.requests.get(item.id)
        if request is not None:
            self._fail(request, error)

    def connection_lost(self, edge: Edge, error: Exception) -> None:
        if not isinstance(error, PeerLeftError):  # who leaves has passed on what it had
            self.replica_lost()
        self.on_edge_lost(edge, error)

    def replica_lost(self) -> None:
        """Some replica, not only of those beside us, is gone."""
        self._lost_at = time.monotonic()
        self.requests.retries.replica_lost(now=self._lost_at)

    # ---- time

    async def _tend(self) -> None:
        while True:
            if not len(self.requests):
                self.whereabouts.clear()
                self._busy.clear()
                await self._busy.wait()
            await asyncio.sleep(TEND_S)
            now = time.monotonic()
            if late := self.whereabouts.to_ask(now=now):
                self.ask_where(late)
            for request in self.whereabouts.over(now=now):
                self._fail(request, self._too_late(request, now))
            for request in self.requests.retries.to_retry(now=now, held=self._is_held):
                self._send_again(request)
            for id_ in [id_ for id_, (at, _) in self._doubtful.items() if at <= now]:
                _, error = self._doubtful.pop(id_)
                doubted = self.requests.get(id_)
                if doubted is not None:
                    self._fail(doubted, error)

    def _is_held(self, id_: bytes) -> bool:
        return all(id_ in self.node.in_flight[stage] for stage in self._first)

    def _too_late(self, request: Open, now: float) -> ServingError:
        for stage in self._first:
            if not self.node.in_flight[stage].num_live:
                return StageUnavailableError(stage, now - request.opened_at)
        return DeadlineExceededError(round(request.deadline - request.opened_at, 3), self.whereabouts.stage_of(request))

    def statistics(self) -> GatewayCounts:
        """Return counts since the start, depths now, and seconds."""
        requests, latencies = self.requests, self.requests.latencies
        return GatewayCounts(
            open=len(requests),
            open_bytes=requests.open_bytes,
            waiting=sum(in_flight.num_waiting for in_flight in self.node.in_flight.values()),
            answered=requests.num_answered,
            failed=requests.num_failed,
            errors=self.num_errors,
            refused=requests.num_refused,
            repeated=requests.num_repeated,
            retried=requests.retries.num_retried,
            replayed=sum(in_flight.num_replayed for in_flight in self.node.in_flight.values()),
            answers_replayed=self.num_replayed,
            latency_sum_s=latencies.sum_s,
            p50_s=latencies.quantile(0.5),
            p95_s=latencies.quantile(0.95),
            p99_s=latencies.quantile(0.99),
        )

    # ---- the end

    async def drain(self, timeout_s: float) -> bool:
        """Take in nothing more and wait for the answers that are under way; return whether all came."""
        self._closed = True
        waiters = [request.waiter for request in self.requests.all_open()]
        if waiters:
            await asyncio.wait(waiters, timeout=timeout_s)
        return not len(self.requests)

    async def aclose(self) -> None:
        """Fail what is open, leave all edges."""
        self._closed = True
        self._tending.cancel()
        for request in self.requests.all_open():
            self._fail(request, GatewayClosedError(self.member))
            if request.waiter.done() and not request.waiter.cancelled():
                request.waiter.exception()
        with contextlib.suppress(asyncio.CancelledError):
            await self.node.aclose()


def _again(request: Open) -> Item:
    item = request.item.successor()
    item.attempt = request.attempt
    item.replayed = request.attempt > 1
    return item.copy_payload(request.item)  # type: ignore[no-any-return]


def _checked_key(key: object) -> str:
    """Return a key that can go along with the request; it is routed by, and sent as JSON."""
    if isinstance(key, str) and key.encode(errors="replace").decode() == key:
        return key
    raise BadRequestError("", f"key must be a str of Unicode characters, got {key!r:.100}")


def _ready(payload: Any) -> Payload:
    """Return the payload in contiguous CPU tensors; BadRequestError for what is none."""
    if isinstance(payload, Tensor):
        return _contiguous(payload)
    if isinstance(payload, dict) and all(isinstance(name, str) for name in payload):
        return {name: _contiguous(value) for name, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [_contiguous(value) for value in payload]
    raise BadRequestError("", f"expected a tensor, or a list or dict of tensors, got a {type(payload).__name__}")


def _contiguous(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise BadRequestError(
            "", f"expected a tensor, or a list or dict of tensors, and in it a {type(value).__name__}"
        )
    if value.is_sparse or value.is_quantized or value.is_nested:
        raise BadRequestError("", f"a tensor of layout {value.layout} and type {value.dtype} cannot be sent")
    ready = sendable(value)
    if ready is None:
        raise BadRequestError("", f"a tensor of type {value.dtype} cannot be sent")
    return ready


def _copied(payload: Payload) -> Payload:
    """Clone: callers may modify an answer, and received tensors share one buffer."""
    return map_tensors(payload, Tensor.clone)


def _look_at(waiter: asyncio.Future[Any]) -> None:
    if not waiter.cancelled():
        waiter.exception()  # perhaps all who waited have gone


def _joined(parts: dict[str, Item]) -> Payload:
    joined: dict[str, Tensor] = {}
    for stage, item in sorted(parts.items()):
        payload = item.payload
        if isinstance(payload, Tensor):
            joined[stage] = payload
        else:
            named = (
                payload.items() if isinstance(payload, dict) else ((str(i), value) for i, value in enumerate(payload))
            )
            joined.update({f"{stage}.{name}": value for name, value in named})
    return joined
