"""Requests through whole pipelines of fakes: what becomes of them when members come, go and die at bad moments."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from torch import nn

from multiworld.model.cut import cut
from multiworld.serving.errors import (
    BadRequestError,
    DeadlineExceededError,
    GatewayClosedError,
    PoisonedRequestError,
    RequestIdReusedError,
    RequestLostError,
    ServingError,
    StageFailedError,
)
from multiworld.serving.graph import Stage
from multiworld.serving.ingress.ingress import Ingress
from multiworld.serving.replica.replica import Replica
from multiworld.testing import scaled
from tests.unit.serving.wires import Plant


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def value(answer: object) -> float:
    assert isinstance(answer, torch.Tensor), answer
    return float(answer)


def tensor(number: float) -> torch.Tensor:
    return torch.tensor([float(number)])


async def until(holds: Callable[[], bool]) -> None:
    async def look() -> None:
        while not holds():  # noqa: ASYNC110 - nobody tells this test
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), scaled(10))


@asynccontextmanager
async def plant(stages: Iterable[Stage], *names: str) -> AsyncIterator[Plant]:
    made = Plant(stages)
    try:
        for name in names:
            await made.add(name)
        yield made
    finally:
        await made.aclose()


MERGING = [
    Stage("a", double),
    Stage("b", double, inputs=("a",)),
    Stage("m", add, inputs=("b", "input")),
]


async def test_requests_go_through_and_all_credit_comes_back() -> None:
    async with plant([Stage("a", double, replicas=2), Stage("b", double)], "b-1", "a-1", "a-2") as p:
        answers = await asyncio.gather(*(p.ingress.infer(tensor(number)) for number in range(200)))
        assert [value(answer) for answer in answers] == [4.0 * number for number in range(200)]
        await p.wait_idle()


async def test_a_sender_that_chooses_knows_at_once_what_was_executed_and_one_that_does_not_is_not_told() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x

    async with plant([Stage("a", slow, replicas=2), Stage("b", double)], "b-1", "a-1", "a-2") as p:
        for number in range(5):
            await p.ingress.infer(tensor(number))
            for known in p.ingress.node.in_flight["a"].statistics().replicas.values():
                assert known["executed"] == known["in_flight"]
        p.close("a-2")
        await p.wait_idle()
        await p.ingress.infer(tensor(1))
        assert p.ingress.node.in_flight["a"].statistics().replicas["a-1"]["executed"] == 0
        await p.wait_idle()


async def test_a_replica_that_nobody_asks_looks_after_nothing_until_something_comes() -> None:
    async def resting(p: Plant) -> None:
        for _ in range(300):
            if all(replica._is_resting for replica in p.replicas.values()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("some replica goes on looking after nothing")

    async with plant(MERGING, "m-1", "b-1", "a-1") as p:
        await resting(p)
        for number in range(3):
            asked = [p.ingress.infer(tensor(number)) for _ in range(20)]
            assert [value(answer) for answer in await asyncio.gather(*asked)] == [5.0 * number] * 20
            await resting(p)
        for say in (Replica.asked, Replica.cancelled):
            say(p.replicas["b-1"], [b"1" * 16])
            assert p.replicas["b-1"]._relayed | p.replicas["b-1"]._relayed_up == {b"1" * 16}
            await resting(p)
            assert not p.replicas["b-1"]._relayed | p.replicas["b-1"]._relayed_up, "it may be asked again"
        await p.wait_idle()


async def test_several_outputs_and_skips_make_one_answer() -> None:
    stages = [Stage("a", double), Stage("b", double), Stage("c", add, inputs=("a", "input"))]
    async with plant(stages, "b-1", "c-1", "a-1") as p:
        answer = await p.ingress.infer(tensor(1))
        assert isinstance(answer, dict)
        assert {name: float(value) for name, value in answer.items()} == {"b": 4.0, "c": 3.0}
        await p.wait_idle()


async def test_a_branch_may_be_slow_and_the_other_waits_for_it() -> None:
    async def slow(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.6)
        return x * 2

    async with plant(MERGING, "m-1", "m-2", "a-1") as p:
        await p.add("b-1", slow)
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            answers = await asyncio.gather(*(p.ingress.infer(tensor(number)) for number in range(60)))
            assert [value(answer) for answer in answers] == [5.0 * number for number in range(60)]
            if p.replicas["b-1"].node.window < 60:  # so far nobody knew how many it does at once
                await asyncio.sleep(0.2)
        assert p.replicas["b-1"].node.window >= 60
        assert asyncio.get_running_loop().time() - began < 5
        assert p.ingress.requests.retries.num_retried == 0
        await p.wait_idle()


async def test_parts_meet_though_senders_learn_of_replicas_at_different_times() -> None:
    async with plant(MERGING, "m-1", "a-1", "b-1") as p:
        await p.add("m-2", opened=False)
        p.replicas["m-2"].node.open("gateway-1")
        p.open("m-2", only="gateway-1")
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number))) for number in range(100)]
        await asyncio.wait(asking, timeout=0.1)
        assert not all(task.done() for task in asking), "the test is to show something"
        p.open("m-2", only="b-1")
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [5.0 * number for number in range(100)]
        p.close("m-1", only="b-1")
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number))) for number in range(100)]
        await asyncio.wait(asking, timeout=0.1)
        p.close("m-1", only="gateway-1")
        await asyncio.gather(*asking)
        await asyncio.wait_for(p.replicas["m-1"].wait_idle(), 2)
        await p.wait_idle()


async def test_a_deadline_in_the_middle_of_branches_leaves_nothing_behind() -> None:
    async def never(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(60)
        return x

    stages = [Stage("a", double), Stage("b", never, inputs=("a",)), Stage("c", never, inputs=("a",))]
    async with plant([*stages, Stage("m", add, inputs=("b", "c"))], "m-1", "b-1", "c-1", "a-1") as p:
        with pytest.raises(DeadlineExceededError):
            await p.ingress.infer(tensor(1), timeout_s=0.1)
        await p.wait_idle()


async def test_cancellation_reaches_the_last_stage_though_the_first_has_long_forgotten() -> None:
    cancelled = asyncio.Event()

    async def never(x: torch.Tensor) -> torch.Tensor:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return x

    async with plant([Stage("a", double), Stage("b", double), Stage("c", double)], "b-1", "a-1") as p:
        last = await p.add("c-1", never)
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1)))
        while not last.executor.num_executing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not p.ingress.node.in_flight["a"], "the first stage has released it"
        asking.cancel()
        await p.wait_idle()
        await asyncio.wait_for(cancelled.wait(), 1)


async def test_who_waits_for_the_same_request_is_not_failed_by_another_who_gives_up() -> None:
    async def slow(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.3)
        return x

    async with plant([Stage("a", slow)], "a-1") as p:
        first = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x"))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x"))
        third = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x", timeout_s=0.1))
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(DeadlineExceededError):
            await third
        assert value(await second) == 1.0
        assert p.replicas["a-1"].executor.num_arrived == 1
        last = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="y"))
        await asyncio.sleep(0.05)
        last.cancel()
        await p.wait_idle()


async def test_who_asks_again_with_more_patience_is_not_bound_to_the_limit_of_the_first() -> None:
    executed: list[float] = []

    async def slow(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        await asyncio.sleep(60 if len(executed) == 1 else 0)
        return x

    async with plant([Stage("a", slow)], "a-1") as p:
        first = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x", timeout_s=0.3))
        await until(lambda: len(executed) == 1)
        again = [asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x", timeout_s=10)) for _ in range(2)]
        with pytest.raises(DeadlineExceededError):
            await first
        assert [value(answer) for answer in await asyncio.gather(*again)] == [1.0, 1.0]
        assert len(executed) == 2
        await p.wait_idle()


async def test_what_may_be_executed_once_only_is_not_asked_again_by_who_waits_for_it() -> None:
    async def slow(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(60)
        return x

    async with plant([Stage("a", slow, idempotent=False)], "a-1") as p:
        asking = [
            asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x", timeout_s=limit_s))
            for limit_s in (0.2, 10)
        ]
        for each in asking:
            with pytest.raises(DeadlineExceededError):
                await each
        assert p.replicas["a-1"].executor.num_arrived == 1


async def test_of_several_who_wait_for_one_answer_each_may_change_its_own() -> None:
    async def slow(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.1)
        return x * 2

    async def ask(p: Plant) -> torch.Tensor:
        answer = await p.ingress.infer(tensor(1), request_id="x")
        assert isinstance(answer, torch.Tensor)
        return answer.add_(float(answer))

    async with plant([Stage("a", slow)], "a-1") as p:
        answers = await asyncio.gather(*(ask(p) for _ in range(3)))
        assert [value(answer) for answer in answers] == [4.0] * 3
        assert value(await ask(p)) == 4.0


async def test_a_replica_whose_thread_hangs_gets_nothing_more_while_others_answer() -> None:
    free = threading.Event()
    hung: list[float] = []

    def hangs(x: torch.Tensor) -> torch.Tensor:
        hung.append(float(x))
        free.wait(20)
        return x * 2

    async with plant([Stage("a", double, replicas=2)]) as p:
        await p.add("a-1", hangs)
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=0.6))
        await asyncio.sleep(0.02)
        await p.add("a-2")
        for number in range(60):
            assert value(await p.ingress.infer(tensor(number), timeout_s=5)) == 2.0 * number
            await asyncio.sleep(0.01)
        assert value(await asking) == 2.0, "it was tried elsewhere"
        assert p.ingress.node.in_flight["a"].suspects() == ("a-1",)
        assert hung[0] == 1.0
        assert len(hung) == 1
        free.set()
        await p.wait_idle()


async def test_of_several_senders_only_those_of_the_poison_lose_anything() -> None:
    """Each death is one of the only replica of b, with requests of both replicas of a in hand."""
    async with plant([Stage("a", double), Stage("b", double)], "a-1", "a-2") as p:
        deaths = 0
        died = asyncio.Event()

        def deadly(name: str) -> Any:
            async def work(x: torch.Tensor) -> torch.Tensor:
                nonlocal deaths
                if float(x) < 0 and name in p.replicas:
                    deaths += 1
                    p.kill(name)
                    died.set()
                    await asyncio.sleep(60)
                await asyncio.sleep(0.002)
                return x * 2

            return work

        await p.add("b-1", deadly("b-1"))
        asking = [
            asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=20)) for number in (-1, *range(1, 40))
        ]
        for number in range(2, 5):
            waiting = asyncio.ensure_future(died.wait())
            await asyncio.wait([waiting, *asking[:1]], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if asking[0].done():
                break
            died.clear()
            await asyncio.sleep(0.4)  # longer than a gateway waits before it sends again what may be lost
            await p.add(f"b-{number}", deadly(f"b-{number}"))
        poisoned, *answers = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(poisoned, PoisonedRequestError), poisoned
        if not p.replicas.keys() & {"b-2", "b-3", "b-4"}:
            await p.add("b-9", deadly("b-9"))
        assert [value(answer) for answer in answers] == [4.0 * number for number in range(1, 40)]
        assert deaths == 2
        await p.wait_idle()


async def test_what_a_killed_replica_did_not_execute_is_not_executed_alone() -> None:
    async with plant([Stage("a", double), Stage("b", double)], "a-1") as p:
        free = threading.Event()

        def stuck(x: torch.Tensor) -> torch.Tensor:
            free.wait(30)
            return x * 2

        await p.add("b-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=20)) for number in range(8)]
        replica = p.replicas["b-1"]
        await until(lambda: len(replica._open) == 8)
        executing = list(replica.executor._began)
        assert len(executing) == 1
        p.kill("b-1")
        in_flight = p.replicas["a-1"].node.in_flight["b"]
        free.set()
        await until(lambda: sum(in_flight.marked(id_) for id_ in replica._open) == 8)
        said: list[bytes] = []
        replacement = await p.add("b-2", opened=False)
        ask = replacement.executor._before_alone

        async def note(job: Any) -> None:
            said.append(job.id)
            await ask(job)

        replacement.executor._before_alone = note
        p.replicas["a-1"].node.learn("b-1", executing)
        assert [id_ for id_ in replica._open if in_flight.marked(id_)] == executing
        p.open("b-2")
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [4.0 * number for number in range(8)]
        assert said == executing
        await p.wait_idle()


async def test_what_waits_to_be_executed_alone_is_cleared_where_it_waits() -> None:
    async with plant([Stage("a", double), Stage("b", double)], "a-1") as p:
        free = asyncio.Event()

        async def stuck(x: torch.Tensor) -> torch.Tensor:
            await free.wait()
            return x * 2

        await p.add("b-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=20)) for number in range(8)]
        await until(lambda: p.replicas["b-1"].executor.num_executing == 8)
        p.kill("b-1")
        replacement = await p.add("b-2", stuck)
        await until(lambda: replacement.executor.num_executing + replacement.executor.num_waiting == 8)
        assert replacement.executor.num_executing == 1, "the others wait until each is alone"
        p.replicas["a-1"].node.learn("b-1", [])
        await until(lambda: not any(job.alone for job in replacement.executor._jobs.values()))
        free.set()
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [4.0 * number for number in range(8)]
        await p.wait_idle()


async def test_of_two_parts_or_copies_that_are_marked_each_sender_clears_its_own() -> None:
    async with plant(MERGING, "b-1", "a-1") as p:
        free = threading.Event()

        def stuck(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            free.wait(30)
            return x + y

        await p.add("m-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=20)) for number in range(4)]
        await until(lambda: sum(request.taken for request in p.replicas["m-1"]._open.values()) == 4)
        p.kill("m-1")
        free.set()
        held = threading.Event()

        def waiting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            held.wait(30)
            return x + y

        replacement = await p.add("m-2", waiting)
        await until(lambda: replacement.executor.num_executing + replacement.executor.num_waiting == 4)
        jobs = list(replacement.executor._jobs.values())
        assert len(jobs) == 3
        p.replicas["b-1"].node.learn("m-1", [])
        await asyncio.sleep(0.05)
        assert all(job.alone for job in jobs), "the gateway suspects them still"
        copied = replacement._open[jobs[0].id]
        copied.senders.append(next(sender for sender in copied.senders if sender.stage == "gateway"))
        p.ingress.node.learn("m-1", [])
        await until(lambda: not jobs[1].alone and not jobs[2].alone)
        assert jobs[0].alone, "there is another copy of it"
        copied.senders.pop()
        held.set()
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [5.0 * number for number in range(4)]
        await p.wait_idle()


async def test_innocents_survive_any_number_of_deaths_that_are_not_their_doing() -> None:
    async with plant([Stage("a", double), Stage("b", double)], "a-1") as p:

        async def stuck(x: torch.Tensor) -> torch.Tensor:
            await asyncio.sleep(60)
            return x

        await p.add("b-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=20)) for number in range(8)]
        await asyncio.sleep(0.05)
        p.kill("b-1")
        for number in range(2, 6):
            await p.add(f"b-{number}", stuck, opened=False)
            p.replicas[f"b-{number}"].node.open("gateway-1")
            p.replicas[f"b-{number}"]._awaited.clear()
            p.open(f"b-{number}", only="a-1")
            p.kill(f"b-{number}")
            await asyncio.sleep(0.01)
        await p.add("b-9")
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [4.0 * number for number in range(8)]
        await p.wait_idle()


async def test_what_two_lost_replicas_in_a_row_had_is_sent_again_from_the_start() -> None:
    async def stuck(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(60)
        return x

    async with plant([Stage("a", double), Stage("b", double), Stage("c", double)], "b-1", "a-1") as p:
        await p.add("c-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=10)) for number in range(10)]
        await asyncio.sleep(0.1)
        p.kill("b-1")
        p.kill("c-1")
        await p.add("c-2")
        await p.add("b-2")
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [8.0 * number for number in range(10)]
        assert p.ingress.requests.retries.num_retried >= 10
        await p.wait_idle()


async def test_a_stage_that_is_not_idempotent_is_not_asked_twice_and_a_slow_first_answer_still_counts() -> None:
    executed: list[float] = []
    began = asyncio.Event()

    async def once(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        began.set()
        await asyncio.sleep(0.05)
        return x

    async def until_begun(number: int) -> None:
        while len(executed) < number:
            began.clear()
            await asyncio.wait_for(began.wait(), 10)

    stages = [Stage("a", double, replicas=2), Stage("b", once, idempotent=False)]
    async with plant(stages, "b-1", "b-2", "a-1") as p:
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=10)) for number in range(10)]
        await until_begun(10)
        await p.add("a-2")
        p.kill("a-1")  # what it has passed on comes a second time from a-2
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [value(answer) for answer in answers] == [2.0 * number for number in range(10)]
        assert len(executed) == 10
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=10)) for number in range(10, 20)]
        await until_begun(20)
        p.kill("b-1")
        answers = await asyncio.gather(*asking, return_exceptions=True)
        lost = [answer for answer in answers if isinstance(answer, BaseException)]
        assert lost
        assert all(isinstance(error, RequestLostError) for error in lost)
        assert len(executed) == len(set(executed)) == 20
        await p.wait_idle()


async def test_an_error_in_one_branch_ends_the_request_and_leaves_nothing_of_the_other() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    stages = [Stage("a", double), Stage("b", fails, inputs=("a",)), Stage("c", double, inputs=("a",))]
    async with plant([*stages, Stage("m", add, inputs=("b", "c"))], "m-1", "b-1", "c-1", "a-1") as p:
        for _ in range(3):
            with pytest.raises(ServingError, match="stage 'b' failed"):
                await p.ingress.infer(tensor(1))
        await p.wait_idle()


async def test_the_end_of_a_gateway_ends_what_is_waited_for_and_what_waits_for_it() -> None:
    async def slow(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.1)
        return x

    async with plant([Stage("a", slow)], "a-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1)))
        await asyncio.sleep(0.05)
        await p.ingress.aclose()
        with pytest.raises(ServingError):
            await asking
        p.replicas["a-1"].node.lost("gateway-1")
        await asyncio.wait_for(p.replicas["a-1"].wait_idle(), 2)


async def test_a_replica_is_idle_only_when_its_senders_send_it_nothing_more() -> None:
    async with plant([Stage("a", double, replicas=2)], "a-1", "a-2") as p:
        assert value(await p.ingress.infer(tensor(1))) == 2
        await p.wait_idle()
        idle = asyncio.ensure_future(p.replicas["a-1"].wait_idle())
        await asyncio.sleep(0.1)
        assert not idle.done(), "the gateway may send something at any time"
        p.close("a-1")
        await asyncio.wait_for(idle, 2)


async def test_an_answer_waits_for_a_gateway_whose_edge_broke_and_comes_back() -> None:
    executed: list[float] = []
    goes_on = asyncio.Event()

    async def slow(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        await goes_on.wait()
        return 2 * x

    async with plant([Stage("a", double), Stage("b", slow, idempotent=False)], "b-1", "a-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: len(executed) == 1)
        p.replicas["b-1"].node.edges["gateway-1", True].abort()
        p.replicas["b-1"].node._give_up_edge("gateway-1", True)
        goes_on.set()
        await asyncio.sleep(0.1)
        assert not asking.done()
        await p.connect("b-1", "gateway-1")
        p.replicas["b-1"].node.open("gateway-1")
        assert value(await asyncio.wait_for(asking, 5)) == 4
        assert executed == [2.0]


async def test_a_doubt_amid_the_pipeline_does_not_take_the_place_of_the_answer() -> None:
    executed: list[float] = []
    goes_on = asyncio.Event()

    async def once(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        await goes_on.wait()
        return x

    stages = [Stage("a", double, replicas=2), Stage("b", once, idempotent=False), Stage("c", double)]
    async with plant(stages, "c-1", "b-1", "b-2", "a-1") as p:
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=10)) for number in range(4)]
        await until(lambda: len(executed) == 4)
        await p.add("a-2")
        p.kill("a-1")  # what it has passed on comes a second time from a-2
        await asyncio.sleep(0.2)
        goes_on.set()
        assert [value(answer) for answer in await asyncio.gather(*asking)] == [4.0 * number for number in range(4)]
        assert len(executed) == 4


async def test_an_id_is_that_of_one_payload() -> None:
    async with plant([Stage("a", double)], "a-1") as p:
        assert value(await p.ingress.infer(tensor(1), request_id="x")) == 2
        assert value(await p.ingress.infer(tensor(1), request_id="x")) == 2
        for other in (tensor(2), tensor(1).double(), [tensor(1)], {"x": tensor(1)}):
            with pytest.raises(RequestIdReusedError, match="'x'"):
                await p.ingress.infer(other, request_id="x")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_a_client_may_come_back_for_goes_on_if_it_must_not_be_executed_twice(idempotent: bool) -> None:
    executed: list[float] = []

    async def slow(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        await asyncio.sleep(0.1)
        return 2 * x

    async with plant([Stage("a", slow, idempotent=idempotent)], "a-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), request_id="x"))
        await until(lambda: len(executed) == 1)
        asking.cancel()
        await asyncio.wait([asking])
        assert value(await p.ingress.infer(tensor(1), request_id="x")) == 2
        assert len(executed) == (2 if idempotent else 1)
        await p.wait_idle()


async def test_a_gateway_that_stops_says_so() -> None:
    async with plant([Stage("a", double)], "a-1") as p:
        assert await p.ingress.drain(1)
        with pytest.raises(GatewayClosedError, match="gateway-1 stops") as caught:
            await p.ingress.infer(tensor(1))
        assert caught.value.http_status == 503


async def test_parts_of_requests_of_a_gateway_that_died_are_called_off_by_its_successor() -> None:
    never = asyncio.Event()

    async def stuck(x: torch.Tensor) -> torch.Tensor:
        await never.wait()
        return x

    async with plant(MERGING, "m-1", "a-1") as p:
        await p.add("b-1", stuck)
        asking = [asyncio.ensure_future(p.ingress.infer(tensor(number), timeout_s=60)) for number in range(3)]
        joining = p.replicas["m-1"]
        await until(lambda: len(joining._open) == 3 and p.replicas["b-1"].executor.num_executing == 3)
        former, p.ingress = p.ingress, Ingress(p.wires, p._place("gateway-1"))  # type: ignore[arg-type]
        former._tending.cancel()
        former.node.abort()
        p.kill("b-1")  # what it had is nowhere now
        await p.add("b-2", stuck)
        for upstream, downstream in (("gateway-1", "a-1"), ("gateway-1", "m-1"), ("m-1", "gateway-1")):
            await p.connect(upstream, downstream)
        await until(lambda: not joining._open)
        never.set()
        for each in asking:
            each.cancel()
        await p.wait_idle()


async def test_answers_for_a_gateway_that_is_no_more_are_not_kept() -> None:
    goes_on = asyncio.Event()

    async def slow(x: torch.Tensor) -> torch.Tensor:
        await goes_on.wait()
        return x

    async with plant([Stage("a", slow)], "a-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1)))
        await until(lambda: p.replicas["a-1"].executor.num_executing == 1)
        node = p.replicas["a-1"].node
        node.edges["gateway-1", True].abort()
        node._give_up_edge("gateway-1", True)
        goes_on.set()
        await until(lambda: node.in_flight["gateway"].awaited == {"gateway-1"})
        node.only(["gateway-1"])
        assert not node.is_empty
        node.only(["gateway-2"])
        assert node.is_empty
        asking.cancel()


async def test_an_error_of_the_users_own_that_cannot_be_passed_on_is_alone_with_that() -> None:
    class OddError(BadRequestError):
        def __init__(self) -> None:  # which leaves out what its class has
            Exception.__init__(self, "odd")

    def work(x: torch.Tensor) -> torch.Tensor:
        if x < 0:
            raise OddError
        return 2 * x

    async with plant([Stage("a", work)], "a-1") as p:
        with pytest.raises(StageFailedError, match="stage 'a' failed"):
            await p.ingress.infer(tensor(-1), timeout_s=5)
        assert value(await p.ingress.infer(tensor(1), timeout_s=5)) == 2
        await p.wait_idle()


async def test_a_payload_that_does_not_fit_a_cut_model_is_a_bad_request_to_its_stage() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first = cut(model, torch.randn(2, 4), 2, repeats=1)[0]
    async with plant([Stage("a", first)], "a-1") as p:
        with pytest.raises(BadRequestError, match="stage 'a' refused the request: expected a tensor, got a dict"):
            await p.ingress.infer({"x": torch.randn(1, 4)}, timeout_s=5)
        await p.wait_idle()


async def test_a_result_that_waits_for_the_next_stage_is_not_replaced_by_a_doubt() -> None:
    executed: list[float] = []

    def once(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        return x

    async def never(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(60)
        return x

    async with plant([Stage("n", once, idempotent=False), Stage("c", never)], "c-1", "n-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: p.replicas["c-1"].statistics().in_flight == 1)
        await until(lambda: not p.replicas["n-1"]._open)
        p.kill("c-1")
        await until(lambda: p.ingress.requests.retries.num_retried == 1)
        await asyncio.sleep(0.1)
        assert not p.replicas["n-1"]._doubtful
        await p.add("c-2", work=double)
        assert value(await asyncio.wait_for(asking, 5)) == 2
        assert executed == [1.0]
        await p.wait_idle()


async def test_what_was_doubted_is_executed_when_it_comes_after_all() -> None:
    executed: list[float] = []
    goes_on, calls = asyncio.Event(), []

    async def first_waits(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        if len(calls) == 1:
            await goes_on.wait()
        return x

    def once(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        return x

    stages = [Stage("s", double), Stage("t", first_waits, replicas=2), Stage("n", once, idempotent=False)]
    async with plant(stages, "n-1", "t-1", "s-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: len(calls) == 1 and not p.replicas["s-1"]._open)
        await p.add("t-2")
        p.close("t-1")
        p.ingress.replica_lost()
        await until(lambda: len(calls) == 2 and not p.replicas["t-2"]._open and not p.replicas["n-1"]._open)
        goes_on.set()
        assert value(await asyncio.wait_for(asking, 5)) == 2
        assert executed == [2.0]


async def test_a_branch_that_was_lost_is_made_again_once_the_other_has_been_passed_on() -> None:
    stages = [Stage("p", double), Stage("a", double, inputs=("p",)), Stage("b", double, inputs=("p",))]
    async with plant([*stages, Stage("m", add, inputs=("a", "b"))], "m-1", "a-1", "p-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: bool(p.replicas["m-1"]._open) and not p.replicas["p-1"].node.in_flight["a"])
        p.kill("a-1")
        p.kill("m-1")
        await asyncio.sleep(0.5)
        for name in ("m-2", "a-2", "b-1"):
            await p.add(name)
        assert value(await asyncio.wait_for(asking, 8)) == 8
        await p.wait_idle()


BRANCHING = [
    Stage("s", double),
    Stage("p", double),
    Stage("a", double, inputs=("p",)),
    Stage("b", double, inputs=("p",)),
    Stage("m", add, inputs=("a", "b")),
]


async def test_a_part_outlives_who_sent_it_where_it_waits_for_the_other() -> None:
    async with plant(BRANCHING, "m-1", "a-1", "p-1", "s-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: bool(p.replicas["m-1"]._open) and not p.replicas["p-1"].node.in_flight["a"])
        p.kill("a-1")
        p.ingress.requests.retries._recheck.clear()  # it is not sent again
        await p.add("b-1")
        assert value(await asyncio.wait_for(asking, 8)) == 16
        assert p.ingress.requests.retries.num_retried == 0
        await p.add("a-2")
        await p.wait_idle()


async def test_parts_of_a_gateway_that_is_gone_wait_for_nothing() -> None:
    async with plant(MERGING, "m-1", "a-1") as p:  # b is missing
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=60))
        joining = p.replicas["m-1"]
        await until(lambda: bool(joining._open))
        joining.node.lost("gateway-2")
        assert joining._open
        joining.node.lost("gateway-1")
        assert not joining._open
        asking.cancel()


async def test_parts_that_come_too_late_for_anybody_are_not_kept() -> None:
    async with plant(BRANCHING, "m-1", "a-1", "p-1", "s-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=0.6))
        joining = p.replicas["m-1"]
        await until(lambda: bool(joining._open) and not p.replicas["p-1"].node.in_flight["a"])
        p.kill("a-1")  # so that nobody is left to tell it that the request is over
        with pytest.raises(DeadlineExceededError):
            await asking
        await until(lambda: not joining._open)


async def test_a_branch_that_was_lost_behind_another_stage_is_made_again_while_the_other_waits() -> None:
    async with plant(BRANCHING, "m-1", "a-1", "p-1", "s-1") as p:
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: bool(p.replicas["m-1"]._open) and not p.replicas["p-1"].node.in_flight["a"])
        p.kill("a-1")
        p.kill("m-1")
        for name in ("m-2", "a-2"):
            await p.add(name)
        await until(lambda: p.ingress.requests.retries.num_retried > 0)
        await p.add("b-1")
        assert value(await asyncio.wait_for(asking, 8)) == 16
        await p.wait_idle()


async def test_an_answer_of_one_branch_that_was_lost_is_made_again_once_the_other_has_gone_on() -> None:
    outputs = [Stage(f"z{branch}", double, inputs=(branch,)) for branch in "ab"]
    stages = [Stage("p", double), *(Stage(branch, double, inputs=("p",)) for branch in "ab"), *outputs]
    stuck = threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        stuck.wait(20)
        return x * 2

    async with plant(stages, "a-1", "zb-1", "p-1") as p:
        await p.add("za-1", slow)
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: bool(p.replicas["za-1"].executor._began) and not p.replicas["p-1"].node.in_flight["a"])
        p.kill("a-1")
        p.kill("za-1")
        stuck.set()
        for name in ("za-2", "a-2"):
            await p.add(name)
        await asyncio.sleep(0.6)  # as long as the gateway waits before it looks at what may have been lost, twice
        await p.add("b-1")
        answer = await asyncio.wait_for(asking, 8)
        assert isinstance(answer, dict)
        assert {name: float(part) for name, part in answer.items()} == {"za": 8, "zb": 8}
        await p.wait_idle()


async def test_an_answer_waits_for_a_gateway_that_is_started_again_under_its_name() -> None:
    async with plant([Stage("a", double), Stage("b", double)], "b-1", "a-1") as p:
        node = p.replicas["b-1"].node
        former, p.ingress = p.ingress, Ingress(p.wires, p._place("gateway-1"))  # type: ignore[arg-type]
        former._tending.cancel()
        former.node.abort()
        node.lost("gateway-1")
        forming = asyncio.ensure_future(node.connect("gateway-1", "gateway", is_upstream=True))
        await p.connect("gateway-1", "a-1")
        p.ingress.node.open("a-1")
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: p.replicas["b-1"].executor.num_done == 1)  # before the edge for its answer is formed
        await asyncio.gather(forming, p.ingress.node.connect("b-1", "b", is_upstream=False))
        node.open("gateway-1")
        assert value(await asyncio.wait_for(asking, 5)) == 4
        await p.wait_idle()


async def test_what_waits_to_be_executed_alone_is_not_executed_once_nobody_wants_it() -> None:
    executed: list[float] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        executed.append(float(x))
        return x

    async with plant([Stage("a", double), Stage("b", work)], "a-1", "a-2") as p:
        await p.add("b-1")
        replica = p.replicas["b-1"]
        deaf: Any = replica.node.edges["a-2", False].world
        deaf.other = None  # it hears nothing, as if it were stopped
        in_flight = p.replicas["a-1"].node.in_flight["b"]
        p.close("a-2")
        p.close("b-1")
        asking = asyncio.ensure_future(p.ingress.infer(tensor(1), timeout_s=10))
        await until(lambda: len(in_flight) == 1)
        for item in in_flight._items.values():
            item.deaths = 1
        p.open("b-1", only="a-1")
        await until(lambda: replica._suspect is not None)
        asking.cancel()
        await until(lambda: not replica._open)
        await asyncio.sleep(1.2)  # as long as it waits for who says nothing
        assert executed == []


async def test_a_key_that_cannot_be_sent_is_refused_and_harms_nobody() -> None:
    async with plant([Stage("a", double)], "a-1") as p:
        with pytest.raises(BadRequestError, match="key"):
            await p.ingress.infer(tensor(1), key="\udcff")
        assert len(p.ingress.requests) == 0
        assert value(await p.ingress.infer(tensor(1), key="ключ")) == 2
