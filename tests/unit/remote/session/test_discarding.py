"""A wait that Ctrl-C or a cancelled task ends: the node gives up what it kept for the answer, and goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from ..fake_node import FakeNode, remote_of, values

LARGE = 1 << 19  # float32: 2 MiB, which the master may read in the memory of the node


def goes_on(fake: FakeNode, tensor: Tensor) -> None:
    """The node writes into the tensor: it waits until what it sends of it was taken."""
    tensor.add_(1)
    assert values(tensor.sum()).item() == 2 * tensor.numel()
    assert fake.failure is None


@pytest.mark.parametrize("reads_memory", [False, True])
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_node_goes_on_after_an_interrupted_fetch(size: int, reads_memory: bool) -> None:
    with FakeNode(reads_memory=reads_memory) as fake:
        there = fake.node.ones(size)
        fake.world.interrupt_in = 1
        with pytest.raises(KeyboardInterrupt):
            values(there)
        goes_on(fake, there)


def test_a_node_goes_on_if_the_values_of_a_fetch_are_on_their_way() -> None:
    with FakeNode() as fake:
        there = fake.node.ones(LARGE)
        fake.bulk.interrupt_in = 1
        with pytest.raises(KeyboardInterrupt):
            values(there)
        goes_on(fake, there)


@pytest.mark.parametrize("reads_memory", [False, True])
@pytest.mark.parametrize("num_turns", range(4))
def test_a_node_goes_on_after_a_task_that_fetches_is_cancelled(num_turns: int, reads_memory: bool) -> None:
    async def fetch_and_cancel(tensor: Tensor) -> None:
        task = asyncio.ensure_future(remote_of(tensor).fetched())
        for _ in range(num_turns):  # the task is then at another of its waits
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):  # it may be done by then
            await task

    with FakeNode(reads_memory=reads_memory) as fake:
        there = fake.node.ones(LARGE)
        asyncio.run(fetch_and_cancel(there))
        goes_on(fake, there)


def test_the_answer_of_an_interrupted_question_is_not_kept() -> None:
    with FakeNode() as fake:
        there = fake.node.ones(3)
        fake.world.interrupt_in = 1
        with pytest.raises(KeyboardInterrupt):
            torch.nonzero(there)
        goes_on(fake, there)
        assert len(fake.session.link.answers) == 0
