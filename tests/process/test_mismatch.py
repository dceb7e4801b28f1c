"""Tensors that do not fit: a clear error on the side that erred, and the world stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

import multiworld as mw
from tests.process.test_deadlines import two_worlds

pytestmark = pytest.mark.usefixtures("no_leaks")

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize(
    ("sent", "offered"),
    [
        (torch.zeros(4), torch.zeros(5)),
        (torch.zeros(4), torch.zeros(3)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.float64)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(0), torch.zeros(1)),
    ],
)
def test_a_receive_that_does_not_fit_says_both_sides_and_the_message_waits(
    run: Run, sent: torch.Tensor, offered: torch.Tensor
) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            before = offered.clone()
            results = await asyncio.gather(there.send(sent + 1, 0), here.recv(offered, 1), return_exceptions=True)
            assert results[0] is None
            error = results[1]
            assert isinstance(error, mw.TensorMismatchError)
            assert error.rank == 1
            assert torch.equal(offered, before)
            fitting = torch.zeros_like(sent)
            await here.recv(fitting, 1)
            assert torch.equal(fitting, sent + 1)
            await asyncio.gather(here.barrier(), there.barrier())

    run(scenario())


@pytest.mark.parametrize("backend", ["tcp", "gloo"])
def test_tensors_that_are_not_contiguous_work(run: Run, backend: str) -> None:
    async def scenario() -> None:
        async with two_worlds(backend) as (here, there):
            source = torch.arange(24.0).reshape(4, 6).t()
            target = torch.zeros(8, 6).t()[:, ::2]
            assert source.shape == target.shape
            assert not target.is_contiguous()
            await asyncio.gather(there.send(source, 0), here.recv(target, 1))
            assert torch.equal(target, source)
            await asyncio.gather(there.all_reduce(source), here.all_reduce(target))
            assert torch.equal(target, torch.arange(24.0).reshape(4, 6).t() * 2)

    run(scenario())


def test_a_tensor_on_the_wrong_device_is_refused_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            elsewhere = torch.zeros(3, device="meta")
            for operation in (here.send(elsewhere, 1), here.recv(elsewhere, 1), here.all_reduce(elsewhere)):
                with pytest.raises((ValueError, TypeError), match="meta"):
                    await operation
            await asyncio.gather(here.barrier(), there.barrier())

    run(scenario())


@pytest.mark.parametrize("peer", [2, -1, 0])
def test_a_peer_that_does_not_exist_or_is_oneself_is_refused_at_once(run: Run, peer: int) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            with pytest.raises(ValueError, match="dst"):
                await here.send(torch.zeros(1), peer)
            with pytest.raises(ValueError, match="src"):
                await here.recv(torch.zeros(1), peer)
            await asyncio.gather(here.barrier(), there.barrier())

    run(scenario())


def test_collectives_that_differ_between_ranks_are_an_error_on_both_and_never_wrong_data(run: Run) -> None:
    async def scenario() -> None:
        async with two_worlds("tcp") as (here, there):
            results = await asyncio.gather(
                here.all_reduce(torch.zeros(4), timeout_s=3),
                there.all_reduce(torch.zeros(5), timeout_s=3),
                return_exceptions=True,
            )
            assert any(isinstance(result, mw.CollectiveMismatchError) for result in results), results
            assert all(isinstance(result, mw.MultiworldError) for result in results), results

    run(scenario())
