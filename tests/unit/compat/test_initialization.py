"""A world's initialization, awaited, or stepped through as a coroutine."""

from __future__ import annotations

import asyncio

import pytest

from multiworld.compat.initialization import Initialization


async def start(error: Exception | None = None) -> tuple[Initialization, asyncio.Event]:
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        if error is not None:
            raise error

    return Initialization("w", work(), lambda: None), go_on


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_it_is_stepped_through_as_a_coroutine(error: Exception | None) -> None:
    forming, go_on = await start(error)
    future = forming.send(None)
    go_on.set()
    await asyncio.wait([future])
    with pytest.raises(StopIteration if error is None else ValueError):
        forming.send(None)


async def test_what_is_thrown_into_it_before_its_first_step_ends_the_waiting_only() -> None:
    forming, go_on = await start()
    with pytest.raises(KeyError):
        forming.throw(KeyError("mine"))
    go_on.set()
    await forming
    await forming


async def test_an_error_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    forming, go_on = await start(ValueError("no"))
    go_on.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert "world 'w' could not be initialized: no" in caplog.text
    with pytest.raises(ValueError, match="no"):
        await forming
