"""Who reads events: each is told all, several may wait at once, and nobody keeps what nobody reads."""

from __future__ import annotations

import asyncio
import gc

from multiworld.world.subscription import Broadcaster

WAIT_S = 10.0


async def test_two_tasks_that_read_one_subscription_are_both_woken() -> None:
    broadcaster: Broadcaster[int] = Broadcaster()
    subscription = broadcaster.subscribe()
    reading = [asyncio.ensure_future(anext(subscription, None)) for _ in range(3)]
    await asyncio.sleep(0)
    broadcaster.publish(1)
    broadcaster.publish(2)
    await asyncio.sleep(0)
    broadcaster.close()
    assert sorted(str(each) for each in await asyncio.wait_for(asyncio.gather(*reading), WAIT_S)) == ["1", "2", "None"]


async def test_a_subscription_that_nobody_holds_collects_nothing() -> None:
    broadcaster: Broadcaster[int] = Broadcaster()

    async def read_one() -> int:
        async for event in broadcaster.subscribe():
            return event
        raise AssertionError("it ended")

    reading = asyncio.ensure_future(read_one())
    await asyncio.sleep(0)
    gc.collect()  # one that is read is held by its reader
    broadcaster.publish(1)
    assert await asyncio.wait_for(reading, WAIT_S) == 1
    del reading
    gc.collect()
    assert not list(broadcaster._subscriptions)
