"""Generates token by token through a pipeline whose stages keep the state of each sequence, and may lose it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

import torch

from ...channel.base import Payload
from ..errors import DeadlineExceededError, GatewayClosedError, OverloadedError, SequenceTooLongError
from ..flow.retry import MAX_REPLAYS, check_max_replays
from ..ingress.answers import Asked, Report
from .question import Question
from .run import Infers, Run
from .sampling import Sampling
from .turns import Turns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..gateway.served import Metric

CLOSE_S = 1.0
LOOK_S = 0.5
RETRY_AFTER_S = 1.0


class GenerationOptions(TypedDict, total=False):
    """Arguments of ``Generator``."""

    max_running: int
    max_waiting: int
    chunk_tokens: int
    max_replays: int
    timeout_s: float


class Generator:
    """The token loop over ``served``, whose first stage takes tokens and whose last gives logits: GenerationStages.

    The pipeline's policy must be "sticky", so that each step of a sequence finds the replica with its state. When it
    does not (the replica died, was drained, is new, or has evicted it), all tokens so far are sent again, and the
    generation goes on with the same tokens. It is a ``StreamingServed``, so a gateway can serve it. Use it as a context
    manager on one event loop.
    """

    def __init__(
        self,
        served: Infers,
        *,
        max_running: int = 32,
        max_waiting: int = 1024,
        chunk_tokens: int = 128,
        max_replays: int = MAX_REPLAYS,
        timeout_s: float = 60.0,
    ) -> None:
        """``max_running``: generations at a time; others wait in order, up to ``max_waiting``.

        It should be at most twice the ``Batch.max_size`` of the stages, and the states of so many should fit in their
        caches. ``chunk_tokens``: a longer prompt is sent in pieces, so that it holds the others up less.
        ``max_replays``: how often one token may be tried again. ``timeout_s``: default of a generation.
        """
        for name, value in (("max_running", max_running), ("chunk_tokens", chunk_tokens)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self._served = served
        if max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, got {max_waiting!r}")
        self._turns = Turns(max_running)
        self._one_by_one = Turns(1)
        self._max_waiting, self._chunk_tokens = max_waiting, chunk_tokens
        self._max_replays = check_max_replays(max_replays)
        self._timeout_s = timeout_s
        self._forgetting: set[asyncio.Task[None]] = set()
        self._is_draining = self._is_closed = False
        self._ended = asyncio.Event()
        self.num_tokens = self.num_replays = 0
        self.num_done = self.num_failed = 0

    async def __aenter__(self) -> Generator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def drain(self, timeout_s: float) -> bool:
        """Start no more generations and wait for those under way, which go on; return whether all have ended."""
        self._is_draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while not self._turns.is_idle:
            self._ended.clear()
            try:
                await asyncio.wait_for(self._ended.wait(), min(until - loop.time(), LOOK_S))  # who waits may give up
            except asyncio.TimeoutError:
                if loop.time() >= until:
                    return False
        if self._forgetting:
            await asyncio.wait(self._forgetting, timeout=min(CLOSE_S, max(0.0, until - loop.time())))
        return True

    async def aclose(self) -> None:
        """Start no more generations, and give the last states a moment to be freed."""
        self._is_closed = True
        if self._forgetting:
            await asyncio.wait(self._forgetting, timeout=CLOSE_S)
        left = list(self._forgetting)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        top_k: int | None = None,
        stop: Collection[int] = (),
        timeout_s: float | None = None,
        key: str | None = None,
        report: Report | None = None,
    ) -> AsyncGenerator[int, None]:
        """Yield the tokens that follow ``tokens``, each as soon as it is chosen.

        It ends after ``max_new_tokens``, before the first one in ``stop``, or where the sequence is as long as the
        stages serve; a SequenceTooLongError says that ``tokens`` are longer. The same arguments give the same tokens,
        whatever replicas are lost on the way. ``timeout_s``: for all of it, waiting for its turn included. ``key``:
        generations with the same key go to the same replicas. ``report``: its trace is continued by each step, and it
        is filled in for all steps so far, if what generates reports; at the end it gets its ``finish_reason``.

        Closed or cancelled, it frees its states. Raises a ServingError.
        """
        sampling = Sampling(temperature=temperature, seed=seed, top_k=top_k)
        if not tokens or max_new_tokens < 1:
            raise ValueError(f"expected tokens to go on from and max_new_tokens >= 1, got {max_new_tokens}")
        run = Run(
            self._served,
            tokens,
            key=key,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            chunk_tokens=self._chunk_tokens,
            max_replays=self._max_replays,
            on_replay=self._count_replay,
            one_by_one=self._one_by_one,
            report=report,
        )
        await self._enter(run)
        reason = "length"
        try:
            for index in range(max_new_tokens):
                try:
                    logits = await run.logits()
                except SequenceTooLongError:
                    if index == 0:
                        raise
                    break
                token = sampling.choose(logits, len(run.tokens))
                if token in stop:
                    reason = "stop"
                    break
                run.tokens.append(token)
                self.num_tokens += 1
                yield token
            self.num_done += 1
            if report is not None:
                report.finish_reason = reason
        except Exception:
            self.num_failed += 1
            raise
        finally:
            self._turns.leave()
            self._ended.set()
            self._forget(run)

    # ---- as what a gateway serves

    @property
    def name(self) -> str:
        return str(getattr(self._served, "name", "generation"))

    @property
    def reports(self) -> bool:
        """``infer`` and ``stream`` fill in a report: why it ended, and what that which serves it knows."""
        return True

    async def infer(self, payload: Payload, **asked: Unpack[Asked]) -> Payload:
        """Answer with all tokens at once: ``{"tokens": [n] int64}``. ``payload``: see ``Question``."""
        tokens = self._asked(Question.of(payload), asked)
        return {"tokens": torch.tensor([token async for token in tokens], dtype=torch.int64)}

    async def stream(self, payload: Payload, **asked: Unpack[Asked]) -> AsyncGenerator[Payload, None]:
        """Yield ``{"token": [1] int64}`` for each token. ``payload``: see ``Question``.

        Asked twice, it is generated twice, with the same tokens: ``request_id`` is not needed.
        """
        async with contextlib.aclosing(self._asked(Question.of(payload), asked)) as tokens:
            async for token in tokens:
                yield {"token": torch.tensor([token])}

    def readiness(self) -> tuple[bool, str]:
        """As that which serves it."""
        readiness = getattr(self._served, "readiness", None)
        return (True, "") if readiness is None else readiness()

    def status(self) -> Mapping[str, object]:
        """As that which serves it, and ``generation``: counts since the start, and depths now."""
        status = getattr(self._served, "status", dict)
        return {**status(), "generation": self.statistics()}

    def metrics(self) -> Mapping[str, Metric | float]:
        """As that which serves it, and the counts of generations."""
        from ..gateway.served import Metric  # a gateway asks; without one, what it is made of need not be installed

        metrics, counts = getattr(self._served, "metrics", dict), self.statistics()
        return {
            **metrics(),
            "generations_running": float(counts["running"]),
            "generations_waiting": float(counts["waiting"]),
            "generations_total": Metric(
                kind="counter",
                help="Generations by how they ended.",
                samples=[({"outcome": outcome}, float(counts[outcome])) for outcome in ("done", "failed")],
            ),
            "generation_tokens_total": Metric(
                kind="counter", help="Tokens generated.", samples=[({}, float(counts["tokens"]))]
            ),
            "generation_replays_total": Metric(
                kind="counter",
                help="Sequences sent again because a state was lost, or made with weights that are no longer served.",
                samples=[({}, float(counts["replays"]))],
            ),
        }

    def statistics(self) -> dict[str, int]:
        """Return counts since the start, and depths now. ``replays``: how often a sequence was sent again."""
        return {
            "running": self._turns.num_running,
            "waiting": self._turns.num_waiting,
            "done": self.num_done,
            "failed": self.num_failed,
            "tokens": self.num_tokens,
            "replays": self.num_replays,
        }

    # ---- inside

    def _asked(self, question: Question, asked: Asked) -> AsyncGenerator[int, None]:
        return self.generate(
            question.tokens,
            max_new_tokens=question.max_new_tokens,
            temperature=question.sampling.temperature,
            seed=question.sampling.seed,
            top_k=question.sampling.top_k,
            stop=question.stop,
            timeout_s=asked.get("timeout_s"),
            key=asked.get("key"),
            report=asked.get("report"),
        )

    async def _enter(self, run: Run) -> None:
        if self._is_draining or self._is_closed:
            raise GatewayClosedError("this generator")
        if not self._turns.is_free and self._turns.num_waiting >= self._max_waiting:
            raise OverloadedError(self._turns.num_waiting, RETRY_AFTER_S)
        try:
            await self._turns.enter(run.remaining_s())
        except asyncio.TimeoutError:
            raise DeadlineExceededError(run.timeout_s, "the queue for a turn") from None

    def _count_replay(self) -> None:
        self.num_replays += 1

    def _forget(self, run: Run) -> None:
        if run.is_begun and not self._is_closed:
            task = asyncio.get_running_loop().create_task(run.free())
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
