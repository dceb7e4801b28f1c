"""Weights: read, loaded, and sent from one rank to another."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from multiworld.errors import ProtocolError
from multiworld.model import weights as module_of_weights
from multiworld.model.weights import put_weights, recv_weights, send_weights, weights_of
from multiworld.world.world import World


def double(x: Tensor) -> Tensor:
    return x * 2


class Wire:
    """A world of two whose messages go through a queue."""

    name = "wire"

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.num_at_barrier = 0

    async def send_tensors(self, payload: Any, rank: int, *, timeout_s: float) -> None:
        assert (rank, timeout_s) == (1, 5.0)
        self.sent.append(payload)
        self.queue.put_nowait(payload)

    async def recv_tensors(self, rank: int, *, timeout_s: float) -> Any:
        assert (rank, timeout_s) == (0, 5.0)
        return await self.queue.get()

    async def barrier(self, *, timeout_s: float) -> None:
        self.num_at_barrier += 1


def test_weights_are_put_whole_or_refused() -> None:
    module = nn.Linear(2, 1)
    put_weights(module, {"bias": torch.tensor([7.0])})
    assert weights_of(module)["bias"].tolist() == [7.0]
    with pytest.raises(RuntimeError, match="does not have: nonsense"):
        put_weights(module, {"nonsense": torch.ones(1)})
    with pytest.raises(TypeError, match="takes no weights"):
        put_weights(functools.partial(double), {"a": torch.ones(1)})


def test_a_work_whose_state_is_its_own_dict_gets_no_unknown_weights() -> None:
    class Work:
        def __init__(self) -> None:
            self.weights = {"factor": torch.ones(1)}

        def state_dict(self) -> dict[str, torch.Tensor]:
            return self.weights

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            self.weights = state

    work = Work()
    with pytest.raises(RuntimeError, match="does not have: facotr"):
        put_weights(work, {"facotr": torch.ones(1)})
    assert list(work.weights) == ["factor"]
    put_weights(work, {"factor": torch.zeros(1)})
    assert work.weights["factor"].item() == 0


async def test_weights_cross_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_weights, "CHUNK_BYTES", 40)
    wire = Wire()
    world = cast("World", wire)
    given = {name: torch.full((8,), float(index)) for index, name in enumerate("abc")}
    _, taken = await asyncio.gather(send_weights(world, 1, given, 5.0), recv_weights(world, 0, 5.0))
    assert [list(chunk) for chunk in wire.sent] == [["a", "b"], ["c"], []]
    assert {name: value.tolist() for name, value in taken.items()} == {
        name: value.tolist() for name, value in given.items()
    }
    assert wire.num_at_barrier == 2


async def test_what_is_no_weights_is_refused() -> None:
    wire = Wire()
    wire.queue.put_nowait(torch.ones(1))
    with pytest.raises(ProtocolError, match="world 'wire': rank 0 sent a Tensor in place of weights"):
        await recv_weights(cast("World", wire), 0, 5.0)
