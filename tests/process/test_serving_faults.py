"""Pipelines of real processes under load, whose replicas are killed, stopped, poisoned, drained and added."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld.serving import (
    BadRequestError,
    Batch,
    DeadlineExceededError,
    Deployment,
    DeploymentError,
    Pipeline,
    PoisonedRequestError,
    RequestLostError,
    Stage,
    StageFailedError,
    StageUnavailableError,
)
from multiworld.serving.control.fleet.actions import LoadFailed
from multiworld.testing import scaled
from tests.process import serving_programs as works

pytestmark = pytest.mark.process

LEASE_S = 1.0


async def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        await asyncio.sleep(0.01)


def of(served: Deployment, stage: str) -> list[dict[str, Any]]:
    return [replica for replica in served.replicas if replica["stage"] == stage and replica["open"]]


def kill(replica: dict[str, Any], how: signal.Signals = signal.SIGKILL) -> str:
    os.kill(replica["pid"], how)
    return str(replica["id"])


async def healed(served: Deployment, lost: set[str], **numbers: int) -> None:
    """Wait until each stage has so many replicas that serve, none of them one that was lost."""
    await until(
        lambda: (
            not lost & {replica["id"] for replica in served.replicas}
            and all(len(of(served, stage)) == number for stage, number in numbers.items())
        ),
        15,
    )


async def assert_idle(served: Deployment) -> None:
    """Nothing is in flight anywhere, and all credit has come back."""

    def is_idle() -> bool:
        if served.status()["requests"]["open"]:
            return False
        stages = served._ingress.node.statistics().values()
        return all(
            not stage.items and not any(replica["in_flight"] for replica in stage.replicas.values()) for stage in stages
        ) and all(not any(map(replica["stats"].get, ("in_flight", "held_bytes"))) for replica in served.replicas)

    await until(is_idle, 5)


class Load:
    """Clients that ask without pause, each request another one, and look at the answers."""

    def __init__(self, served: Deployment, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._served, self._expected = served, expected
        self._numbers: Iterator[int] = iter(range(1, 1 << 30))
        self.num_right = 0
        self.wrong: list[object] = []
        self.failed: list[object] = []
        self.slowest_s = 0.0

    async def _ask(self) -> None:
        while True:
            x = torch.tensor([float(next(self._numbers)), 1.0])
            began = time.monotonic()
            try:
                answer = await self._served.infer(x, timeout_s=20)
            except Exception as error:
                self.wrong.append(error)
            else:
                if torch.equal(answer, self._expected(x)):  # type: ignore[arg-type]
                    self.num_right += 1
                else:
                    self.wrong.append((x, answer))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            await asyncio.sleep(0.001)

    async def _ask_in_haste(self, number: int) -> None:
        """Deadlines and cancellations at all moments of a request's life."""
        random_ = random.Random(number)
        while True:
            x = torch.tensor([float(next(self._numbers)), 2.0])
            asking = asyncio.create_task(self._served.infer(x, timeout_s=random_.uniform(0.001, 0.1)))
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.wait([asking], timeout=random_.uniform(0.001, 0.1))
            asking.cancel()
            with contextlib.suppress(DeadlineExceededError, StageUnavailableError, asyncio.CancelledError):
                if not torch.equal(await asking, self._expected(x)):  # type: ignore[arg-type]
                    self.wrong.append(x)

    @asynccontextmanager
    async def running(self, num_clients: int) -> AsyncIterator[Load]:
        tasks = [asyncio.create_task(self._ask()) for _ in range(num_clients)]
        tasks += [asyncio.create_task(self._ask_in_haste(number)) for number in range(2)]
        try:
            yield self
            await asyncio.sleep(0.1)
        finally:
            self.failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            for _ in range(2):  # one of them may be taken for that of the request in hand
                for task in tasks:
                    task.cancel()
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (self.wrong, self.failed) == ([], [])
        assert self.num_right > 0


@pytest.mark.alone
async def test_a_rhombus_under_load_loses_nothing_whatever_is_killed_stopped_added_or_drained() -> None:
    pipeline = Pipeline(
        [
            Stage("a", works.add_one, replicas=2),
            Stage("b", works.double, inputs=("a",), replicas=2),
            Stage("c", works.triple, inputs=("a",)),
            Stage("m", works.add_three, inputs=("b", "input", "c"), replicas=2, max_replicas=3),
        ],
        lease_s=LEASE_S,
    )
    numbers = {"a": 2, "b": 2, "c": 1, "m": 2}
    async with pipeline.deploy() as served:
        await healed(served, set(), **numbers)
        load = Load(served, lambda x: 5 * (x + 1) + x)
        async with load.running(8):
            for victims in (["b"], ["m"], ["c"], ["a", "m"]):
                await healed(served, {kill(of(served, stage)[0]) for stage in victims}, **numbers)
            await served.scale("m", 3)
            await served.drain(of(served, "b")[0]["id"])
            stopped = of(served, "m")[0]
            try:
                await healed(served, {kill(stopped, signal.SIGSTOP)}, **numbers | {"m": 3})
            finally:
                with contextlib.suppress(ProcessLookupError):
                    kill(stopped, signal.SIGCONT)
            await served.scale("m", 1)
        assert load.slowest_s < 5
        await assert_idle(served)


async def test_poison_is_refused_and_everything_beside_it_answered() -> None:
    pipeline = Pipeline(
        [
            Stage("a", works.add_zero, replicas=2),
            Stage("b", works.Moody, replicas=2, batch=Batch(max_size=8, max_wait_s=0.005)),
        ],
        lease_s=LEASE_S,
    )
    async with pipeline.deploy() as served:
        before = {replica["id"] for replica in of(served, "b")}
        innocents = [served.infer(torch.full((1, 2), float(number)), timeout_s=30) for number in range(1, 61)]
        poison = served.infer(torch.full((1, 2), float(works.KILLS)), timeout_s=30)
        poisoned, *answers = await asyncio.gather(poison, *innocents, return_exceptions=True)
        assert isinstance(poisoned, PoisonedRequestError), poisoned
        assert (poisoned.stage, poisoned.deaths) == ("b", 2)
        for number, answer in enumerate(answers, 1):
            assert isinstance(answer, torch.Tensor), answer
            assert torch.equal(answer, torch.full((1, 2), 2.0 * number))
        await healed(served, set(), b=2)
        ids = {replica["id"] for replica in of(served, "b")} | before
        assert len(ids - before) <= 2, "poison killed more replicas than it may"
        await assert_idle(served)


async def test_only_what_a_killed_replica_was_executing_is_suspected() -> None:
    pipeline = Pipeline([Stage("a", works.add_zero), Stage("b", works.Slow)], lease_s=LEASE_S)
    async with pipeline.deploy() as served:
        await served.infer(torch.zeros(1))
        asking = [asyncio.ensure_future(served.infer(torch.full((1,), float(n)), timeout_s=30)) for n in range(60)]
        await until(lambda: of(served, "b")[0]["stats"].get("in_flight", 0) >= 6, 5)
        lost = {kill(of(served, "b")[0])}
        answers = await asyncio.gather(*asking)
        assert [float(answer) for answer in answers] == [2.0 * number for number in range(60)]  # type: ignore[arg-type]
        await healed(served, lost, b=1)
        await until(lambda: of(served, "b")[0]["stats"].get("done", 0) >= 20, 5)
        assert of(served, "b")[0]["stats"]["alone"] <= 2, "what the thread had, and the one that it was given ahead"
        await assert_idle(served)


@pytest.mark.alone
async def test_what_user_code_does_wrong_ends_in_an_error_that_names_the_stage_and_harms_nothing_else() -> None:
    pipeline = Pipeline(
        [
            Stage("echo", works.Echo),
            Stage("moody", works.Moody, batch=Batch(max_size=8, max_wait_s=0.005)),
            Stage("waits", works.AsyncMoody),
            Stage("buffer", works.SameBuffer),
        ],
        lease_s=LEASE_S,
    )
    async with pipeline.deploy() as served:

        async def ask(value: float, **options: Any) -> Any:
            return await served.infer(torch.full((1, 3), float(value)), **{"timeout_s": 10, **options})

        bad = [works.RAISES, works.GIVES_GARBAGE, works.EXITS, works.HAS_NO_TEXT]
        results = await asyncio.gather(*map(ask, [*bad, *range(1, 30)]), return_exceptions=True)
        for error in results[: len(bad)]:
            assert isinstance(error, StageFailedError), error
            assert error.stage == "moody"
        for number, answer in enumerate(results[len(bad) :], 1):
            assert torch.equal(answer, torch.full((1, 3), 8.0 * number)), answer  # type: ignore[arg-type]
        rows = await asyncio.gather(*map(ask, [works.LOSES_ROWS, 1.0, 2.0]))
        assert [float(row[0, 0]) for row in rows] == [8.0 * works.LOSES_ROWS, 8.0, 16.0]
        with pytest.raises(StageFailedError, match="waits"):
            await ask(works.CANCELS / 2)

        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            await ask(works.TAKES_LONG, timeout_s=0.2)
        assert time.monotonic() - began < 0.5
        first = asyncio.create_task(ask(works.AWAITS_LONG / 2, request_id="the same"))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(ask(works.AWAITS_LONG / 2, request_id="the same"))
        await asyncio.sleep(0.1)
        first.cancel()
        answer = await second
        assert torch.equal(answer, torch.full((1, 3), 4.0 * works.AWAITS_LONG))
        answer.zero_()
        again = await ask(works.AWAITS_LONG / 2, request_id="the same")
        assert torch.equal(again, torch.full((1, 3), 4.0 * works.AWAITS_LONG)), "an answer that its owner changed"
        cancelled = asyncio.create_task(ask(works.AWAITS_LONG / 2))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(BadRequestError):
            await served.infer("no tensor")  # type: ignore[arg-type]
        await assert_idle(served)
        assert served.status()["requests"]["replayed"] == 0


def tensors_of(payload: Any) -> list[torch.Tensor]:
    if isinstance(payload, torch.Tensor):
        return [payload]
    return list(payload.values()) if isinstance(payload, dict) else payload


PAYLOADS: list[Any] = [
    torch.tensor(3.5),
    torch.empty(0, 4),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.tensor([True, False]),
    torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    torch.tensor([1 + 2j, 3 - 1j]).conj(),
    [],
    {},
    [torch.arange(5), torch.tensor(1.0), torch.empty(0)],
    {"a": torch.ones(2, 2, dtype=torch.float64), "b": torch.tensor([7], dtype=torch.int16)},
    {"large": torch.arange(40_000.0), "small": torch.tensor(1)},
    torch.arange(16 << 20, dtype=torch.float32),
    torch.ones(3).expand(1000, 3),
]


async def test_weights_are_handed_over_where_requests_are_authenticated() -> None:
    """By a replica to one more: both ends agree on the channel."""
    pipeline = Pipeline([Stage("m", torch.nn.Linear(1, 1, bias=False))], lease_s=LEASE_S, backend="authenticated")
    async with pipeline.deploy() as served:
        await served.infer(torch.ones(1, 1))  # so that there is a canary to hand over, too
        await served.update("m", {"weight": torch.full((1, 1), 3.0)})
        await served.scale("m", 2)
        assert [event for event in served.events if isinstance(event, LoadFailed)] == []
        answers = [await served.infer(torch.ones(1, 1)) for _ in range(8)]
        assert [float(answer) for answer in answers] == [3.0] * 8  # type: ignore[arg-type]


async def test_a_host_process_that_is_killed_is_started_again_and_no_request_is_lost() -> None:
    pipeline = Pipeline([Stage("one", works.Echo, replicas=2)], lease_s=LEASE_S)
    async with pipeline.deploy() as served:
        replica = of(served, "one")[0]
        host = int(Path(f"/proc/{replica['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        lost = {str(each["id"]) for each in of(served, "one")}
        os.kill(host, signal.SIGKILL)
        answer = await served.infer(torch.ones(2), timeout_s=scaled(20))
        assert torch.equal(answer, torch.ones(2))  # type: ignore[arg-type]
        await healed(served, lost, one=2)


async def test_payloads_of_every_kind_come_through_as_they_are() -> None:
    pipeline = Pipeline([Stage("one", works.Echo, replicas=2), Stage("two", works.Echo, batch=Batch(max_size=4))])
    async with pipeline.deploy() as served:
        answers = await asyncio.gather(*(served.infer(payload, timeout_s=20) for payload in PAYLOADS))
        for payload, answer in zip(PAYLOADS, answers, strict=True):
            assert type(payload) is type(answer)
            for sent, came in zip(tensors_of(payload), tensors_of(answer), strict=True):
                assert sent.dtype == came.dtype
                assert torch.equal(sent, came)
            if isinstance(payload, dict):
                assert list(payload) == list(answer)
        await assert_idle(served)


async def test_a_stage_that_is_not_idempotent_never_executes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    monkeypatch.setenv("COUNTING_FILE", str(counts))
    pipeline = Pipeline(
        [Stage("a", works.add_zero, replicas=2), Stage("count", works.Counting, replicas=2, idempotent=False)],
        lease_s=LEASE_S,
    )
    async with pipeline.deploy() as served:
        await healed(served, set(), a=2, count=2)
        asked = [served.infer(torch.tensor([float(number)]), timeout_s=20) for number in range(400)]
        asking = asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: counts.exists() and counts.stat().st_size > 100, 10)
        kill(of(served, "count")[0])
        kill(of(served, "a")[0])
        answers = await asking
        lost = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(error, RequestLostError) for error in lost), lost
        assert len(lost) < len(answers)
        executed = [int(line) for line in counts.read_text().split()]
        assert len(executed) == len(set(executed)), "executed twice"
        for number, answer in enumerate(answers):
            if isinstance(answer, torch.Tensor):
                assert torch.equal(answer, torch.tensor([2.0 * number]))
                assert number in set(executed)
        await assert_idle(served)


async def test_a_stage_that_cannot_be_set_up_is_given_up_soon_and_named() -> None:
    began = time.monotonic()
    stages = [Stage("head", works.add_one), Stage("broken", works.Broken)]
    with pytest.raises(DeploymentError, match=r"stage 'broken' does not come up: 3 .* FileNotFoundError: weights.pt"):
        async with Pipeline(stages=stages).deploy():
            pass
    assert time.monotonic() - began < scaled(30), "it waited for the end of the time"
