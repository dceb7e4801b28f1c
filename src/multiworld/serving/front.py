"""The entry and the exit of a pipeline in one process: takes requests in, keeps each until its answer, answers once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ..channel.base import Payload
from ..world.manager import WorldManager
from .answers import RETRY, error_of
from .custody import Refusal
from .edge import Edge
from .errors import (
    BadRequestError,
    DeadlineExceededError,
    OverloadedError,
    PoisonedRequestError,
    RequestLostError,
    ServingError,
    StageUnavailableError,
)
from .graph import GATEWAY
from .node import Node, Place
from .packets import Item, Kind
from .requests import Admission, Open, Requests

__all__ = ["Front"]

TEND_S = 0.02
WINDOW = 4096  # answers never wait for credit: the gateway has admitted their requests


class Front:
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
        self.requests = Requests(Admission() if admission is None else admission)
        self.default_timeout_s = default_timeout_s
        self._graph = place.graph
        self._first = place.graph.downstream(GATEWAY)
        self._ids = itertools.count()
        self._salt = os.urandom(8)
        self._loop = asyncio.get_running_loop()
        self._tending = self._loop.create_task(self._tend())
        self._closed = False
        self.on_edge_lost: Callable[[Edge, Exception], None] = lambda *_: None

    async def infer(
        self,
        payload: Payload,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> Payload:
        """Send a request through the pipeline and return its answer: the payload of the last stage.

        With several output stages: a dict, whose names are those of the stages, or ``stage.name`` where a stage gives a
        dict. ``payload`` must not be changed until then. ``request_id``: asked again with the same, the same answer
        is given, once it is there, for a while. ``timeout_s``: default, that of the pipeline. ``key``: what the policy
        "sticky" goes by.

        Raises a ServingError. Cancelled, the request is given up everywhere.
        """
        id_ = self._id_of(request_id)
        now = time.monotonic()
        if request_id is not None:
            known = self.requests.kept(id_, now=now)
            if known is not None:
                answer: Payload = known
                return answer
            open_ = self.requests.get(id_)
            if open_ is not None:
                return await self._wait_beside(open_)
        request = self._admit(id_, payload, timeout_s, key, now)
        request.is_chosen = request_id is not None
        self._send(request)
        try:
            return await self._wait(request)
        except asyncio.CancelledError:
            if self.requests.failed(id_) is not None:
                self.node.take_back(id_)
                if not request.waiter.done():
                    request.waiter.set_exception(ServingError("the request was cancelled by whoever sent it first"))
                    request.waiter.exception()
            raise

    async def _wait(self, request: Open) -> Payload:
        return await request.waiter  # type: ignore[no-any-return]

    async def _wait_beside(self, request: Open) -> Payload:
        """The same request came again: it waits for the same answer, and gives up alone."""
        return await asyncio.shield(request.waiter)

    def _id_of(self, request_id: str | None) -> bytes:
        if request_id is None:
            return self._salt + next(self._ids).to_bytes(8, "little")
        return hashlib.blake2b(request_id.encode(), digest_size=16).digest()

    def _admit(self, id_: bytes, payload: Payload, timeout_s: float | None, key: str | None, now: float) -> Open:
        if self._closed:
            raise ServingError("this gateway is closed")
        timeout_s = self.default_timeout_s if timeout_s is None else timeout_s
        if timeout_s is not None and not timeout_s > 0:
            raise BadRequestError("", f"timeout_s must be more than 0 seconds, got {timeout_s!r}")
        deadline = math.inf if timeout_s is None else now + timeout_s
        item = Item(Kind.ITEM, id_, self.number, deadline).carry(_ready(payload))
        if key is not None:
            item.extra = {"key": key}
        retry_after_s = self.requests.retry_after_s(item.size_bytes, now=now)
        if retry_after_s is not None:
            raise OverloadedError(len(self.requests), retry_after_s)
        request = Open(
            id_, item, self._loop.create_future(), opened_at=now, deadline=deadline, size_bytes=item.size_bytes
        )
        self.requests.open(request)
        return request

    def _send(self, request: Open) -> None:
        for index, stage in enumerate(self._first):
            item = request.item if index == 0 and request.attempt == 1 else _again(request)
            self.node.send(item, stage)

    # ---- answers

    def arrived(self, edge: Edge, items: list[Item]) -> None:
        now = time.monotonic()
        for item in items:
            edge.mention(Kind.RELEASED, item.id)
            request = self.requests.get(item.id)
            if request is None:
                self.requests.num_repeated += 1
            elif item.kind == Kind.ERROR:
                self._failed(request, item.error)
            elif len(self._graph.outputs) == 1:
                self._answer(request, item.payload, item.size_bytes, now)
            else:
                request.parts.setdefault(edge.stage, item)
                if len(request.parts) == len(self._graph.outputs):
                    self._answer(request, _joined(request.parts), item.size_bytes, now)

    def _answer(self, request: Open, answer: Payload, size_bytes: int, now: float) -> None:
        if self.requests.answered(request.id, answer, size_bytes, now=now) is not None:
            self._over(request)
            if not request.waiter.done():
                request.waiter.set_result(answer)

    def _failed(self, request: Open, fields: dict[str, Any]) -> None:
        if fields.get("type") == RETRY:
            if self.requests.may_retry(request):
                self._send(request)
            else:
                self._fail(request, RequestLostError(str(fields.get("stage")), "each one tried"))
        else:
            self._fail(request, error_of(fields))

    def _fail(self, request: Open, error: ServingError) -> None:
        if self.requests.failed(request.id) is not None:
            self._over(request)
            if not request.waiter.done():
                request.waiter.set_exception(error)

    def _over(self, request: Open) -> None:
        """A second copy of it may still be on its way, if it was sent twice."""
        if request.attempt > 1:
            self.node.take_back(request.id)

    # ---- what the node tells

    def accepted(self, stage: str, ids: Iterable[bytes]) -> None:
        """The input is kept until the answer all the same."""

    def go_ahead(self, ids: Iterable[bytes]) -> None:
        """Of replicas only."""

    def cancelled(self, ids: Iterable[bytes]) -> None:
        """Of replicas only."""

    def refused(self, stage: str, item: Item, refusal: Refusal) -> None:
        request = self.requests.get(item.id)
        if request is not None:
            self._fail(
                request,
                PoisonedRequestError(stage, refusal.deaths)
                if refusal.deaths
                else RequestLostError(stage, refusal.peer),
            )

    def connection_lost(self, edge: Edge, error: Exception) -> None:
        self.replica_lost()
        self.on_edge_lost(edge, error)

    def replica_lost(self) -> None:
        """Some replica, not only of those beside us, is gone."""
        self.requests.replica_lost(now=time.monotonic())

    # ---- time

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            now = time.monotonic()
            for request in self.requests.expired(now=now):
                self._fail(request, self._too_late(request, now))
                self.node.take_back(request.id)
            for request in self.requests.to_retry(now=now):
                self._send(request)

    def _too_late(self, request: Open, now: float) -> ServingError:
        for stage in self._first:
            if not self.node.custody[stage].num_live:
                return StageUnavailableError(stage, now - request.opened_at)
        return DeadlineExceededError(round(request.deadline - request.opened_at, 3), "")

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, depths now, and seconds."""
        requests, latencies = self.requests, self.requests.latencies
        return {
            "open": len(requests),
            "open_bytes": requests.open_bytes,
            "waiting": sum(custody.num_waiting for custody in self.node.custody.values()),
            "answered": requests.num_answered,
            "failed": requests.num_failed,
            "refused": requests.num_refused,
            "repeated": requests.num_repeated,
            "retried": requests.num_retried,
            "replayed": sum(custody.num_replayed for custody in self.node.custody.values()),
            "p50_s": latencies.quantile(0.5),
            "p95_s": latencies.quantile(0.95),
            "p99_s": latencies.quantile(0.99),
        }

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
            self._fail(request, ServingError("the gateway was closed before the answer was there"))
            if request.waiter.done() and not request.waiter.cancelled():
                request.waiter.exception()
        with contextlib.suppress(asyncio.CancelledError):
            await self.node.aclose()


def _again(request: Open) -> Item:
    item = request.item.successor()
    item.attempt = request.attempt
    item.replayed = request.attempt > 1
    item.meta, item.size_bytes, item.tensors = request.item.meta, request.item.size_bytes, request.item.tensors
    return item  # type: ignore[no-any-return]


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
    if value.is_sparse or value.is_quantized:
        raise BadRequestError("", f"a tensor of layout {value.layout} and type {value.dtype} cannot be sent")
    return value.detach().to("cpu").contiguous()


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
