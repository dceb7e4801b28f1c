"""One sequence on its way through a pipeline: what is sent of it, and what again when the state of it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ...channel.base import Payload
from ..errors import (
    BadRequestError,
    DeadlineExceededError,
    OverloadedError,
    RequestLostError,
    ServingError,
    StateLostError,
)
from ..flow.context import Versions
from ..ingress.answers import Asked, Report
from ..ingress.versions import joined
from .cache import Step
from .message import SEQUENCE_BYTES, pack
from .turns import Turns

if TYPE_CHECKING:
    from typing_extensions import Unpack

FREE_S = 5.0
PATIENT_LOSSES = 2  # of one token: then others that are sent again are the cause, rather than a lost replica


class Infers(Protocol):
    """A deployment, a gateway's view of one, or stages in this process."""

    async def infer(self, payload: Payload, **asked: Unpack[Asked]) -> Payload:
        """Answer one request; see ``Deployment.infer``."""


class _UpdatedError(Exception):
    """A stage got new weights amid the sequence."""


class Run:
    """``tokens``: all so far; whoever asks for logits appends to them. ``is_begun``: stages may have states of it."""

    def __init__(
        self,
        served: Infers,
        tokens: Sequence[int],
        *,
        key: str | None,
        timeout_s: float,
        chunk_tokens: int,
        max_replays: int,
        on_replay: Callable[[], None],
        one_by_one: Turns,
        report: Report | None = None,
    ) -> None:
        """``timeout_s``: from now on. ``on_replay`` is called each time when the sequence is sent again.
        ``one_by_one``: whose states are lost again and again, as caches are too small, is sent while no other such is.

        ``report``: of all steps together, if ``served`` reports; each continues the trace that it names.
        """
        self.tokens = list(tokens)
        self.timeout_s = timeout_s
        self.is_begun = False
        self._served, self._chunk_tokens, self._max_replays = served, chunk_tokens, max_replays
        self._on_replay, self._one_by_one = on_replay, one_by_one
        self._report = (report or Report()) if getattr(served, "reports", False) else None
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._sequence = os.urandom(SEQUENCE_BYTES)
        self._key = key or self._sequence.hex()
        self._attempt = self._num_known = 0
        self._versions: Versions = {}  # in the first step of this attempt

    def remaining_s(self) -> float:
        """Return how much time is left; DeadlineExceededError for none."""
        left_s = self._deadline - self._loop.time()
        if left_s <= 0:
            raise DeadlineExceededError(self.timeout_s, f"token {len(self.tokens)}")
        return left_s

    async def logits(self) -> Tensor:
        """Return the logits ``[vocabulary]`` of the next token, whatever it takes. Raises a ServingError."""
        num_lost = num_updates = 0
        while True:
            size = self._chunk_tokens if num_updates < PATIENT_LOSSES else len(self.tokens)
            try:
                if num_lost < PATIENT_LOSSES:
                    return await self._advance(size)
                return await self._advance_alone(size)
            except (StateLostError, RequestLostError):  # a step may be taken twice, whatever the stages are declared
                num_lost += 1
                if num_lost > self._max_replays:
                    raise
                self._start_over()
            except _UpdatedError:
                num_updates += 1
                self._start_over()
            except OverloadedError as error:  # what was begun goes before what is new, so it is only a matter of time
                await asyncio.sleep(min(error.retry_after_s, self.remaining_s()))

    def _start_over(self) -> None:
        self._on_replay()
        self._attempt += 1
        self._num_known = 0

    async def _advance_alone(self, size: int) -> Tensor:
        try:
            await self._one_by_one.enter(self.remaining_s())
        except asyncio.TimeoutError:
            raise DeadlineExceededError(self.timeout_s, "the queue of those whose states were lost") from None
        try:
            return await self._advance(size)
        finally:
            self._one_by_one.leave()

    async def free(self) -> None:
        """Tell the stages that it is over; one that does not hear it frees the state when it has been idle for long."""
        farewell = pack(Step(self._sequence, self._attempt, 0, 0), torch.empty(0, dtype=torch.int64), is_last=True)
        if self._report is not None:  # whose answer has been given
            self._report = Report(traceparent=self._report.traceparent)
        until = self._loop.time() + FREE_S
        with contextlib.suppress(ServingError):
            while (left_s := until - self._loop.time()) > 0:
                try:
                    await self._ask(farewell, left_s)
                    return
                except OverloadedError as error:  # what is over takes room from what begins
                    await asyncio.sleep(min(error.retry_after_s, left_s / 2, 1.0))

    async def _advance(self, size: int) -> Tensor:
        """Send what the stages do not know yet: one token, or all of them in pieces of ``size``."""
        while True:
            piece = self.tokens[self._num_known : self._num_known + size]
            step = Step(self._sequence, self._attempt, self._num_known, len(piece))
            left_s = self.remaining_s()
            self.is_begun = True
            answer, versions = await self._ask(pack(step, torch.tensor(piece)), left_s)
            if self._num_known == 0:
                self._versions = versions
            elif _all_but_last(versions) != _all_but_last(self._versions):  # states behind are of what others made
                raise _UpdatedError
            self._num_known += len(piece)
            if self._num_known == len(self.tokens):
                return _rows_of(answer)

    async def _ask(self, payload: Payload, timeout_s: float) -> tuple[Payload, Versions]:
        """Return the answer, and which weights it came through, if ``served`` reports that."""
        try:
            return await self._ask_once(payload, timeout_s)
        except DeadlineExceededError as error:  # which knows of this step alone
            where = error.where
        raise DeadlineExceededError(self.timeout_s, where)

    async def _ask_once(self, payload: Payload, timeout_s: float) -> tuple[Payload, Versions]:
        whole = self._report
        if whole is None:
            return await self._served.infer(payload, timeout_s=timeout_s, key=self._key), {}
        report = Report(traceparent=whole.traceparent)
        answer = await self._served.infer(payload, timeout_s=timeout_s, key=self._key, report=report)
        whole.versions, whole.attempts = joined(whole.versions, report.versions), self._attempt + 1
        return answer, report.versions


def _all_but_last(versions: Versions) -> Versions:
    """Return those of the stages behind which others keep states; ``versions`` are in the order of the graph."""
    return dict(list(versions.items())[:-1])


def _rows_of(answer: Payload) -> Tensor:
    if not isinstance(answer, dict) or "rows" not in answer:
        raise BadRequestError("", "this pipeline does not generate: its last stage is no GenerationStage")
    return answer["rows"]
