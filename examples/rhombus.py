"""A real model in three stages over a rhombus of processes: a replica is killed under load, and nothing is lost.

            ┌─ a-b1 ─ B1 ─ b1-c ─┐
    front ─ A                    C ─ front        one process each, one world of two per edge
            └─ a-b2 ─ B2 ─ b2-c ─┘

What A, B and C do is ``multiworld.demo.pipeline``, what the front does is ``multiworld.demo.front``: short modules on
nothing but the public API, and the very code that ``multiworld demo`` runs. This program adds the processes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import torch
from torch import multiprocessing, nn

import multiworld as mw
from multiworld.demo.data import load_digits, micro_batches
from multiworld.demo.front import Front
from multiworld.demo.ledger import RequestLedger
from multiworld.demo.model import build_model, predict, stage_of, train
from multiworld.demo.pipeline import Rhombus, run_joiner, run_replica, run_splitter

KILL_AFTER = 200  # answers


def run_stage(name: str, number: int, rhombus: Rhombus, stage: nn.Module) -> None:
    """Be one process of the rhombus, until the front leaves."""
    torch.set_num_threads(1)

    async def play() -> None:
        async with mw.WorldManager() as manager:
            if name == "a":
                await run_splitter(manager, rhombus, stage)
            elif name == "c":
                await run_joiner(manager, rhombus, stage)
            else:
                await run_replica(manager, rhombus, stage, name, number)

    asyncio.run(play())


async def main() -> None:
    """Train, start the processes, serve, kill B1 on the way, and compare every answer with the model in one process."""
    torch.set_num_threads(1)
    digits = load_digits(seed=0)
    model = build_model(seed=0)
    train(model, digits.train_images, digits.train_labels, seed=0, num_epochs=3)
    batches = micro_batches(digits.held_out_images, 16)
    expected = predict(model, batches)
    processes: list[BaseProcess] = []

    async with mw.WorldManager() as manager:
        rhombus = Rhombus(store=manager.serve_store("tcp://127.0.0.1:0"))

        def start(name: str) -> BaseProcess:
            arguments = (name, len(processes), rhombus, stage_of(model, name[0]))
            process = multiprocessing.get_context("spawn").Process(target=run_stage, args=arguments)
            process.start()
            processes.append(process)
            return process

        victim = start("b1")
        for name in ("a", "b2", "c"):
            start(name)
        front = await Front.join(manager, rhombus, RequestLedger(window=16, deadline_s=10.0))

        seen: set[int] = set()
        workers: set[int] = set()

        def requests() -> Iterator[torch.Tensor]:
            """Repeat the held-out images until both the killed process and its replacement have taken part."""
            for batch in itertools.cycle(batches):
                if len(workers) == 3:
                    return
                yield batch

        async for answer in front.serve(requests()):
            assert answer.request not in seen, f"request {answer.request} was answered twice"
            assert torch.equal(answer.logits, expected[answer.request % len(batches)])
            seen.add(answer.request)
            workers.add(answer.worker)
            if len(seen) == KILL_AFTER:
                victim.kill()
                start("b1")
        await front.leave()

    for process in processes:
        process.join()
    assert seen == set(range(front.ledger.num_sent))
    assert [process.exitcode for process in processes if process is not victim] == [0, 0, 0, 0]
    print(f"{len(seen)} micro-batches sent, each answered once, all equal to the model in one process")
    print(
        f"answered by the B processes number {sorted(workers)}; {front.ledger.num_discarded} second answers discarded"
    )


if __name__ == "__main__":
    asyncio.run(main())
