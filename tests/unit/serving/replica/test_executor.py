"""What becomes of a stage's work: batches, errors of user code, memory that is used again, jobs executed alone."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multiworld.serving.flow.packets import Item, Kind
from multiworld.serving.flow.payloads import Packed
from multiworld.serving.graph import Batch
from multiworld.serving.replica.black_box import BlackBox
from multiworld.serving.replica.executor import MAX_CONCURRENT, Executor, Job, describe_error
from multiworld.serving.replica.ownership import is_nobodys_else
from multiworld.serving.replica.results import checked_result, small_copy


def job(number: int, payload: Any, *, alone: bool = False) -> Job:
    id_ = number.to_bytes(16, "little")
    return Job(id_, [Item(Kind.ITEM, id_, 1).carry(payload)], alone=alone)


class Bench:
    """An executor whose results are collected."""

    def __init__(
        self,
        work: Callable[..., Any],
        batch: Batch | None = None,
        *,
        idempotent: bool = True,
        box: BlackBox | None = None,
    ) -> None:
        self.results: dict[int, Any] = {}
        self.announced: list[int] = []
        self._came = asyncio.Event()
        self.executor = Executor(
            work,
            batch=batch,
            idempotent=idempotent,
            before_alone=self._announce,
            after_alone=lambda: self.announced.append(0),
            on_done=self._done,
            box=box,
        )

    async def _announce(self, job: Job) -> None:
        self.announced.append(int.from_bytes(job.id, "little"))

    def _done(self, job: Job, result: Any) -> None:
        self.results[int.from_bytes(job.id, "little")] = result.tensor if isinstance(result, Packed) else result
        self._came.set()

    async def run(self, *jobs: Job, beside: int = 0) -> list[Any]:
        for one in jobs:
            self.executor.submit(one)
        while len(self.results) < len(jobs) + beside:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 5)
        self.executor.close()
        return [self.results[number] for number in sorted(self.results)]


async def test_requests_of_one_kind_are_executed_together_and_split_again() -> None:
    calls: list[int] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape[0] if x.dim() else 1)
        return x * 2

    results = await Bench(work, Batch(max_size=8, max_wait_s=0.01)).run(
        job(1, torch.ones(2, 3)), job(2, torch.ones(1, 3) * 5), job(3, torch.ones(1, 4)), job(4, torch.tensor(7.0))
    )
    assert [result.tolist() for result in results] == [[[2.0] * 3] * 2, [[10.0] * 3], [[2.0] * 4], 14.0]
    assert 3 in calls


async def test_one_bad_request_spoils_no_other_of_its_batch() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x

    results = await Bench(work, Batch(max_size=8, max_wait_s=0.01)).run(
        *(job(number, torch.tensor([float(number - 3)])) for number in range(1, 6))
    )
    assert [isinstance(result, ValueError) for result in results] == [True, True, False, False, False]


async def test_results_in_memory_that_the_work_uses_again_stay_as_they_were() -> None:
    for size in (4, 100_000):
        buffer = torch.empty(size)
        results = await Bench(lambda x, buffer=buffer: buffer.copy_(x)).run(
            *(job(number, torch.full((size,), float(number))) for number in range(1, 5))
        )
        assert [float(result[-1]) for result in results] == [1.0, 2.0, 3.0, 4.0]


async def test_large_results_that_nobody_else_has_are_not_copied() -> None:
    addresses: set[int] = set()

    def work(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        addresses.add(result.data_ptr())
        return result

    async def works(x: torch.Tensor) -> torch.Tensor:
        return work(x)

    for one in (work, works):
        results = await Bench(one).run(*(job(number, torch.ones(100_000)) for number in range(1, 4)))
        assert {result.data_ptr() for result in results} == addresses
        addresses.clear()


async def test_whatever_user_code_raises_or_returns_is_an_error_of_its_request_alone() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raising(error: BaseException) -> Any:
        raise error

    wishes: list[Callable[[], Any]] = [
        lambda: raising(Odd()),
        lambda: raising(SystemExit(1)),
        lambda: raising(StopIteration()),
        lambda: raising(asyncio.CancelledError()),
        lambda: raising(GeneratorExit()),
        lambda: "text",
        lambda: [1],
        lambda: {1: torch.ones(1)},
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: {"\udc80": torch.ones(1)},
        lambda: asyncio.sleep(0),
        lambda: None,
        lambda: torch.ones(1),
    ]
    results = await Bench(lambda x: wishes[int(x)]()).run(
        *(job(number, torch.tensor(number)) for number in range(len(wishes)))
    )
    assert [isinstance(result, Exception) for result in results] == [True] * (len(wishes) - 1) + [False]
    assert all(len(describe_error(result)) < 5000 for result in results[:-1])


async def test_what_waits_when_batches_begin_is_not_mixed() -> None:
    seen: list[torch.dtype] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return x

    bench = Bench(work)
    running = asyncio.create_task(bench.run(job(1, torch.ones(1, 2)), job(2, torch.ones(1, 2, dtype=torch.int64))))
    await asyncio.sleep(0)
    assert bench.executor.num_waiting == 2
    bench.executor.tune(Batch(max_size=4, max_wait_s=0.0))
    assert not any(isinstance(result, Exception) for result in await running)
    assert seen == [torch.float32, torch.int64]


def test_a_nested_tensor_is_not_sent_as_it_is() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    assert small_copy(nested) is None
    assert small_copy(torch.eye(2).to_sparse()) is None, "whose size cannot be told"


async def test_work_that_cancels_itself_fails_and_the_next_is_executed() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        if x < 0:
            raise asyncio.CancelledError
        return x

    first, second = await Bench(work).run(job(1, torch.tensor(-1)), job(2, torch.tensor(1)))
    assert isinstance(first, RuntimeError)
    assert second == 1


async def test_a_suspected_request_is_announced_and_executed_when_nothing_else_is() -> None:
    running: set[int] = set()
    beside: list[set[int]] = []

    async def work(x: torch.Tensor) -> torch.Tensor:
        running.add(int(x))
        await asyncio.sleep(0.01)
        if int(x) == 3:
            beside.append(set(running))
        running.discard(int(x))
        return x

    bench = Bench(work)
    await bench.run(*(job(number, torch.tensor(number), alone=number == 3) for number in range(1, 6)))
    assert beside == [{3}]
    assert bench.announced == [3, 0]


async def test_a_coroutine_that_nobody_waits_for_any_more_is_cancelled() -> None:
    cancelled: list[int] = []

    async def work(x: torch.Tensor) -> torch.Tensor:
        try:
            await asyncio.sleep(60 if x < 0 else 0.02)
        except asyncio.CancelledError:
            cancelled.append(int(x))
            raise
        return x

    bench = Bench(work)
    bench.executor.submit(job(7, torch.tensor(-7)))
    await asyncio.sleep(0.01)
    assert bench.executor.is_executing((7).to_bytes(16, "little"))
    assert bench.executor.drop((7).to_bytes(16, "little"))
    assert await bench.run(job(1, torch.tensor(1))) == [torch.tensor(1)]
    assert cancelled == [-7]
    assert not bench.executor.is_executing((7).to_bytes(16, "little"))
    assert (bench.executor.num_done, bench.executor.num_failed, bench.executor.num_executing) == (1, 0, 0)


async def test_calls_that_only_wait_beside_each_other_take_little_of_a_replica() -> None:
    """Else an autoscaler would have a replica for each."""

    async def work(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.1)
        return x

    bench = Bench(work)
    await bench.run(*(job(number, torch.ones(1)) for number in range(1, 33)))
    assert 32 * 0.1 / MAX_CONCURRENT <= bench.executor.busy_s < 1.0
    assert bench.executor.service_s > 0.09, "by which requests are routed"


async def test_coroutines_that_hold_the_loop_take_all_of_a_replica() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            time.sleep(0.01)
            await asyncio.sleep(0)
        return x

    bench = Bench(work)
    await bench.run(*(job(number, torch.ones(1)) for number in range(1, 6)))
    assert bench.executor.busy_s > 5 * 0.02


async def test_a_job_that_waits_can_be_dropped() -> None:
    bench = Bench(lambda x: x, Batch(max_size=8, max_wait_s=5.0))
    bench.executor.submit(job(1, torch.ones(1)))
    assert bench.executor.drop((1).to_bytes(16, "little"))
    assert not bench.executor.drop((1).to_bytes(16, "little"))
    bench.executor.close()


def test_conjugates_and_views_are_made_what_they_look_like() -> None:
    value = torch.tensor([1 + 2j])
    assert checked_result(value.conj(), is_ours=True).resolve_conj().view(torch.float32).tolist() == [1.0, -2.0]  # type: ignore[union-attr]
    assert not checked_result(value.conj(), is_ours=True).is_conj()  # type: ignore[union-attr]


def test_memory_that_somebody_else_may_change_is_told_from_memory_of_ones_own() -> None:
    kept = torch.ones(100_000)
    kept_dict = {"a": torch.ones(10)}

    def told(make: Callable[[], Any]) -> bool:
        result = make()
        return is_nobodys_else(result)

    assert told(lambda: torch.ones(5))
    assert told(lambda: {"a": torch.ones(5), "b": torch.ones(5)})
    assert told(lambda: [torch.ones(5), torch.ones(5)])
    assert not told(lambda: kept)
    assert not told(lambda: kept.view(-1))
    assert not told(lambda: kept[5:])
    assert not told(lambda: torch.from_numpy(kept.numpy()))
    assert not told(lambda: (torch.ones(5), kept))
    assert not told(lambda: kept_dict)


async def test_a_defect_of_who_is_told_of_results_holds_up_nobody_else() -> None:
    bench = Bench(lambda x: x)
    told: list[int] = []

    def done(job: Job, _: Any) -> None:
        told.append(int.from_bytes(job.id, "little"))
        if told[-1] == 2:
            raise RuntimeError("a defect")

    bench.executor._on_done = done
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    for number in range(1, 5):
        bench.executor.submit(job(number, torch.ones(1)))
        while number == 1 and not told:  # noqa: ASYNC110 - nobody else tells
            await asyncio.sleep(0)  # the first one goes over a thread
    for _ in range(10):
        await asyncio.sleep(0)
    bench.executor.close()
    assert told == [1, 2, 3, 4]
    assert len(complaints) == 1


async def test_the_thread_has_the_next_call_while_it_executes_one_and_never_two_at_once() -> None:
    under_way: list[int] = []
    most: list[int] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.003)
        under_way.pop()
        return x

    bench = Bench(work)
    executing: list[int] = []
    done = bench._done

    def counted(one: Job, result: Any) -> None:
        executing.append(bench.executor.num_executing)
        done(one, result)

    bench.executor._on_done = counted
    await bench.run(*(job(number, torch.ones(1)) for number in range(1, 9)))
    assert set(most) == {1}
    assert max(executing) >= 1, "another one was with the thread when one was done"
    assert list(bench.results) == list(range(1, 9))


async def test_a_coroutine_that_is_called_off_before_it_ran_at_all_gives_its_place_back() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        return x

    bench = Bench(work)
    for alone in (False, True):
        bench.executor.submit(job(7, torch.tensor(7), alone=alone))
        bench.executor.go_on()
        assert bench.executor.is_executing((7).to_bytes(16, "little"))
        assert bench.executor.drop((7).to_bytes(16, "little"))
        await asyncio.sleep(0.01)
        assert (bench.executor.num_executing, bench.executor.executing_s(time.monotonic())) == (0, 0.0)
    assert await bench.run(job(1, torch.tensor(1), alone=True)) == [torch.tensor(1)]


async def test_a_request_that_was_called_off_may_come_again() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(60 if x < 0 else 0)
        return x

    bench = Bench(work)
    bench.executor.submit(job(7, torch.tensor(-7)))
    await asyncio.sleep(0.01)
    assert bench.executor.drop((7).to_bytes(16, "little"))
    await asyncio.sleep(0.01)
    assert await bench.run(job(7, torch.tensor(7))) == [torch.tensor(7)]


async def test_a_request_may_come_again_while_the_one_that_was_called_off_still_ends() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        try:
            await asyncio.sleep(60 if x < 0 else 0.05)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
            raise
        return x

    bench, id_ = Bench(work), (7).to_bytes(16, "little")
    bench.executor.submit(job(7, torch.tensor(-7)))
    await asyncio.sleep(0.01)
    assert bench.executor.drop(id_)
    bench.executor.submit(job(7, torch.tensor(7)))
    await asyncio.sleep(0.04)
    assert bench.executor.is_executing(id_), "of the two, the second"
    await asyncio.sleep(0.05)
    assert bench.results == {7: torch.tensor(7)}
    assert not bench.executor.is_executing(id_)
    bench.executor.close()


async def test_what_may_not_be_executed_twice_is_not_when_its_batch_failed() -> None:
    calls: list[int] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        raise ValueError("row 3 is bad")

    bench = Bench(work, Batch(max_size=8, max_wait_s=0.01), idempotent=False)
    results = await bench.run(*(job(number, torch.ones(1, 2)) for number in range(4)))
    assert calls == [4]
    assert all(isinstance(result, ValueError) for result in results)


async def test_what_waits_to_be_executed_alone_is_not_being_executed() -> None:
    seen: list[float] = []

    async def work(x: torch.Tensor) -> torch.Tensor:
        if x < 0:
            seen.append(bench.executor.executing_s(time.monotonic()))
        else:
            await asyncio.sleep(0.3)
        return x

    bench = Bench(work)
    await bench.run(job(1, torch.tensor(1)), job(2, torch.tensor(-2), alone=True))
    assert seen[0] < 0.15


async def test_what_a_failed_batch_has_written_into_its_inputs_does_no_harm() -> None:
    class Work:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def many(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            for x in inputs:
                x.mul_(10)
            if len(inputs) > 1:
                raise ValueError("they do not go together")
            return inputs

    bench = Bench(Work(), Batch(max_size=4, max_wait_s=0.01))
    results = await bench.run(*(job(number, torch.full((number + 1,), 1.0)) for number in range(3)))
    assert [result.tolist() for result in results] == [[10.0], [10.0] * 2, [10.0] * 3]


async def test_one_bad_result_of_many_is_alone_with_that() -> None:
    class Work:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def many(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return [x if x.item() else torch.empty(1, device="meta") for x in inputs]

    bench = Bench(Work(), Batch(max_size=4, max_wait_s=0.01), idempotent=False)
    results = await bench.run(*(job(number, torch.tensor([float(number)])) for number in range(3)))
    assert [isinstance(result, Exception) for result in results] == [True, False, False]


class PanicException(BaseException):
    """As libraries in Rust raise it."""


async def test_a_panic_of_a_coroutine_is_an_error_of_its_request_alone() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        raise PanicException("called unwrap")

    (result,) = await Bench(work).run(job(1, torch.ones(1)))
    assert isinstance(result, RuntimeError)
    assert "PanicException: called unwrap" in str(result)


async def test_what_the_thread_was_given_ahead_is_executed_from_when_the_call_before_it_has_ended() -> None:
    seen: list[float] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        time.sleep(float(x))
        return x

    bench = Bench(work)
    bench.executor.call_s = 0.02  # as it usually takes
    for number, seconds in ((1, 0.3), (2, 0.2)):
        bench.executor.submit(job(number, torch.tensor(seconds)))
    bench.executor.submit(job(3, torch.tensor(0.0)))
    while len(bench.results) < 2:
        await asyncio.sleep(0.01)
        if bench.results:
            seen.append(bench.executor.executing_s(time.monotonic()))
    assert bench.executor.num_waiting == 0
    assert seen[0] < 0.2
    bench.executor.close()


@pytest.mark.parametrize("kind", ["nested", "subclass"])
def test_tensors_of_other_kinds_are_refused_or_made_plain(kind: str) -> None:
    class Mine(torch.Tensor):
        pass

    if kind == "nested":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
        with pytest.raises(TypeError, match="a nested tensor"):
            checked_result(nested, is_ours=True)
        return
    result = checked_result(torch.ones(3).as_subclass(Mine), is_ours=False)
    assert type(result) is torch.Tensor


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


async def test_a_job_that_is_suspected_no_more_is_executed_with_others() -> None:
    sizes: list[int] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.shape[0])
        return x

    bench = Bench(work, Batch(max_size=8, max_wait_s=0.01))
    for number in range(1, 5):
        bench.executor.submit(job(number, torch.ones(1), alone=True))
    for number in (1, 2, 3, 9):
        bench.executor.clear(id_of(number))
    await bench.run(*(job(number, torch.ones(1)) for number in (5, 6)), beside=4)
    assert sorted(sizes) == [1, 2, 3]
    assert bench.announced == [4, 0]


@pytest.mark.parametrize("kind", ["quick", "slow", "coroutine", "batch", "alone"])
async def test_the_box_has_what_is_executed_and_nothing_before_or_after(kind: str) -> None:
    box, descriptor = BlackBox.create()
    os.close(descriptor)
    seen: list[list[bytes] | None] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        seen.append(box.read())
        if x[0] < 0:
            raise ValueError("negative")
        return x

    async def coroutine(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.01)
        return work(x)

    batch = Batch(max_size=4, max_wait_s=0.01) if kind == "batch" else None
    bench = Bench(coroutine if kind == "coroutine" else work, batch, box=box)
    bench.executor.call_s = {"quick": 1e-6, "slow": 1.0}.get(kind)
    numbers = (1, 2) if kind in ("coroutine", "batch") else (1,)
    await bench.run(*(job(number, torch.ones(1), alone=kind == "alone") for number in numbers))
    assert seen[0] == [id_of(number) for number in numbers]
    assert box.read() == []
    failing = Bench(coroutine if kind == "coroutine" else work, batch, box=box)
    await failing.run(job(3, -torch.ones(1)))
    assert seen[-1] == [id_of(3)]
    assert box.read() == []
