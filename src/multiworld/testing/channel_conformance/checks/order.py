"""Many operations at once: which message meets which receive."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

from ...tasks import together
from ..catalogue import PAIR, SEVERAL, by_members
from ..stage import Stage

NUMELS = (1, 1, 1, 700, 700, 20_000, 150_000, 600_000)


@by_members(sizes=SEVERAL)
async def messages_of_a_tag_keep_their_order(stage: Stage) -> None:
    """Messages of one peer and tag are received in the order in which they were sent, small behind large ones too,
    whether receives come before or after, and however many tasks issue them.
    """
    world = await stage.join()
    streams = [(src, dst, tag) for src in stage.ranks for dst in stage.ranks if src != dst for tag in range(3)]
    num_messages = 48 // stage.size
    numels = {stream: [stage.chance.choice(NUMELS) for _ in range(num_messages)] for stream in streams}

    async def receive(src: int, tag: int, number: int) -> None:
        what = f"recv number {number} on tag {tag} from rank {src}"
        await stage.receive_full(world, numels[src, stage.rank, tag][number], number, src, tag, what)

    operations: dict[tuple[str, int, int], list[Any]] = {}
    for src, dst, tag in streams:
        if src == stage.rank:
            operations["send", dst, tag] = [
                world.send(stage.full(numel, number), dst, tag=tag)
                for number, numel in enumerate(numels[src, dst, tag])
            ]
        if dst == stage.rank:
            operations["recv", src, tag] = [receive(src, tag, number) for number in range(num_messages)]
    shuffled = [queue for queue in operations.values() for _ in queue]
    stage.own_chance.shuffle(shuffled)
    taken: defaultdict[int, int] = defaultdict(int)
    issued = []
    for queue in shuffled:  # within a queue in order, between them in any
        issued.append(queue[taken[id(queue)]])
        taken[id(queue)] += 1
    await together(*issued)


@by_members(sizes=PAIR)
async def tags_do_not_block_each_other(stage: Stage) -> None:
    """A message that nobody receives yet, however large, holds up none on another tag."""
    world = await stage.join()
    waiting, small = stage.full(3_000_000, 1), stage.full(10, 2)
    if stage.rank == 0:
        large = [asyncio.ensure_future(world.send(waiting, 1, tag=tag)) for tag in (1, 2)]
        await asyncio.sleep(0)
        await together(*(world.send(small, 1, tag=3) for _ in range(10)))
        await asyncio.gather(*large)
    else:
        for _ in range(10):
            await stage.receive_full(world, 10, 2, 0, 3, "recv on tag 3, behind large messages on others,")
        for tag in (2, 1):
            await stage.receive_full(world, 3_000_000, 1, 0, tag, f"recv of the large message on tag {tag}")


@by_members(sizes=PAIR)
async def threads_and_tasks_share_a_world(stage: Stage) -> None:
    """Any number of threads and tasks may use one world at once; each gets its own messages, in order."""
    world, peer = await stage.join(), 1 - stage.rank
    num_threads, num_messages = 4, 40
    wrong: list[str] = []

    def converse(tag: int) -> None:
        blocking = world.blocking
        try:
            for number in range(num_messages):
                numel = NUMELS[(number + tag) % len(NUMELS)]
                target = stage.full(numel, -1)
                if stage.rank == 0:
                    blocking.send(stage.full(numel, number), peer, tag)
                    blocking.recv(target, peer, tag)
                else:
                    blocking.recv(target, peer, tag)
                    blocking.send(target, peer, tag)
                stage.check_full(target, number, f"recv number {number} of a thread on tag {tag}")
        except Exception as error:
            wrong.append(f"a thread: {type(error).__name__}: {error}")

    async def task(tag: int) -> None:
        for number in range(num_messages):
            target = stage.full(5, -1)
            await together(world.send(stage.full(5, number), peer, tag=tag), world.recv(target, peer, tag=tag))
            stage.check_full(target, number, f"recv number {number} of a task on tag {tag}")

    async def reduce() -> None:
        for number in range(num_messages):
            target = stage.full(300, number)
            await world.all_reduce(target)
            stage.check_full(target, 2 * number, f"all_reduce number {number} beside the messages of threads and tasks")

    threads = [threading.Thread(target=converse, args=(tag,), daemon=True) for tag in range(num_threads)]
    for thread in threads:
        thread.start()
    await together(task(num_threads), task(num_threads + 1), reduce())
    for thread in threads:
        await asyncio.to_thread(thread.join)
    stage.check(not wrong, "; ".join(wrong))


@by_members(sizes=SEVERAL)
async def collectives_match_in_the_order_of_their_calls(stage: Stage) -> None:
    """Collectives of many tasks at once match by the order of their calls, whatever their sizes and beside messages."""
    world = await stage.join()
    numels = [stage.chance.choice(NUMELS) for _ in range(40)]
    after, before = (stage.rank + 1) % stage.size, (stage.rank - 1) % stage.size

    async def all_reduce(number: int) -> None:
        tensor = stage.full(numels[number], number + stage.rank)
        await world.all_reduce(tensor)
        total = number * stage.size + sum(stage.ranks)
        stage.check_full(tensor, total, f"all_reduce number {number} of {len(numels)} that were issued at once")

    async def broadcast(number: int) -> None:
        tensor = stage.full(numels[number], number if stage.rank == number % stage.size else -1)
        await world.broadcast(tensor, number % stage.size)
        stage.check_full(tensor, number, f"broadcast number {number} of {len(numels)} that were issued at once")

    async def pass_on(number: int) -> None:
        tensor = stage.full(numels[number], -1)
        await together(world.send(stage.full(numels[number], number), after), world.recv(tensor, before))
        stage.check_full(tensor, number, f"recv number {number} beside collectives")

    kinds = [stage.chance.choice((all_reduce, broadcast)) for _ in numels]
    operations = [kind(number) for number, kind in enumerate(kinds)]
    await together(*operations, *(pass_on(number) for number in range(0, len(numels), 4)))
