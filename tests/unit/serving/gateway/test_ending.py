"""What is said of the requests that are open when a gateway ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from multiworld.serving.gateway import Payload
from multiworld.serving.gateway.ending import Ending, Outcome
from tests.unit.serving.gateway.client import Client, FakePipeline


@dataclass
class Request:
    outcome: Outcome = Outcome.OPEN


@pytest.mark.parametrize(
    ("outcomes", "beginning", "end"),
    [
        ([], "no request is open", ""),
        ([Outcome.ANSWERED], "waits for 1 open request to be answered", "1 open request: answered"),
        ([Outcome.ANSWERED] * 3, "waits for 3 open requests to be answered", "3 open requests: answered"),
        (
            [Outcome.ANSWERED, Outcome.GIVEN_UP, Outcome.OPEN],
            "waits for 3 open requests to be answered",
            "3 open requests: 1 answered, 2 given up (503)",
        ),
        (
            [Outcome.GONE, Outcome.ANSWERED],
            "waits for 2 open requests to be answered",
            "2 open requests: 1 answered, 0 given up (503), 1 whose clients have gone",
        ),
    ],
)
def test_an_end_tells_of_what_was_open(outcomes: list[Outcome], beginning: str, end: str) -> None:
    requests = [Request() for _ in outcomes]
    ending = Ending(requests)
    assert ending.beginning() == beginning
    for request, outcome in zip(requests, outcomes, strict=True):
        request.outcome = outcome
    assert ending.end() == end


async def test_requests_that_are_answered_in_time() -> None:
    may_answer = asyncio.Event()

    class Slow(FakePipeline):
        async def infer(self, payload: Payload, **asked: object) -> Payload:
            self.started.set()
            await may_answer.wait()
            return payload

    client = Client(Slow())
    early = asyncio.create_task(client.post_json("/infer", {"inputs": [1.0]}))
    await client.served.started.wait()
    ending = client.app.ending()
    late = asyncio.create_task(client.post_json("/infer", {"inputs": [1.0]}))
    may_answer.set()
    assert [(await each).status for each in (early, late)] == [200, 200]
    assert ending.end() == "1 open request: answered", "the later one was not open"


async def test_requests_that_are_interrupted() -> None:
    client = Client(FakePipeline(is_slow=True))
    asking = asyncio.create_task(client.post_json("/infer", {"inputs": [1.0]}))
    await client.served.started.wait()
    ending = client.app.ending()
    client.app.interrupt_all()
    assert (await asking).status == 503
    assert ending.end() == "1 open request: 0 answered, 1 given up (503)"


async def test_requests_whose_clients_go() -> None:
    client = Client(FakePipeline(is_slow=True))
    asking = asyncio.create_task(client.post_json("/infer", {"inputs": [1.0]}))
    await client.served.started.wait()
    ending = client.app.ending()
    client.gone.set()
    await asking
    assert ending.end() == "1 open request: 0 answered, 0 given up (503), 1 whose clients have gone"
