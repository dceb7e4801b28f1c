"""The token loop and the stages of a generation, in one process: bits, losses, bounds, batches, sampling."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.serving.errors import (
    BadRequestError,
    DeadlineExceededError,
    GatewayClosedError,
    OverloadedError,
    RequestLostError,
    SequenceTooLongError,
    ServingError,
    StageFailedError,
    StateLostError,
)
from multiworld.serving.flow.packets import Item, Kind
from multiworld.serving.gateway.served import Metric, StreamingServed
from multiworld.serving.generation import Advance, Alone, GenerationStage, Generator, Sampling
from multiworld.serving.generation.cache import Step
from multiworld.serving.generation.gpt import Gpt, GptConfig, GptStage
from multiworld.serving.generation.message import pack
from multiworld.serving.generation.question import MAX_STOP_TOKENS, MAX_TOKENS, Question
from multiworld.serving.generation.state import KeyValues
from multiworld.serving.graph import Batch
from multiworld.serving.ingress.answers import Report
from multiworld.serving.replica.executor import Executor, Job, Result

CONFIG = GptConfig(vocabulary=32, context=64, width=32, heads=2, layers=3)
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The products are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_stages(num_blocks: Sequence[int] = (1, 1, 1), *, capacity_tokens: int = 1000) -> list[GptStage]:
    torch.manual_seed(0)
    return Gpt(CONFIG).eval().stages(num_blocks, capacity_tokens=capacity_tokens)


def ask(stages: Sequence[GptStage], sequence: int, position: int, tokens: list[int], attempt: int = 0) -> Tensor:
    payload = pack(Step(bytes([sequence]) * 16, attempt, position, len(tokens)), torch.tensor(tokens))
    for stage in stages:
        payload = stage.forward(payload)
    assert isinstance(payload, dict)
    return payload["rows"]


async def collect(generator: Generator, tokens: Sequence[int] = PROMPT, **options: Any) -> list[int]:
    return [token async for token in generator.generate(tokens, **{"max_new_tokens": 20, **options})]


class Losing(Alone):
    """Loses states, and refuses for a moment, as a deployment under faults may. ``plan``: called before each step."""

    def __init__(self, stages: Sequence[GptStage], plan: Callable[[int], None]) -> None:
        super().__init__(stages)
        self.plan, self.num_steps = plan, 0

    async def infer(self, payload: Payload, **options: Any) -> Payload:
        self.num_steps += 1
        self.plan(self.num_steps)
        await asyncio.sleep(0)
        return await super().infer(payload, **options)


# ---- bits


def test_logits_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = Gpt(CONFIG).eval()
    tokens = random.Random(0).choices(range(32), k=40)
    expected = model(torch.tensor([tokens]))[0, -1]
    torch.testing.assert_close(ask(model.stages((1, 1, 1), capacity_tokens=100), 0, 0, tokens), expected)


def test_the_same_bits_come_token_by_token_in_pieces_and_in_batches() -> None:
    draw = random.Random(1)
    sequences = [draw.choices(range(32), k=50) for _ in range(6)]
    expected = [
        [ask(stages, 0, position, [token]) for position, token in enumerate(tokens)]
        for tokens in sequences
        for stages in [make_stages()]
    ]
    stages, known = make_stages(), [0] * 6
    while min(known) < 50:
        turn = [number for number in draw.sample(range(6), 6) if known[number] < 50 and draw.random() < 0.7]
        pieces = [sequences[number][known[number] :][: draw.choice([1, 1, 2, 20])] for number in turn]
        payloads: list[Any] = [
            pack(Step(bytes([number]) * 16, 0, known[number], len(piece)), torch.tensor(piece))
            for number, piece in zip(turn, pieces, strict=True)
        ]
        for stage in stages:
            payloads = stage.many(payloads)
        for number, piece, payload in zip(turn, pieces, payloads, strict=True):
            known[number] += len(piece)
            assert torch.equal(payload["rows"], expected[number][known[number] - 1])


def test_a_step_that_comes_twice_gives_the_same_and_disturbs_nothing() -> None:
    stages = make_stages()
    ask(stages, 0, 0, PROMPT)
    first = ask(stages, 0, 5, [6])
    second = ask(stages, 0, 6, [7])
    assert torch.equal(ask(stages, 0, 5, [6]), first)
    assert torch.equal(ask(stages, 0, 6, [7]), second)
    assert torch.equal(ask(stages, 0, 7, [8]), ask(make_stages(), 0, 0, [*PROMPT, 6, 7, 8]))


# ---- stages


def test_a_stage_without_the_state_says_so() -> None:
    with pytest.raises(StateLostError) as error:
        ask(make_stages(), 7, 3, [1])
    assert error.value.sequence == "07" * 16


def test_new_weights_empty_the_cache() -> None:
    stages = make_stages()
    ask(stages, 0, 0, PROMPT)
    stages[1].load_state_dict(stages[1].state_dict())
    with pytest.raises(StateLostError):
        ask(stages, 0, 5, [6])


@pytest.mark.parametrize("tokens", [[32], [-1], list(range(30)) * 3])
def test_what_cannot_be_a_sequence_is_refused_alone(tokens: list[int]) -> None:
    stage = make_stages()[0]
    good = pack(Step(bytes(16), 0, 0, 5), torch.tensor(PROMPT))
    bad = pack(Step(bytes([1]) * 16, 0, 0, len(tokens)), torch.tensor(tokens))
    results = stage.many([bad, good, torch.ones(3)])
    refused = SequenceTooLongError if len(tokens) > CONFIG.context else BadRequestError
    assert [type(result) for result in results] == [refused, dict, BadRequestError]


class Sums(GenerationStage):
    """Its state is the sum of the tokens so far. Token 9 makes it fail, half way."""

    def advance(self, batch: list[Advance]) -> list[Tensor]:
        results = []
        for rows, position, state in batch:
            total = state.up_to(0, position)[0][-1:] if position else torch.zeros(1)
            sums = total + rows.cumsum(0)
            state.put(0, position, sums, sums)
            if 9 in rows:
                raise RuntimeError("nine")
            results.append(sums[-1:])
        return results


def test_a_batch_that_fails_leaves_states_from_which_it_can_be_taken_again() -> None:
    stage = Sums(capacity_tokens=20)
    begun = [pack(Step(bytes([n]) * 16, 0, 0, 2), torch.tensor([n, 1.0])) for n in (1, 2)]
    stage.many(list(begun))
    for _ in range(2):
        steps = [pack(Step(bytes([n]) * 16, 0, 2, 1), torch.tensor([token])) for n, token in ((1, 5.0), (2, 9.0))]
        with pytest.raises(RuntimeError, match="nine"):
            stage.many(list(steps))
    (result,) = stage.many([pack(Step(bytes([1]) * 16, 0, 2, 1), torch.tensor([5.0]))])
    assert isinstance(result, dict)
    assert result["rows"].tolist() == [7.0]
    with pytest.raises(StateLostError):
        stage.forward(pack(Step(bytes([2]) * 16, 0, 3, 1), torch.tensor([1.0])))


def test_a_replica_holds_no_more_states_than_it_has_room_for() -> None:
    stage = Sums(capacity_tokens=10)
    for number in range(50):
        stage.forward(pack(Step(bytes([number]) * 16, 0, 0, 4), torch.ones(4)))
        assert len(stage._states) <= 2
    assert stage.table is not None
    assert stage.table.num_evicted == 48


# ---- the token loop


async def test_tokens_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = Gpt(CONFIG).eval()
    tokens = list(PROMPT)
    for _ in range(20):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    async with Generator(Alone(make_stages())) as generator:
        assert await collect(generator) == tokens[5:]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 3}, {"temperature": 1.0, "top_k": 4}])
async def test_lost_states_change_no_token(options: dict[str, Any]) -> None:
    expected = await collect(Generator(Alone(make_stages())), **options)
    stages, draw = make_stages(), random.Random(5)

    def lose(_: int) -> None:
        stage = stages[draw.randrange(3)]
        if draw.random() < 0.15:
            stage.load_state_dict(stage.state_dict())

    served = Losing(stages, lose)
    async with Generator(served, chunk_tokens=7) as generator:
        assert await collect(generator, **options) == expected
        assert generator.num_replays > 0


async def test_many_at_once_through_caches_that_are_too_small_change_no_token() -> None:
    prompts = [[number, 2, 3] for number in range(8)]
    expected = [await collect(Generator(Alone(make_stages())), prompt) for prompt in prompts]
    async with Generator(Losing(make_stages(capacity_tokens=50), lambda _: None), max_running=4) as generator:
        assert await asyncio.gather(*(collect(generator, prompt) for prompt in prompts)) == expected
        assert generator.num_replays > 0


async def test_a_step_that_was_lost_is_sent_again() -> None:
    def lose(number: int) -> None:
        if number in (1, 5):
            raise RequestLostError("blocks", "blocks-1")

    async with Generator(Losing(make_stages(), lose)) as generator:
        assert await collect(generator) == await collect(Generator(Alone(make_stages())))


async def test_a_state_that_is_lost_each_time_ends_the_generation() -> None:
    def lose(_: int) -> None:
        raise StateLostError("blocks", "x")

    generator = Generator(Losing(make_stages(), lose), max_replays=3)
    with pytest.raises(StateLostError):
        await collect(generator)
    assert generator.statistics()["failed"] == 1
    assert generator.statistics()["running"] == 0


async def test_what_was_begun_waits_out_an_overload() -> None:
    def refuse(number: int) -> None:
        if number in (1, 4, 5):
            raise OverloadedError(10, 0.001)

    async with Generator(Losing(make_stages(), refuse)) as generator:
        assert await collect(generator) == await collect(Generator(Alone(make_stages())))


@pytest.mark.parametrize("capacity_tokens", [1000, 40])
async def test_a_generation_ends_where_a_sequence_is_as_long_as_is_served(capacity_tokens: int) -> None:
    served = min(CONFIG.context, capacity_tokens)
    stages = make_stages(capacity_tokens=capacity_tokens)
    async with Generator(Alone(stages)) as generator:
        found = await collect(generator, max_new_tokens=1000)
        assert len(PROMPT) + len(found) == served + 1  # the last one is chosen, but not gone on from
        assert generator.statistics()["done"] == 1
        with pytest.raises(SequenceTooLongError, match=f"{served + 1} tokens"):
            await collect(generator, [1] * (served + 1))
    assert not any(stage._states for stage in stages)


async def test_other_errors_end_it_at_once() -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise StageFailedError("blocks", "blocks-1", "boom")

    with pytest.raises(StageFailedError):
        await collect(Generator(Losing(make_stages(), fail)))


async def test_it_stops_before_a_stop_token_and_frees_the_states() -> None:
    stages = make_stages()
    async with Generator(Alone(stages)) as generator:
        tokens = await collect(generator)
        stop = tokens[7]
        assert await collect(generator, stop={stop}) == tokens[: tokens.index(stop)]
    assert [len(stage._states) for stage in stages] == [0, 0, 0]


async def test_a_generation_that_nobody_reads_to_the_end_frees_its_turn_and_states() -> None:
    stages = make_stages()
    async with Generator(Alone(stages), max_running=1) as generator:
        async with contextlib.aclosing(generator.generate(PROMPT, max_new_tokens=20)) as tokens:
            async for _ in tokens:
                break
        assert len(await collect(generator)) == 20
    assert [len(stage._states) for stage in stages] == [0, 0, 0]


async def test_the_farewell_is_said_again_to_who_has_no_room_for_it() -> None:
    num_refused = 0

    def refuse(number: int) -> None:
        nonlocal num_refused
        if number > 20 and num_refused < 3:
            num_refused += 1
            raise OverloadedError(9, 0.01)

    stages = make_stages()
    async with Generator(Losing(stages, refuse)) as generator:
        assert len(await collect(generator)) == 20
    assert num_refused == 3
    assert [len(stage._states) for stage in stages] == [0, 0, 0]


@pytest.mark.parametrize("num_tokens", [1, 5, 64, 65])
def test_states_take_at_most_twice_the_memory_of_their_tokens(num_tokens: int) -> None:
    state = KeyValues()
    for position in range(num_tokens):
        state.put(0, position, torch.ones(1, 4), torch.ones(1, 4))
    assert num_tokens * 32 <= state.size_bytes < 2 * num_tokens * 32


class Stuck(Alone):
    async def infer(self, payload: Payload, **options: Any) -> Payload:
        await asyncio.Event().wait()
        raise AssertionError


async def test_who_waits_for_a_turn_gives_up_by_its_deadline_and_in_order() -> None:
    generator = Generator(Stuck([]), max_running=1, max_waiting=2)
    first = asyncio.create_task(collect(generator))
    await asyncio.sleep(0)
    second = asyncio.create_task(collect(generator, timeout_s=0.01))
    third = asyncio.create_task(collect(generator))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await collect(generator)
    with pytest.raises(DeadlineExceededError, match="turn"):
        await second
    assert generator.statistics()["waiting"] == 1
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    assert generator.statistics()["running"] == 1
    assert generator.statistics()["waiting"] == 0
    third.cancel()
    await asyncio.wait([third])
    assert generator.statistics()["running"] == 0


async def test_who_may_not_wait_runs_if_there_is_a_turn() -> None:
    generator = Generator(Stuck([]), max_running=1, max_waiting=0)
    first = asyncio.create_task(collect(generator))
    await asyncio.sleep(0)
    assert generator.statistics()["running"] == 1
    with pytest.raises(OverloadedError):
        await collect(generator)
    first.cancel()
    await asyncio.wait([first])
    with pytest.raises(ValueError, match="max_waiting"):
        Generator(Stuck([]), max_waiting=-1)


async def test_who_waits_to_be_sent_again_gives_up_by_its_deadline() -> None:
    sent = 0

    class Lost(Alone):
        async def infer(self, payload: Payload, **options: Any) -> Payload:
            nonlocal sent
            await asyncio.sleep(0)  # the others' turn
            sent += 1
            if sent <= 4:
                raise StateLostError("blocks", "x")
            await asyncio.Event().wait()
            raise AssertionError

    generator = Generator(Lost(make_stages()))
    first = asyncio.create_task(collect(generator, timeout_s=30))
    second = asyncio.create_task(collect(generator, timeout_s=0.2))
    with pytest.raises(DeadlineExceededError, match="whose states were lost"):
        await second
    assert sent == 5
    first.cancel()
    await asyncio.wait([first])


class Late(Alone):
    async def infer(self, payload: Payload, **options: Any) -> Payload:
        raise DeadlineExceededError(0.02, "blocks")


async def test_who_is_late_hears_of_the_time_of_the_whole_generation() -> None:
    with pytest.raises(DeadlineExceededError, match=r"within 7 s \(it was at blocks\)"):
        await collect(Generator(Late(make_stages())), timeout_s=7.0)


async def test_generations_under_way_go_on_while_it_drains() -> None:
    expected = await collect(Generator(Alone(make_stages())))

    class Slow(Alone):
        async def infer(self, payload: Payload, **options: Any) -> Payload:
            await asyncio.sleep(0.005)
            return await super().infer(payload, **options)

    stages = make_stages()
    generator = Generator(Slow(stages), max_running=1)
    running = [asyncio.create_task(collect(generator)) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not await generator.drain(0.01)
    draining = asyncio.create_task(generator.drain(30))
    await asyncio.sleep(0)
    with pytest.raises(GatewayClosedError):
        await collect(generator)
    assert await asyncio.gather(*running) == [expected] * 2
    assert await draining
    assert not any(stage._states for stage in stages)
    await generator.aclose()


async def test_sequences_of_many_pieces_go_on_through_caches_that_are_too_small() -> None:
    prompts = [[number + 1] * 40 for number in range(6)]
    expected = [await collect(Generator(Alone(make_stages())), prompt, max_new_tokens=3) for prompt in prompts]

    class Paced(Alone):
        async def infer(self, payload: Payload, **options: Any) -> Payload:
            await asyncio.sleep(0)
            return await super().infer(payload, **options)

    async with Generator(Paced(make_stages(capacity_tokens=100)), chunk_tokens=4, max_replays=8) as generator:
        found = await asyncio.gather(*(collect(generator, prompt, max_new_tokens=3) for prompt in prompts))
    assert found == expected


# ---- new weights amid a sequence


class Updating(Alone):
    """Its first stage, which has no state, has other weights from some steps on: ``version`` of each step."""

    reports = True

    def __init__(self, version: Callable[[int], int]) -> None:
        super().__init__(make_stages((0, 2, 1)))
        self.firsts, self.version, self.num_steps = first_stages(), version, 0

    async def infer(self, payload: Payload, *, report: Report | None = None, **_: Any) -> Payload:
        assert report is not None
        self.num_steps += 1
        version = self.version(self.num_steps)
        report.versions = {"first": (version,), "blocks": (1,)}
        self.stages[0] = self.firsts[version - 1]
        await asyncio.sleep(0)
        return await super().infer(payload)


def first_stages() -> list[GptStage]:
    """Return the first stage with the weights of version 1 and of version 2."""
    (first, *_), (other, *_) = make_stages((0, 3)), make_stages((0, 3))
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(-1.5)
    return [first, other]


async def of_version(version: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
    stages = make_stages((0, 2, 1))
    stages[0] = first_stages()[version - 1]
    return await collect(Generator(Alone(stages)), tokens, max_new_tokens=max_new_tokens)


async def test_a_sequence_has_states_of_one_version_of_weights_only() -> None:
    generator = Generator(Updating(lambda step: 1 if step <= 8 else 2), chunk_tokens=3)  # after two pieces, six tokens
    async with generator:
        found = await collect(generator)
    before = await of_version(1, PROMPT, 7)
    after = await of_version(2, [*PROMPT, *before], 13)
    assert after != (await of_version(1, PROMPT, 20))[7:]
    assert found == [*before, *after]
    assert generator.num_replays == 1


async def test_a_stage_that_has_two_versions_for_long_holds_up_no_sequence() -> None:
    served = Updating(lambda step: 1 + step % 2)
    generator = Generator(served, chunk_tokens=2, max_replays=1, timeout_s=60)
    async with generator:
        found = await collect(generator, max_new_tokens=6)
    expected: list[int] = []
    for number in range(6):  # each is of one version, whichever
        of_both = [(await of_version(version, [*PROMPT, *expected], 1))[0] for version in (1, 2)]
        assert found[number] in of_both
        expected.append(found[number])


# ---- as what a gateway serves


class Reporting(Losing):
    """Tells which trace each step continues, and is of another version at each."""

    reports = True

    def __init__(self, stages: Sequence[GptStage], plan: Callable[[int], None]) -> None:
        super().__init__(stages, plan)
        self.traceparents: list[str] = []

    async def infer(self, payload: Payload, *, report: Report | None = None, **options: Any) -> Payload:
        assert report is not None
        self.traceparents.append(report.traceparent)
        answer = await super().infer(payload, **options)
        report.versions = {"a": (1,), "b": (self.num_steps,)}
        return answer


def loses_the_second(number: int) -> None:
    if number == 2:
        raise StateLostError("a", "")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_each_step_continues_the_trace_of_its_generation(is_streamed: bool) -> None:
    served = Reporting(make_stages(), loses_the_second)
    report = Report(traceparent="00-11-22-01")
    asked: Payload = {"tokens": torch.tensor(PROMPT), "max_new_tokens": torch.tensor(2)}
    async with Generator(served) as generator:
        assert generator.reports
        if is_streamed:
            assert len([part async for part in generator.stream(asked, report=report)]) == 2
        else:
            await generator.infer(asked, report=report)
    assert served.traceparents == ["00-11-22-01"] * 4  # two tokens, one of them twice, and the farewell
    assert report.versions == {"a": (1,), "b": (1, 3)}
    assert report.attempts == 2


async def test_what_does_not_report_is_asked_for_none() -> None:
    async with Generator(Alone(make_stages())) as generator:
        report = Report()
        assert len(await collect(generator, max_new_tokens=2, report=report)) == 2
    assert report == Report(finish_reason="length")


async def test_it_tells_why_it_ended() -> None:
    async with Generator(Alone(make_stages(capacity_tokens=len(PROMPT) + 4))) as generator:

        async def reason(**options: Any) -> tuple[int, str]:
            report = Report()
            return len(await collect(generator, report=report, **options)), report.finish_reason

        tokens = await collect(generator, max_new_tokens=3)
        assert await reason(max_new_tokens=3) == (3, "length")
        assert await reason(max_new_tokens=3, stop={tokens[0]}) == (0, "stop")
        assert await reason(max_new_tokens=99) == (5, "length")  # as long as the stages serve, and one more
        report = Report()
        async with contextlib.aclosing(generator.generate(PROMPT, max_new_tokens=3, report=report)) as unfinished:
            async for _ in unfinished:
                break
        assert report.finish_reason == ""


async def test_a_gateway_can_ask_for_all_and_for_a_stream() -> None:
    async with Generator(Alone(make_stages())) as generator:
        served: StreamingServed = generator
        asked: Payload = {
            "tokens": torch.tensor(PROMPT),
            "max_new_tokens": torch.tensor(6),
            "temperature": torch.tensor([0.7]),
            "seed": torch.tensor([4]),
            "top_k": torch.tensor([8]),
        }
        expected = await collect(generator, max_new_tokens=6, temperature=0.7, seed=4, top_k=8)
        answer = await served.infer(asked)
        assert isinstance(answer, dict)
        streamed = [part async for part in served.stream(asked)]
    assert answer["tokens"].tolist() == expected
    assert [part["token"].item() for part in streamed if isinstance(part, dict)] == expected
    status: Any = served.status()
    assert status["generation"]["done"] == 3
    tokens = served.metrics()["generation_tokens_total"]
    assert isinstance(tokens, Metric)
    assert tokens.samples == [({}, 18.0)]
    assert served.readiness() == (True, "")


@pytest.mark.parametrize(
    "payload",
    [
        torch.ones(3),
        [torch.tensor([1])],
        {"tokens": torch.tensor([1]), "more": torch.tensor([1])},
        {"tokens": torch.tensor([], dtype=torch.int64)},
        {"tokens": torch.tensor([1]), "max_new_tokens": torch.tensor(0)},
        {"tokens": torch.tensor([1]), "temperature": torch.tensor(math.nan)},
        {"tokens": torch.tensor([1]), "temperature": torch.tensor(-1.0)},
        {"tokens": torch.tensor([1]), "top_k": torch.tensor([0])},
        {"tokens": torch.tensor([1]), "seed": torch.tensor([1.5])},
        {"tokens": torch.tensor([1]), "seed": torch.tensor(math.inf)},
        {"tokens": torch.tensor([1]), "temperature": torch.tensor(1 + 2j)},
        {"tokens": torch.tensor([2**64 - 1], dtype=torch.uint64)},
    ],
)
async def test_questions_that_are_none_are_refused(payload: Payload) -> None:
    with pytest.raises(BadRequestError):
        await Generator(Alone(make_stages())).infer(payload)


@pytest.mark.parametrize(("name", "most"), [("tokens", MAX_TOKENS), ("stop", MAX_STOP_TOKENS)])
async def test_lists_of_tokens_are_bounded_before_they_are_read(name: str, most: int) -> None:
    many: Payload = {"tokens": torch.ones(1, dtype=torch.uint8), name: torch.ones(64 << 20, dtype=torch.uint8)}
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError, match=f"{name} may have {most} elements, got {64 << 20}"):
            await Generator(Alone(make_stages())).infer(many)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20, "nobody makes a list of them"
    finally:
        tracemalloc.stop()
    assert Question.of({"tokens": torch.ones(1, dtype=torch.bool), name: torch.ones(most, dtype=torch.int16)})


async def test_an_empty_list_of_stop_tokens_stops_nothing() -> None:
    asked = {"tokens": torch.tensor([1]), "max_new_tokens": torch.tensor(2), "stop": torch.tensor([])}
    answer = await Generator(Alone(make_stages())).infer(asked)
    assert isinstance(answer, dict)
    assert len(answer["tokens"]) == 2


# ---- sampling


def test_sampling_follows_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -math.inf])
    sampling = Sampling(temperature=1.0, seed=1)
    drawn = torch.tensor([sampling.choose(logits, position) for position in range(4000)])
    shares = drawn.bincount(minlength=4) / 4000
    torch.testing.assert_close(shares, logits.softmax(0), atol=0.03, rtol=0)
    assert {Sampling(temperature=5.0, top_k=2).choose(logits, position) for position in range(100)} == {1, 2}


def test_sampling_hardly_depends_on_the_last_bits() -> None:
    logits = torch.randn(256, generator=torch.Generator().manual_seed(0))
    nearly = logits * (1 + 1e-6)
    sampling = Sampling(temperature=0.9, top_k=50)
    assert all(sampling.choose(logits, position) == sampling.choose(nearly, position) for position in range(500))


@pytest.mark.parametrize("logits", [torch.tensor([0.0, math.nan]), torch.full((3,), -math.inf), torch.ones(2, 2)])
def test_logits_that_are_none_are_an_error(logits: Tensor) -> None:
    with pytest.raises(ServingError, match="logits"):
        Sampling().choose(logits, 0)


# ---- batches as they are


class Lengths:
    """Answers each request of a batch by itself."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, request: Tensor) -> Tensor:
        raise AssertionError

    def many(self, requests: list[Tensor]) -> list[Any]:
        self.sizes.append(len(requests))
        if any(request.numel() == 5 for request in requests) and len(requests) > 1:
            raise RuntimeError("one of them kills the batch")
        return [
            ValueError("three") if request.numel() == 3 else "no tensor" if request.numel() == 4 else request.sum()
            for request in requests
        ]


async def execute(work: Any, sizes: list[int]) -> list[Any]:
    results: dict[bytes, Any] = {}
    all_done = asyncio.Event()

    async def go_ahead(_: Job) -> None:
        pass

    def done(job: Job, result: Result) -> None:
        results[job.id] = result
        if len(results) == len(sizes):
            all_done.set()

    executor = Executor(work, batch=Batch(max_size=4), before_alone=go_ahead, on_done=done)
    for number, size in enumerate(sizes):
        item = Item(Kind.ITEM, bytes([number]) * 16, 1).carry(torch.ones(size))
        executor.submit(Job(item.id, [item], alone=False))
    await all_done.wait()
    executor.close()
    return [results[bytes([number]) * 16] for number in range(len(sizes))]


async def test_work_that_takes_many_gets_requests_of_all_shapes_together() -> None:
    work = Lengths()
    results = await execute(work, [1, 2, 3, 4, 6, 7])
    assert work.sizes == [4, 2]
    assert [int(results[i]) for i in (0, 1, 4, 5)] == [1, 2, 6, 7]
    assert [type(results[i]) for i in (2, 3)] == [ValueError, TypeError]


async def test_work_that_takes_many_is_asked_singly_when_a_batch_fails() -> None:
    work = Lengths()
    assert [int(result) for result in await execute(work, [1, 5, 2])] == [1, 5, 2]
    assert work.sizes == [3, 1, 1, 1]


async def test_work_that_forgets_some_of_many_fails() -> None:
    work = Lengths()
    work.many = lambda requests: []  # type: ignore[method-assign]
    assert [type(result) for result in await execute(work, [1, 1])] == [TypeError, TypeError]
